// The table of a question's candidates: scores and ranks under every method, marks of selections, weights as bars.

import { h, scroller, visible } from "../dom.js";
import { count, fixed, number } from "../format.js";
import { answerText } from "../math/text.js";
import { methodName, verdict } from "../parts.js";

const NARROW = 700;

// Whether a candidate's id already says whose it is.
export const isNamed = (c) => !c.teacher || String(c.id).includes(c.teacher);

export function candidateTable(values, state, found, { change, mark, compare }) {
  const weight = new Map(found ? found.chosen.map((c, i) => [c, found.weight[i]]) : []);
  const most = Math.max(1e-9, ...weight.values());
  const chosenBy = new Map();
  for (const selection of values.selections) {
    for (const { c } of selection.chosen) {
      const key = `${selection.ranking} ${c}`;
      chosenBy.set(key, [...(chosenBy.get(key) ?? []), selection]);
    }
  }
  const order = sorted(values, state);
  const head = (key, title, unit, props = {}) => {
    const isSorted = state.sort === key;
    const { isUp } = direction(values, key, state);
    const next = () => (values.scores[key] ? { sort: key, method: key, isTurned: isSorted && state.method === key ? !state.isTurned : false } : { sort: key, isTurned: isSorted ? !state.isTurned : false });
    return h("th", { scope: "col", "aria-sort": isSorted ? (isUp ? "ascending" : "descending") : null, ...props },
      h("button", { on: { click: () => change(next()) } }, title), unit ? h("span", { class: "unit" }, unit) : null);
  };
  const plainHead = (title, props) => h("th", { scope: "col", ...props }, title);
  const about = [
    { head: plainHead("Correct", { class: "middle", title: "by the rule of the pool stage" }), cell: (c) => h("td", { class: "middle" }, verdict(c.correct)) },
    { head: plainHead("Answer", { title: "in the last \\boxed{}" }), cell: (c) => h("td", {}, c.boxed === null ? h("span", { class: "faint" }, "–") : h("span", { class: "answer-box", title: visible(c.boxed) }, answerText(c.boxed))) },
    { head: head("tokens", "Tokens", null, { class: "num" }), cell: (c) => h("td", { class: "num nowrap" }, count(c.tokens), c.truncated ? h("span", { class: "faint", title: "cut at the student's maximum length" }, " ✂") : null) },
    ...(values.candidates.some((c) => c.loss !== null) ? [
      { head: head("loss", "Loss", "nats/token", { class: "num", title: "mean surprisal of its tokens" }), cell: (c) => h("td", { class: "num" }, fixed(c.loss, 3)) },
      { head: head("rho", "ρ̂", null, { class: "num", title: "sum of the residuals ‖π − e_y‖² over the sum of the surprisals" }), cell: (c) => h("td", { class: "num" }, fixed(c.rho, 3)) },
    ] : []),
  ];
  const methods = values.rankings.map((ranking) => ({
    key: ranking.key,
    head: head(ranking.key, methodName(ranking.label), ranking.higher ? null : "lower is better", { class: `num${ranking.key === state.method ? " active-method" : ""}`, title: visible(ranking.about) }),
    cell: (c) => scoreCell(values, state, ranking, c.c, chosenBy.get(`${ranking.key} ${c.c}`) ?? []),
  }));
  // On a phone, the method that the page is about comes first.
  const columns = innerWidth < NARROW ? [...methods.sort((a, b) => (b.key === state.method) - (a.key === state.method)), ...about] : [...about, ...methods];
  const rows = order.map((i) => {
    const c = values.candidates[i];
    const q = weight.get(i);
    const line = h("tr", { class: `link${state.at === i ? " at" : ""}`, data: { c: i } },
      whoCell(c, state, mark, compare),
      found && h("td", { class: "weight-cell" }, q === undefined ? null : h("div", { class: "weight", title: `weight q = ${q}` }, h("div", { class: "meter" }, h("i", { style: { width: `${(100 * q) / most}%` } })), h("span", { class: "num small weight-number" }, fixed(q, 3)))),
      columns.map((column) => column.cell(c)));
    line.addEventListener("click", (event) => { if (!event.target.closest("a, button") && !String(getSelection())) change({ at: i }); });
    return line;
  });
  const table = h("table", { class: "candidates", "aria-label": "Candidates and methods" },
    h("thead", {}, h("tr", {}, head("candidate", "Candidate", null, { class: "who" }), found && plainHead("Weight q", { title: "of the method, budget and weights above" }), columns.map((column) => column.head))),
    h("tbody", {}, rows));
  const box = scroller(table);
  table.order = order;
  return box;
}

function whoCell(c, state, mark, compare) {
  const place = state.marked.indexOf(c.c);
  return h("td", { class: "who" }, h("div", { class: "who-line" },
    h("button", { class: "pick-button", "aria-pressed": String(place >= 0), "aria-label": `Mark ${visible(c.id)} for comparison`, title: "Mark for comparison (x)", on: { click: () => mark(c.c) } }, place >= 0 ? "AB"[place] : ""),
    h("a", { class: "fill who-name", href: "#", title: `${visible(c.id)}${isNamed(c) ? "" : `, ${visible(c.teacher)}`}`, on: { click: (event) => { event.preventDefault(); compare(c.c); } } }, h("span", {}, visible(c.id)), isNamed(c) ? null : h("small", { class: "faint" }, visible(c.teacher)))));
}

function scoreCell(values, state, ranking, i, by) {
  const rank = values.ranks[ranking.key][i];
  const dot = by.length ? h("span", { class: "chosen-dot", title: `selected: ${by.map((s) => `${s.amount}, ${s.weighting}`).join("; ")}` }, "●") : null;
  return h("td", { class: `num${ranking.key === state.method ? " active-method" : ""}` },
    h("span", { class: `score${rank && rank <= state.budget ? " top" : ""}` }, dot, number(values.scores[ranking.key][i], 3), h("i", {}, rank ? `#${rank}` : "–")));
}

function direction(values, key, state) {
  const ranking = values.rankings.find((r) => r.key === key);
  const isUp = ranking ? !ranking.higher : key === "candidate";
  return { ranking, isUp: state.isTurned ? !isUp : isUp };
}

// Row numbers in the chosen order: by rank of a method, or by a column. Candidates without a value are last.
function sorted(values, state) {
  const all = values.candidates.map((c) => c.c);
  const { ranking } = direction(values, state.sort, state);
  if (ranking) {
    const rank = values.ranks[ranking.key];
    all.sort((a, b) => (rank[a] || Infinity) - (rank[b] || Infinity) || a - b);
  } else if (state.sort === "candidate") {
    all.sort((a, b) => values.place[a] - values.place[b]);
  } else {
    const value = (i) => values.candidates[i][state.sort] ?? -Infinity;
    all.sort((a, b) => value(b) - value(a) || a - b);
  }
  return state.isTurned ? all.reverse() : all;
}
