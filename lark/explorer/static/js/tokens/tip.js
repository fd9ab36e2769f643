// What the tooltip of a token shows: the token, its numbers, and the student's alternatives.

import { h } from "../dom.js";
import { count, number } from "../format.js";
import { hideTip, showTip } from "../parts.js";
import { load } from "../load.js";
import { shown } from "./layout.js";
import { MEASURES } from "./measures.js";

// Alternatives are loaded in parts, when a token of the part is looked at.
export function tokenTip(tokens, path) {
  let current = null;
  return async function show(i, element) {
    current = i;
    if (i === null) { hideTip(); return; }
    const part = Math.floor(i / tokens.part);
    const draw = (rows, note) => current === i && element.isConnected && showTip(element, content(tokens, i, rows, note));
    draw(null, tokens.alternatives ? "…" : null);
    if (!tokens.alternatives) return;
    try {
      const found = await load(`${path}/${part}`);
      const at = i - found.start;
      draw(found.ids[at].map((id, j) => ({ id, text: found.texts[id], p: found.p[at][j] })), null);
    } catch (error) {
      draw(null, error.message);
    }
  };
}

const quoted = (text) => h("code", { class: "token-text" }, text === "" ? "∅" : shown(text).replaceAll(" ", "␣"));

const alternative = (row, isOwn) => h("div", { class: `alternative${isOwn ? " own" : ""}` }, quoted(row.text), h("span", { class: "bar" }, h("i", { style: { width: `${100 * Math.min(1, row.p)}%` } })), h("span", { class: "num" }, number(row.p, 3)));

function content(tokens, i, rows, note) {
  const own = tokens.id[i];
  return h("div", { class: "token-tip", data: { token: i } },
    h("div", { class: "row between" }, quoted(tokens.pieces[tokens.piece[i]]), h("span", { class: "faint" }, `token ${count(i + 1)} of ${count(tokens.count)} · id ${own}`)),
    h("dl", { class: "kv" }, Object.entries(MEASURES).map(([key, measure]) => [h("dt", {}, measure.label), h("dd", { data: { measure: key } }, measure.form(measure.values(tokens)[i]))])),
    rows ? h("div", { class: "alternatives" }, h("div", { class: "faint" }, "The student's own choices"), rows.map((row) => alternative(row, row.id === own)),
      rows.some((row) => row.id === own) ? null : h("div", { class: "instead" }, "…", alternative({ text: tokens.pieces[tokens.piece[i]], p: tokens.probability[i] }, true))) : null,
    note ? h("div", { class: "faint" }, note) : null);
}
