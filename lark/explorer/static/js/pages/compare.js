// Two candidates side by side: token by token under the student's eyes, or as text.

import { LEVELS } from "../charts/grids.js";
import { tickText, ticks } from "../charts/base.js";
import { announce, h, replace, visible } from "../dom.js";
import { count, fixed } from "../format.js";
import { load, Problem } from "../load.js";
import { mathText, plainText } from "../math/text.js";
import { choice, methodName, problemCard, segments, tag } from "../parts.js";
import { address, follow, go, remember } from "../route.js";
import { isNamed } from "./candidates.js";
import { opinions } from "./opinions.js";
import { MEASURES, prepare, scale } from "../tokens/measures.js";
import { tokenTip } from "../tokens/tip.js";
import { tokenView } from "../tokens/view.js";

export async function open(route) {
  const [pool, asked, number, first, second] = route.parts;
  const n = Number(number);
  const question = await load(`question/${pool}/${asked}/${n}`);
  const view = follow(asked, question.view.id);
  const sides = [first, second].map(Number);
  for (const c of sides) if (!question.candidates[c]) throw new Problem(`Question ${question.id} has ${question.candidates.length} candidates; there is no number ${c}.`);
  const state = {
    heat: MEASURES[route.query.heat] ? route.query.heat : "surprisal",
    show: route.query.show === "text" ? "text" : "tokens",
    math: route.query.math !== "raw",
    isTogether: route.query.scroll !== "apart",
  };
  const path = `${pool}/${view}/${n}`;
  const loaded = await Promise.all(sides.map((c) => load(`tokens/${path}/${c}`).then(prepare, (error) => error)));
  const isWhole = loaded.every((side) => !(side instanceof Error));
  if (!isWhole && route.query.show === undefined) state.show = "text";
  const boxes = sides.map(() => h("div", { class: "side-body" }));
  const legend = h("div");
  let views = [];

  function draw() {
    views.forEach((side) => side.leave());
    views = [];
    const common = isWhole ? scale(state.heat, loaded) : null;
    replace(legend, state.show === "tokens" ? heatLegend(state.heat, common) : null);
    sides.forEach((c, i) => {
      if (state.show === "text") {
        replace(boxes[i], h("div", { class: "text-side", tabindex: 0, "aria-label": `Text of ${question.candidates[c].id}` }, h("p", { class: "muted" }, "Loading…")));
        load(`text/${pool}/${n}/${c}`).then((values) => replace(boxes[i].firstChild, messages(values, state.math)), (error) => replace(boxes[i], problemCard(error)));
        return;
      }
      const tokens = loaded[i];
      if (tokens instanceof Error) { replace(boxes[i], problemCard(tokens)); return; }
      const tip = tokenTip(tokens, `alternatives/${path}/${c}`);
      const side = tokenView(tokens, {
        label: question.candidates[c].id, onToken: tip,
        onScroll: (share) => { if (state.isTogether) views.forEach((other) => other !== side && other.scrollTo(share)); },
      });
      views.push(side);
      replace(boxes[i], side.element);
      side.setScale(common ?? scale(state.heat, [tokens]));
    });
  }

  function change(changes) {
    Object.assign(state, changes);
    heats.set(state.heat);
    shows.set(state.show);
    tools.dataset.show = state.show;
    remember({ heat: state.heat, show: state.show, math: state.math ? "" : "raw", scroll: state.isTogether ? "" : "apart" });
    if ("heat" in changes && views.length) {
      const common = isWhole ? scale(state.heat, loaded) : null;
      views.forEach((side, i) => side.setScale(common ?? scale(state.heat, [loaded[i]])));
      replace(legend, heatLegend(state.heat, common));
    } else if (!("isTogether" in changes)) draw();
  }

  // The next token that stands out, on the side that was last used.
  let active = 0;
  function peak(step) {
    const focused = views.findIndex((side) => side.box === document.activeElement);
    if (focused >= 0) active = focused;
    const side = views[active] ?? views[0];
    if (!side) return;
    if (!side.peak(step)) announce(step > 0 ? "No further token stands out." : "No earlier token stands out.");
  }

  const heats = segments("Measure", Object.entries(MEASURES).map(([key, measure]) => [key, measure.label, measure.note]), state.heat, (heat) => change({ heat }));
  const shows = segments("View", [["tokens", "Tokens"], ["text", "Text"]], state.show, (show) => change({ show }));
  const tools = h("div", { class: "toolbar compare-tools", data: { show: state.show } }, shows,
    h("div", { class: "only-tokens row" }, heats,
      h("div", { class: "row peaks" }, h("button", { class: "button", title: "Previous token that stands out (p)", "aria-label": "Previous peak", on: { click: () => peak(-1) } }, "‹"), h("span", { class: "muted" }, "peaks"), h("button", { class: "button", title: "Next token that stands out (n)", "aria-label": "Next peak", on: { click: () => peak(1) } }, "›")),
      h("label", { class: "field" }, h("input", { type: "checkbox", checked: state.isTogether, on: { change: (event) => change({ isTogether: event.target.checked }) } }), "scroll together")),
    h("div", { class: "only-text row" }, segments("Mathematics", [["math", "Rendered"], ["raw", "Raw LaTeX"]], state.math ? "math" : "raw", (key) => change({ math: key === "math" }))));
  const options = question.candidates.map((c) => [String(c.c), visible(isNamed(c) ? c.id : `${c.id} (${c.teacher})`)]);
  const heads = sides.map((c, i) => sideHead(question, c, choice("AB"[i], options, String(c), (to) => {
    const next = [...sides];
    next[i] = Number(to);
    go("compare", [pool, view, n, ...next], { heat: state.heat, show: state.show });
  })));
  const back = address("question", [pool, view, n], { a: sides[0], b: sides[1] });
  const body = h("div", { class: "stack compare" },
    h("div", { class: "page-head" },
      h("div", { class: "crumbs" }, h("a", { href: address("pool", [pool, view]) }, visible(question.view.pool.name)), h("span", {}, "/"), h("a", { href: back }, h("code", {}, visible(question.id))), h("span", {}, "/"), h("span", {}, "compare")),
      h("h1", { class: "sr" }, `Compare two candidates of ${question.id}`),
      h("details", { class: "plain question-fold" }, h("summary", { class: "muted clip" }, visible(question.text.slice(0, 160).replace(/\s+/g, " "))), h("div", { class: "prose" }, mathText(question.text)))),
    tools, legend,
    h("div", { class: "sides compare-sides" }, sides.map((_, i) => h("section", { class: "card flush side" }, heads[i], boxes[i]))),
    opinions(question, sides, loaded));
  const cycle = (list, now) => list[(list.indexOf(now) + 1) % list.length];
  const redraw = () => views.forEach((side) => side.redraw());
  document.addEventListener("theme", redraw);
  return {
    title: `Compare ${question.candidates[sides[0]].id} and ${question.candidates[sides[1]].id}`, body,
    shown: () => { draw(); if (state.show === "tokens") views[0]?.focus(); },
    leave: () => { document.removeEventListener("theme", redraw); views.forEach((side) => side.leave()); },
    keys: {
      n: () => state.show === "tokens" && peak(1), p: () => state.show === "tokens" && peak(-1),
      h: () => state.show === "tokens" && change({ heat: cycle(Object.keys(MEASURES), state.heat) }),
      o: () => { (views.find((side) => side.box !== document.activeElement) ?? views[0])?.focus(); },
      v: () => change({ show: state.show === "tokens" ? "text" : "tokens" }),
      Escape: () => { location.hash = back; },
    },
  };
}

