// The teachers of a pool: counts, lengths, correctness, truncation, and their shares of what each method selected.

import { methodColour } from "../charts/base.js";
import { histogram, strips } from "../charts/plots.js";
import { h, replace, responsive, scroller, visible } from "../dom.js";
import { count, percent } from "../format.js";
import { load } from "../load.js";
import { methodName, segments, teacherName } from "../parts.js";

export function teachersCard(values, where) {
  const state = { teacher: null, budget: values.budgets.find((b) => b.key === "B-3")?.key ?? values.budgets[0]?.key ?? null };
  let selections = [];
  const hasTokens = Boolean(values.bins);
  const table = h("div");
  const note = h("p", { class: "small muted" });
  const pick = (name) => { state.teacher = state.teacher === name ? null : name; draw(); };
  const plots = hasTokens ? lengthPlots(values, state, pick) : null;

  async function loadShares() {
    if (state.budget === null) return;
    const mine = state.budget;
    try {
      const found = await load(`shares/${where}/${mine}`);
      if (mine !== state.budget) return;
      selections = found.selections;
      note.textContent = visible(found.notes.join(" "));
    } catch (error) {
      note.textContent = visible(error.message);
    }
    draw();
  }

  function draw() {
    replace(table, teacherTable(values, state, selections, pick));
    plots?.redraw();
  }
  draw();
  loadShares();
  return h("section", { class: "card" },
    h("header", {}, h("h2", {}, "Teachers"), values.budgets.length ? h("div", { class: "field" }, "Selected at",
      segments("Budget", values.budgets.map((b) => [b.key, visible(b.label)]), state.budget, (budget) => { state.budget = budget; loadShares(); })) : null),
    h("div", { class: "stack teachers" }, h("div", { class: "tight" }, h("div", { class: "tall" }, table),
      values.budgets.length ? h("p", { class: "small muted" }, "Right: each teacher's share of the trajectories that a method selected. The mark is its share of the pool.") : null, note), plots?.element ?? null));
}

function teacherTable(values, state, selections, pick) {
  const most = Math.max(0.01, ...selections.flatMap((s) => s.teachers.map((n) => n / Math.max(1, s.trajectories))), ...values.teachers.map((t) => t.trajectories / Math.max(1, values.trajectories)));
  const length = (t) => (values.bins ? count(t.tokens?.quantiles[2]) : count(t.characters?.median));
  return scroller(h("table", { "aria-label": "Teachers" },
    h("thead", {}, h("tr", {}, h("th", { class: "stick" }, "Teacher"), h("th", { class: "num" }, "Trajectories"), h("th", { class: "num" }, values.bins ? "Median tokens" : "Median characters"), h("th", { class: "num" }, "Correct"),
      values.bins ? h("th", { class: "num", title: "cut at the student's maximum length" }, "Truncated") : null,
      selections.map((s) => h("th", { title: visible(s.name) }, methodName(s.label))))),
    h("tbody", {}, values.teachers.map((teacher, t) => h("tr", { class: `link${teacher.teacher === state.teacher ? " at" : ""}`, on: { click: () => pick(teacher.teacher) } },
      h("td", { class: "stick" }, h("button", { class: "plain-button teacher-name", "aria-pressed": String(teacher.teacher === state.teacher), title: `${teacherName(teacher.teacher)}: show its lengths` }, teacherName(teacher.teacher))),
      h("td", { class: "num" }, count(teacher.trajectories)),
      h("td", { class: "num" }, length(teacher)),
      h("td", { class: "num" }, percent(teacher.correct, 1)),
      values.bins ? h("td", { class: "num" }, percent(teacher.truncated, 1)) : null,
      selections.map((s, i) => shareCell(s.teachers[t] / Math.max(1, s.trajectories), teacher.trajectories / Math.max(1, values.trajectories), most, methodColour(s.ranking, i))))))));
}

function shareCell(part, usual, most, colour) {
  return h("td", { class: "share-cell" }, h("div", { class: "weight", title: `${percent(part, 1)} of what was selected; ${percent(usual, 1)} of the pool` },
    h("div", { class: "meter marked" }, h("i", { style: { width: `${(100 * part) / most}%`, background: colour } }), h("s", { style: { left: `${(100 * usual) / most}%` } })),
    h("span", { class: "num small" }, percent(part))));
}

function lengthPlots(values, state, pick) {
  const chosen = () => values.teachers.find((t) => t.teacher === state.teacher);
  const all = responsive((width) => histogram(width, {
    edges: values.bins, counts: values.all.histogram, marked: chosen()?.histogram, isLog: true, height: Math.min(420, Math.max(220, 24 * values.teachers.length + 46)),
    label: "Lengths", title: "response tokens", titleY: "trajectories", colour: chosen() ? "var(--accent)" : "var(--series)",
  }));
  const each = responsive((width) => strips(width, {
    rows: values.teachers.map((t) => ({ name: teacherName(t.teacher), quantiles: t.tokens?.quantiles, colour: t.teacher === state.teacher ? "var(--accent)" : null, pick: () => pick(t.teacher) })),
    label: "Lengths by teacher", title: "response tokens", isLog: true,
  }));
  const caption = h("p", { class: "small muted" });
  const redraw = () => {
    caption.textContent = state.teacher ? `In front: ${teacherName(state.teacher)}; behind: all trajectories.` : "All trajectories. Choose a teacher to see its own.";
    all.redraw();
    each.redraw();
  };
  const element = h("div", { class: "grid two" },
    h("div", { class: "tight" }, h("h3", {}, "Lengths"), all, caption),
    h("div", { class: "tight" }, h("h3", {}, "Lengths by teacher"), h("div", { class: "tall" }, each), h("p", { class: "small muted" }, "Line: 5–95%; bar: middle half; mark: median.")));
  return { element, redraw };
}
