// Two candidates in numbers: what each method thinks of them, and how the student sees their tokens.

import { h, scroller, visible } from "../dom.js";
import { count, fixed, number, percent } from "../format.js";
import { card, methodName, tag } from "../parts.js";

export function opinions(question, sides, tokens) {
  if (!question.rankings.length && tokens.every((side) => side instanceof Error)) return null; // no student has seen them
  return h("div", { class: "grid wide-left" }, methodsCard(question, sides), statisticsCard(question, sides, tokens));
}

function methodsCard(question, sides) {
  if (!question.rankings.length) return null;
  const head = (title, props) => h("th", { scope: "col", ...props }, title);
  const rows = question.rankings.map((ranking) => {
    const [ranks, scores] = [question.ranks[ranking.key], question.scores[ranking.key]];
    const [a, b] = sides.map((c) => ranks[c] || Infinity);
    const better = a < b ? "A" : b < a ? "B" : null;
    return h("tr", {},
      h("th", { scope: "row", title: visible(ranking.about) }, methodName(ranking.label)),
      sides.map((c, i) => [
        h("td", { class: "num" }, number(scores[c], 4)),
        h("td", { class: "num nowrap" }, h("span", { class: better === "AB"[i] ? "better" : "muted" }, ranks[c] ? `#${ranks[c]}` : "–"), picked(question, ranking.key, c)),
      ]),
      h("td", { class: "middle" }, better ? h("b", {}, better) : h("span", { class: "faint" }, "–")));
  });
  return h("section", { class: "card flush" }, h("header", {}, h("h2", {}, "What each method thinks"), h("p", {}, `rank among ${count(question.candidates.length)} candidates; ● selected`)),
    scroller(h("table", { class: "opinions", "aria-label": "What each method thinks" },
      h("thead", {}, h("tr", {}, head("Method"), head("Score of A", { class: "num" }), head("Rank of A", { class: "num" }), head("Score of B", { class: "num" }), head("Rank of B", { class: "num" }), head("Prefers", { class: "middle" }))),
      h("tbody", {}, rows))));
}

function picked(question, key, c) {
  const found = question.selections.filter((s) => s.ranking === key).flatMap((s) => s.chosen.filter((row) => row.c === c).map((row) => `${s.amount}, ${s.weighting}: q = ${fixed(row.weight, 4)}`));
  return found.length ? h("span", { class: "chosen-dot", title: `selected: ${found.join("; ")}` }, " ●") : null;
}

const mean = (values) => (values.length ? values.reduce((sum, v) => sum + v, 0) / values.length : null);
const share = (values, test) => (values.length ? values.filter(test).length / values.length : null);

function statisticsCard(question, sides, tokens) {
  const candidates = sides.map((c) => question.candidates[c]);
  const of = (compute) => tokens.map((side) => (side instanceof Error || !side.count ? null : compute(side)));
  const rows = [
    ["Tokens", "response tokens under the student's tokenizer", candidates.map((c) => count(c.tokens))],
    ["Loss", "mean surprisal, nats per token", candidates.map((c) => fixed(c.loss, 3))],
    ["ρ̂", "residuals over surprisals", candidates.map((c) => fixed(c.rho, 3))],
    ["First choice", "tokens that the student ranks first", of((t) => share(t.rank, (r) => r === 1)).map((v) => percent(v, 1))],
    ["Unlikely", "tokens with a probability below 1%", of((t) => share(t.probability, (p) => p < 0.01)).map((v) => percent(v, 1))],
    ["Entropy", "mean, nats", of((t) => mean(t.entropy.filter((v) => v !== null))).map((v) => fixed(v, 3))],
  ];
  return card("Under the student's eyes", null, h("table", { class: "opinions", "aria-label": "Under the student's eyes" },
    h("thead", {}, h("tr", {}, h("th", {}, ""), h("th", { class: "num" }, "A"), h("th", { class: "num" }, "B"))),
    h("tbody", {}, rows.map(([title, note, cells]) => h("tr", {}, h("th", { scope: "row" }, title, h("span", { class: "unit" }, note)), cells.map((cell) => h("td", { class: "num" }, cell)))))),
  candidates.some((c) => c.truncated) ? h("p", { class: "small" }, tag("warn", "truncated"), ` The student sees only the first ${candidates.map((c, i) => (c.truncated ? `${count(c.tokens)} tokens of ${"AB"[i]}` : null)).filter(Boolean).join(" and ")}: the rest exceeds its maximum length.`) : null);
}
