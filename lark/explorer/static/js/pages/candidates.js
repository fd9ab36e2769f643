// The table of a question's candidates: scores and ranks under every method, marks of selections, weights as bars.

import { h, visible } from "../dom.js";
import { count, fixed, number } from "../format.js";
import { answerText } from "../math/text.js";
import { verdict } from "../parts.js";

// Whether a candidate's id already says whose it is.
export const isNamed = (c) => !c.teacher || String(c.id).includes(c.teacher);

export function candidateTable(values, state, found, { change, mark, compare }) {
  const weight = new Map(found ? found.chosen.map((c, i) => [c, found.weight[i]]) : []);
  const most = Math.max(1e-9, ...weight.values());
  const chosenBy = new Map();
  for (const selection of values.selections) {
    for (const { c } of selection.chosen) {
      if (!chosenBy.has(`${selection.ranking} ${c}`)) chosenBy.set(`${selection.ranking} ${c}`, []);
      chosenBy.get(`${selection.ranking} ${c}`).push(selection);
    }
  }
  const order = sorted(values, state);
  const hasStatistics = values.candidates.some((c) => c.loss !== null);
  const columns = [
    { key: "tokens", title: "Tokens", cell: (c) => [count(c.tokens), c.truncated ? h("span", { class: "faint", title: "cut at the student's maximum length" }, " ✂") : null] },
    ...(hasStatistics ? [
      { key: "loss", title: "Loss", hint: "mean surprisal in nats per token", cell: (c) => fixed(c.loss, 3) },
      { key: "rho", title: "ρ̂", hint: "residual over surprisal", cell: (c) => fixed(c.rho, 3) },
    ] : []),
  ];
  const head = (key, title, props = {}) => {
    const isSorted = state.sort === key;
    const { isUp } = direction(values, key, state);
    return h("th", { scope: "col", "aria-sort": isSorted ? (isUp ? "ascending" : "descending") : null, ...props },
      h("button", { on: { click: () => change(values.scores[key] ? { sort: key, method: key, isTurned: isSorted && state.method === key ? !state.isTurned : false } : { sort: key, isTurned: isSorted ? !state.isTurned : false }) } }, title));
  };
  const rows = order.map((i) => {
    const c = values.candidates[i];
    const q = weight.get(i);
    const line = h("tr", { class: `link${state.at === i ? " at" : ""}`, data: { c: i } },
      h("td", { class: "who" }, h("span", { class: "row nowrap" },
        h("button", { class: "pick-button", "aria-pressed": String(state.marked.includes(i)), "aria-label": `Mark ${c.id} for comparison`, title: "Mark for comparison (x)", on: { click: () => mark(i) } }, state.marked.includes(i) ? "AB"[state.marked.indexOf(i)] : ""),
        h("a", { class: "fill", href: "#", on: { click: (event) => { event.preventDefault(); compare(i); } } }, visible(c.id)), isNamed(c) ? null : h("span", { class: "faint small" }, visible(c.teacher)))),
      h("td", { class: "weight-cell" }, q === undefined ? null : h("div", { class: "weight", title: `weight q = ${q}` }, h("div", { class: "meter" }, h("i", { style: { width: `${(100 * q) / most}%` } })), h("span", { class: "num small weight-number" }, fixed(q, 3)))),
      h("td", { class: "num" }, verdict(c.correct)),
      h("td", {}, c.boxed === null ? h("span", { class: "faint" }, "–") : h("span", { class: "answer-box", title: visible(c.boxed) }, answerText(c.boxed))),
      columns.map((column) => h("td", { class: "num" }, column.cell(c))),
      values.rankings.map((ranking) => {
        const rank = values.ranks[ranking.key][i];
        const by = chosenBy.get(`${ranking.key} ${i}`) ?? [];
        return h("td", { class: `num${ranking.key === state.method ? " active-method" : ""}` }, h("span", { class: `score${rank && rank <= state.budget ? " top" : ""}` },
          by.length ? h("span", { class: "chosen-dot", title: `selected: ${by.map((s) => `${s.budget ? `B=${s.budget}` : "budget across questions"}, ${s.weighting}`).join("; ")}` }, "●") : null,
          number(values.scores[ranking.key][i], 3), h("i", {}, rank ? `#${rank}` : "–")));
      }));
    line.addEventListener("click", (event) => { if (!event.target.closest("a, button")) change({ at: i }); });
    return line;
  });
  const table = h("table", { class: "candidates", "aria-label": "Candidates and methods" },
    h("thead", {}, h("tr", {},
      head("candidate", "Candidate", { class: "who" }), h("th", { scope: "col", title: "as computed by the slider above" }, "Weight q"), h("th", { class: "num", scope: "col", title: "Correct" }, "✓"), h("th", { scope: "col" }, "Answer"),
      columns.map((column) => head(column.key, column.title, { class: "num", title: column.hint })),
      values.rankings.map((ranking) => head(ranking.key, ranking.label.replace(/ (max|min)$/, ""), { class: `num${ranking.key === state.method ? " active-method" : ""}`, title: ranking.higher ? "higher is better" : "lower is better" })))),
    h("tbody", {}, rows));
  table.order = order;
  return h("div", { class: "table-scroll" }, table);
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
