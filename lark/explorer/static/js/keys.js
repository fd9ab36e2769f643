// The keyboard: keys of the open page, and those that work everywhere. Keys in text fields are left alone, except Escape.

import { h } from "./dom.js";

let page = {};
const everywhere = {};
let prefix = "";

export const bind = (keys) => { page = keys; };
export const bindEverywhere = (keys) => Object.assign(everywhere, keys);

const isTyping = (target) => target.closest?.("input, select, textarea, [contenteditable]") && target.type !== "range" && target.type !== "checkbox";

export function start() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (isTyping(event.target)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (document.querySelector("dialog[open]")) return;
    const key = event.key;
    if (prefix === "g") {
      prefix = "";
      if (everywhere[`g ${key}`]) {
        event.preventDefault();
        everywhere[`g ${key}`](event);
      }
      return;
    }
    if (key === "g") {
      prefix = "g";
      setTimeout(() => { prefix = ""; }, 2000);
      return;
    }
    // Enter and Space belong to the control that has the focus; arrows belong to a slider.
    const onControl = event.target.closest?.("a, button, summary, input");
    if (onControl && (key === "Enter" || key === " ")) return;
    if (event.target.type === "range" && key.startsWith("Arrow")) return;
    const action = page[key] ?? everywhere[key];
    if (action && action(event) !== false) event.preventDefault();
  });
}

const HELP = [
  ["Everywhere", [["g o", "overview"], ["g p", "pool and questions"], ["g c", "comparison of two candidates"], ["g m", "methods"], ["g a", "answers"], ["/", "search"], ["t", "light or dark"], ["?", "this list"]]],
  ["Lists", [["j k ↓ ↑", "next and previous row"], ["Enter", "open the row"], ["n p", "next and previous page"]]],
  ["Question", [["j k", "next and previous candidate"], ["x", "mark for comparison"], ["c", "compare the marked two"], ["[ ]", "previous and next question"], ["− +", "smaller and larger budget"]]],
  ["Compare", [["← →", "previous and next token"], ["↑ ↓", "previous and next line"], ["n p", "next and previous token that stands out"], ["o", "other side"], ["h", "next measure"], ["v", "tokens or text"], ["Esc", "back to the question"]]],
];

export function help() {
  const close = () => dialog.close();
  const dialog = h("dialog", { "aria-label": "Keyboard shortcuts", on: { click: (e) => e.target === dialog && close(), close: () => dialog.remove() } },
    h("div", { class: "row between" }, h("h2", {}, "Keyboard"), h("button", { class: "button", on: { click: close } }, "Close")),
    h("div", { class: "help" }, HELP.map(([title, keys]) => h("section", {},
      h("h3", {}, title),
      h("dl", {}, keys.map(([key, what]) => [h("dt", {}, key.split(" ").map((k) => [h("kbd", {}, k), " "])), h("dd", {}, what)]))))));
  document.body.append(dialog);
  dialog.showModal();
}
