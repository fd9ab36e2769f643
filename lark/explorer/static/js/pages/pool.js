// The pool: teachers, lengths, correctness, and the list of questions.

import { methodColour } from "../charts/base.js";
import { histogram } from "../charts/plots.js";
import { h, oneLine, replace, responsive, visible } from "../dom.js";
import { count, percent } from "../format.js";
import { list } from "../list.js";
import { isStatic, load } from "../load.js";
import { poolChoice, stateTag, tag } from "../parts.js";
import { address } from "../route.js";

export async function open(route) {
  const [print, view] = route.parts;
  const [values, { pools }] = await Promise.all([load(`pool/${print}/${view}`), load("overview")]);
  const questions = list({
    path: `questions/${print}/${view}`, label: "Questions", placeholder: "Search questions",
    more: isStatic ? ` questions of this export (the pool has ${count(values.questions)})` : "",
    filters: [
      ["tokens", "with tokens", "The student's tokens were kept, so that candidates can be compared token by token"],
      ["wrong", "wrong candidates", "At least one candidate is known to be wrong"],
      ["all_wrong", "none correct"],
      ["truncated", "truncated", "At least one candidate is cut at the student's maximum length"],
    ],
    open: (row) => address("question", [print, view, row.n]),
    columns: [
      { title: "Question", cell: (row, target) => h("div", { class: "tight question-cell" }, h("a", { href: target, class: "fill two-lines" }, oneLine(row.text)), h("span", { class: "faint small" }, h("code", {}, visible(row.id)), row.has_tokens ? [" ", tag("info", "tokens")] : null)) },
      { title: "Candidates", key: "candidates", num: true, cell: (row) => count(row.candidates) },
      { title: "Mean tokens", key: "tokens", num: true, cell: (row) => count(row.tokens) },
      { title: "Correct", key: "correct", num: true, cell: (row) => percent(row.correct) },
    ],
  });
  const counts = values.counts;
  const facts = [
    [count(values.questions), "questions"], [count(values.trajectories), "trajectories"], [count(values.teachers.length), "teachers"],
    [values.candidates ? range(values.candidates) : "–", "candidates per question"],
    [percent(values.all.correct, 1), "correct"],
    ...(values.all.tokens ? [[count(values.all.tokens.quantiles[2]), "tokens (median)"], [percent(values.all.truncated, 1), "truncated"]] : []),
  ];
  const body = h("div", { class: "stack" },
    h("div", { class: "page-head" },
      h("div", { class: "row between" }, h("div", { class: "row" }, h("h1", {}, visible(values.pool.name)), values.pool.state === "finished" ? null : stateTag(values.pool.state)),
        poolChoice("pool", pools, values.views, values.view)),
      h("p", { class: "muted" }, "Pool of candidate trajectories", typeof counts.verdicts === "string" && counts.verdicts ? `. Correct by ${visible(counts.verdicts)}.` : ".")),
    h("div", { class: "figures" }, facts.map(([value, label]) => h("div", { class: "figure" }, h("b", {}, value), h("span", {}, label)))),
    teachersCard(values),
    values.notes.map((text) => h("p", { class: "small muted" }, visible(text))),
    h("section", { class: "card flush" }, h("header", {}, h("h2", {}, "Questions"), h("p", {}, "open one to see why its trajectories were chosen")), questions.element));
  return { title: `Pool ${values.pool.name}`, body, keys: questions.keys };
}

const range = (spread) => (spread.min === spread.max ? count(spread.min) : `${count(spread.min)}–${count(spread.max)}`);

function teachersCard(values) {
  let chosen = null;
  const hasTokens = Boolean(values.bins);
  const plot = hasTokens ? responsive((width) => {
    const teacher = values.teachers.find((t) => t.teacher === chosen);
    return histogram(width, {
      edges: values.bins, counts: values.all.histogram, marked: teacher?.histogram, isLog: true, height: 250,
      label: "Lengths", title: "response tokens", colour: teacher ? "var(--accent)" : "var(--series)",
    });
  }) : null;
  const caption = h("p", { class: "small muted" });
  const body = h("tbody");
  const selections = values.selections.slice(0, 6);
  const total = Math.max(1, ...selections.flatMap((s) => s.teachers.map((n) => n / s.trajectories)));
  function draw() {
    caption.textContent = chosen ? `Lengths of ${visible(chosen)} among all` : "Lengths of all trajectories. Click a teacher to see its own.";
    replace(body, values.teachers.map((teacher, i) => h("tr", { class: `link${teacher.teacher === chosen ? " at" : ""}`, on: { click: () => pick(teacher.teacher) } },
      h("td", {}, h("button", { class: "row plain-button", "aria-pressed": String(teacher.teacher === chosen) }, visible(teacher.teacher))),
      h("td", { class: "num" }, count(teacher.trajectories)),
      hasTokens ? h("td", { class: "num" }, teacher.tokens ? count(teacher.tokens.quantiles[2]) : "–") : h("td", { class: "num" }, count(teacher.characters?.median)),
      h("td", { class: "num" }, percent(teacher.correct, 1)),
      hasTokens ? h("td", { class: "num" }, percent(teacher.truncated, 1)) : null,
      selections.map((selection) => {
        const part = selection.teachers[i] / selection.trajectories;
        return h("td", { class: "share-cell" }, h("div", { class: "weight" }, h("div", { class: "meter" }, h("i", { style: { width: `${(100 * part) / total}%`, background: methodColour(selection.ranking, i) } })), h("span", { class: "num small" }, percent(part))));
      }))));
    plot?.redraw();
  }
  const pick = (name) => { chosen = chosen === name ? null : name; draw(); };
  draw();
  return h("section", { class: "card" },
    h("header", {}, h("h2", {}, "Teachers"), selections.length ? h("p", {}, "right: each teacher's share of what was selected") : null),
    h("div", { class: "stack teachers" },
      h("div", { class: "table-scroll" }, h("table", {},
        h("thead", {}, h("tr", {}, h("th", {}, "Teacher"), h("th", { class: "num" }, "Trajectories"), h("th", { class: "num" }, hasTokens ? "Median tokens" : "Median characters"), h("th", { class: "num" }, "Correct"),
          hasTokens ? h("th", { class: "num" }, "Truncated") : null, selections.map((s) => h("th", { title: s.name }, visible(s.label), s.budget ? ` B=${s.budget}` : "")))), body)),
      plot ? h("div", { class: "tight" }, plot, caption) : null));
}

