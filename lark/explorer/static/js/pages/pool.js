// The pool: teachers, lengths, correctness, and the list of questions.

import { h, oneLine, visible } from "../dom.js";
import { count, percent } from "../format.js";
import { list } from "../list.js";
import { isStatic, load } from "../load.js";
import { poolChoice, stateTag, tag } from "../parts.js";
import { address, follow } from "../route.js";
import { taughtCard } from "./taught.js";
import { teachersCard } from "./teachers.js";

export async function open(route) {
  const [print, asked] = route.parts;
  const [values, { pools }] = await Promise.all([load(`pool/${print}/${asked}`), load("overview")]);
  const view = follow(asked, values.view.id);
  const questions = list({
    path: `questions/${print}/${view}`, label: "Questions", placeholder: "Search questions",
    more: isStatic ? ` questions of this export (the pool has ${count(values.questions)})` : "",
    filters: [
      ["tokens", "with tokens", "The student's tokens were kept, so that candidates can be compared token by token"],
      ["wrong", "wrong candidates", "At least one candidate is known to be wrong"],
      ["all_wrong", "none correct", "Every candidate with a known verdict is wrong"],
      ["truncated", "truncated", "At least one candidate is cut at the student's maximum length"],
    ],
    open: (row) => address("question", [print, view, row.n]),
    columns: [
      { title: "Question", isMain: true, cell: (row, target) => h("div", { class: "tight question-cell" }, h("a", { href: target, class: "fill two-lines" }, oneLine(row.text)), h("span", { class: "faint small" }, h("code", {}, visible(row.id)), row.has_tokens ? [" ", tag("info", "tokens")] : null)) },
      { title: "Candidates", key: "candidates", num: true, cell: (row) => count(row.candidates) },
      { title: "Mean tokens", key: "tokens", num: true, hint: "mean response tokens of its candidates", cell: (row) => count(row.tokens) },
      { title: "Correct", key: "correct", num: true, hint: "share of its candidates with a known verdict", cell: (row) => percent(row.correct) },
      { title: "Truncated", key: "truncated", num: true, hint: "share of its candidates that are cut at the student's maximum length", cell: (row) => percent(row.truncated) },
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
    teachersCard(values, `${print}/${view}`),
    taughtCard(values.taught),
    values.notes.map((text) => h("p", { class: "small muted" }, visible(text))),
    h("section", { class: "card flush" }, h("header", {}, h("h2", {}, "Questions"), h("p", {}, "open one to see why its trajectories were chosen")), questions.element));
  return { title: `Pool ${values.pool.name}`, body, keys: questions.keys };
}

const range = (spread) => (spread.min === spread.max ? count(spread.min) : `${count(spread.min)}–${count(spread.max)}`);
