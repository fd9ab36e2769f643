// Parts of pages: cards, tags, controls, tooltips.

import { h, replace, said, visible } from "./dom.js";
import { Problem } from "./load.js";
import { address } from "./route.js";

export function problemCard(error, retry) {
  const isKnown = error instanceof Problem;
  if (!isKnown) console.error(error);
  const text = isKnown ? error.message : "This part could not be drawn. Reload the page; if this stays, the browser's console has details.";
  return h("section", { class: "card problem", role: "alert" },
    h("div", { class: "tight" }, h("strong", {}, "Not available"), h("p", {}, said(text)),
      h("p", {}, retry ? h("button", { class: "button", on: { click: retry } }, "Try again") : null, " ", h("a", { class: "button", href: "#/" }, "Overview"))));
}

// A part of a page that loads on its own: the rest is shown meanwhile, and a problem stays in its place.
export function later(promise, draw) {
  const box = h("div", { "aria-busy": "true" }, h("div", { class: "skeleton" }));
  promise.then((values) => replace(box, draw(values)), (error) => replace(box, problemCard(error)))
    .catch((error) => replace(box, problemCard(error)))
    .finally(() => box.removeAttribute("aria-busy"));
  return box;
}

const STATES = { finished: ["good", "finished"], running: ["info", "running"], failed: ["bad", "failed"], damaged: ["bad", "damaged"], interrupted: ["warn", "interrupted"], unreadable: ["bad", "unreadable"], missing: ["bad", "missing"] };

export function stateTag(state) {
  const [kind, label] = STATES[state] ?? ["", state];
  return h("span", { class: `tag ${kind}` }, h("span", { class: `dot${state === "running" ? " pulse" : ""}` }), label);
}

export const teacherName = (name) => visible(name ?? "").trim() || "(no name)";

// Labels of the paper's table say which direction is better ("RSR min"); elsewhere the page says it in words.
export const methodName = (label) => visible(label).replace(/ (max|min)$/, "");

export const tag = (kind, ...text) => h("span", { class: `tag ${kind}` }, ...text);
export const fingerprint = (value) => h("code", { class: "faint" }, value.slice(0, 8));
export const artifactLink = (kind, print, name) => h("a", { href: address("artifact", [kind, print]) }, name ?? print);

export function card(title, note, ...body) {
  return h("section", { class: "card" }, title ? h("header", {}, h("h2", {}, title), note ? h("p", {}, note) : null) : null, ...body);
}

// One of several values, as buttons side by side.
export function segments(label, options, value, change) {
  const box = h("div", { class: "segments", role: "group", "aria-label": label });
  const draw = (chosen) => replace(box, options.map(([key, text, title]) => h("button", {
    type: "button", "aria-pressed": String(key === chosen), title,
    on: { click: () => { draw(key); change(key); } },
  }, text)));
  box.set = draw;
  draw(value);
  return box;
}

export function choice(label, options, value, change) {
  const box = h("select", { "aria-label": label, on: { change: (event) => change(event.target.value) } },
    options.map(([key, text]) => h("option", { value: key }, text)));
  box.value = value;
  return h("label", { class: "field" }, label, box);
}

// The pool's student, if there are several.
export function studentChoice(page, views, view, rest = [], query = {}) {
  if (views.length < 2) return view.student ? h("span", { class: "muted" }, "student ", h("b", {}, visible(view.student))) : null;
  return choice("Student", views.map((v) => [v.id, `${v.student ?? "none"} (${v.id.slice(0, 6)})`]), view.id,
    (id) => { location.hash = address(page, [view.pool.fingerprint, id, ...rest], query); });
}

// The pool and its student, where there is a choice.
export function poolChoice(page, pools, views, view) {
  const here = view.pool.fingerprint;
  return h("div", { class: "row" },
    pools.length > 1 ? choice("Pool", pools.map((p) => [p.fingerprint, `${p.name} (${p.fingerprint.slice(0, 6)})`]), here, (print) => {
      location.hash = address(page, [print, pools.find((p) => p.fingerprint === print).views[0].id]);
    }) : null,
    studentChoice(page, views, view));
}

export const verdict = (correct) => correct === null || correct === undefined ? h("span", { class: "faint", title: "not known" }, "–")
  : correct ? h("span", { class: "yes", title: "correct" }, "✓") : h("span", { class: "no", title: "wrong" }, "✗");

// One tooltip for everything. `at` is an element or {x, y}.
const tip = h("div", { class: "tooltip", role: "tooltip", hidden: true });
export function showTip(at, ...content) {
  if (!tip.isConnected) document.body.append(tip);
  replace(tip, ...content);
  tip.hidden = false;
  const box = at instanceof Element ? at.getBoundingClientRect() : { left: at.x, right: at.x, top: at.y, bottom: at.y };
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.min(Math.max(8, (box.left + box.right) / 2 - width / 2), innerWidth - width - 8);
  const below = box.bottom + 8 + height < innerHeight || box.top < height + 16;
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? box.bottom + 8 : box.top - height - 8}px`;
}
export const hideTip = () => { tip.hidden = true; };

// Show a text when the pointer or the focus is on an element of a chart.
export function tipped(element, ...content) {
  element.setAttribute("data-tip", "");
  const show = () => showTip(element, ...content.map((c) => (c instanceof Node ? c.cloneNode(true) : c)));
  element.addEventListener("pointerenter", show);
  element.addEventListener("pointerleave", hideTip);
  element.addEventListener("focus", show);
  element.addEventListener("blur", hideTip);
  return element;
}