function sideHead(question, c, picker) {
  const candidate = question.candidates[c];
  const used = question.selections.filter((s) => s.chosen.some((row) => row.c === c));
  const said = { true: ["good", "✓ correct"], false: ["bad", "✗ wrong"] }[String(candidate.correct)];
  return h("header", { class: "side-head" },
    h("div", { class: "row between" }, picker, said ? tag(...said) : null),
    h("p", { class: "small muted" }, isNamed(candidate) ? null : `${visible(candidate.teacher)} · `, candidate.tokens === null ? `${count(candidate.characters)} characters` : `${count(candidate.tokens)} tokens`,
      candidate.loss === null ? null : ` · loss ${fixed(candidate.loss, 3)} nats/token · ρ̂ ${fixed(candidate.rho, 3)}`, candidate.truncated ? [" ", tag("warn", "truncated")] : null),
    h("p", { class: "row small chips" }, used.slice(0, 4).map((s) => { const row = s.chosen.find((r) => r.c === c); return tag("accent", `${methodName(s.label)}, ${visible(s.amount)}: #${row.rank}, q = ${fixed(row.weight, 3)}`); }),
      used.length > 4 ? h("span", { class: "muted" }, `and ${used.length - 4} more selections`) : null, used.length ? null : h("span", { class: "muted" }, question.selections.length ? "in no selection" : "no selection has been made yet")));
}

function heatLegend(key, common) {
  const measure = MEASURES[key];
  const marks = common ? (measure.isLog ? [1, 10, 100, 1000, 10000].filter((v) => v <= common.high) : ticks(common.low, common.high, 4)) : [];
  return h("div", { class: "heat-legend" }, h("span", { class: "muted small" }, `${measure.label}: ${measure.note}`),
    h("div", { class: "heat-scale", role: "img", "aria-label": common ? `from ${common.low} to ${common.high}` : "" },
      h("div", { class: "heat-bar" }, Array.from({ length: LEVELS }, (_, k) => h("i", { class: `h${k}` }))),
      h("div", { class: "heat-marks" }, marks.map((v) => h("span", { style: { left: `${100 * common.of(v)}%` } }, tickText(v))))));
}

function messages(values, isMath) {
  const draw = isMath ? mathText : plainText;
  const last = values.messages.length - 1;
  return values.messages.filter((message, i) => i === last || values.messages.length > 2 && message.role !== "system").map((message) => h("article", { class: `message ${message.role === "assistant" ? "" : "other"}` },
    values.messages.length > 2 ? h("h3", {}, visible(message.role)) : null,
    message.thinking ? h("details", { open: true, class: "plain" }, h("summary", { class: "muted" }, "Reasoning"), h("div", { class: "prose" }, draw(message.thinking))) : null,
    message.content ? h("div", { class: "prose" }, draw(message.content)) : null,
    message.calls ? h("pre", { class: "log" }, visible(message.calls)) : null));
}

