// Answers: the problems of a benchmark under the base and a trained student.

import { h, oneLine, visible } from "../dom.js";
import { percent, plural } from "../format.js";
import { list } from "../list.js";
import { load, Problem } from "../load.js";
import { answerText } from "../math/text.js";
import { choice, segments, tag } from "../parts.js";
import { address, go } from "../route.js";
import { GRADERS, modelLabel, modelNote } from "./results.js";

const SAMPLES = "correct samples, and the share of seeds in which at least one is correct";

export const modelName = (model) => `${modelLabel(model)}${modelNote(model) ? ` (${modelNote(model)})` : ""}`;

export async function open(route) {
  const { benchmarks, graders } = await load("benchmarks");
  if (!benchmarks.length) throw new Problem("There are no graded answers in this store yet. A run's stage `evaluate` makes them.");
  const [group, first, second] = route.parts;
  const benchmark = benchmarks.find((b) => b.group === group) ?? benchmarks[0];
  const models = benchmark.models;
  const base = models.find((m) => m.id === first) ?? models.find((m) => m.base) ?? models[0];
  const trained = models.find((m) => m.id === second) ?? models.find((m) => !m.base && m.ranking === "lark" && m.student === base.student) ?? models.find((m) => m.id !== base.id) ?? base;
  const grader = graders.includes(route.query.grader) ? route.query.grader : graders[0];
  const parts = [benchmark.group, base.id, trained.id];
  if (route.parts.join() !== parts.join()) history.replaceState(null, "", address("answers", parts, route.query));
  const options = models.map((m) => [m.id, `${m.student}: ${modelName(m)}`]);
  const problems = list({
    path: `problems/${parts.join("/")}/${grader}`, label: "Problems", placeholder: "Search problems and answers",
    filters: [
      ["more", "more samples", "The second solves it with more of its samples than the first"],
      ["fewer", "fewer samples", "The second solves it with fewer of its samples than the first"],
      ["fixed", "fixed", "The first solves it in less than half of the seeds, the second in at least half"],
      ["broken", "broken", "The first solves it in at least half of the seeds, the second in less than half"],
      ["unsolved", "unsolved", "The second solves it in less than half of the seeds"],
      ["disagree", "graders disagree", "The graders disagree on a sample"],
      ["truncated", "truncated", "A sample was cut off at the length limit"],
      ["unboxed", "no box", "A sample has no \\boxed{} answer"],
    ],
    open: (row) => address("problem", [...parts, row.n], { grader }),
    columns: [
      { title: "Problem", isMain: true, cell: (row, target) => h("div", { class: "tight question-cell" }, h("a", { href: target, class: "fill two-lines" }, oneLine(row.text)), h("span", { class: "faint small row" }, h("code", {}, visible(row.id)), row.level === null ? null : `level ${row.level}`, row.disagree ? tag("warn", "graders disagree") : null, row.truncated ? tag("", "truncated") : null, row.unboxed ? tag("", "no box") : null)) },
      { title: "Answer", cell: (row) => h("span", { class: "answer-box", title: visible(row.answer) }, answerText(row.answer)) },
      { title: modelLabel(base), key: "before", num: true, hint: SAMPLES, cell: (row) => samples(row.before_correct, row.before_samples, row.before) },
      { title: trained.id === base.id ? "Same" : modelLabel(trained), key: "after", num: true, hint: SAMPLES, cell: (row) => samples(row.after_correct, row.after_samples, row.after) },
      { title: "Change", key: "change", hint: "change in correct samples", cell: change },
    ],
  });
  const move = (changes) => go("answers", changes.group ? [changes.group, base.id, trained.id] : [benchmark.group, changes.base ?? base.id, changes.trained ?? trained.id], { grader: changes.grader ?? grader });
  const body = h("div", { class: "stack" },
    h("div", { class: "page-head" }, h("h1", {}, "Answers"), h("p", { class: "muted" }, "What the student answers before and after training, problem by problem: correct samples of all samples (their share over all problems is pass@1), and the share of the decoding seeds in which at least one is correct (Acc@k).")),
    h("div", { class: "toolbar" },
      segments("Benchmark", benchmarks.map((b) => [b.group, visible(b.label)]), benchmark.group, (g) => move({ group: g })),
      choice("First", options, base.id, (id) => move({ base: id })), choice("Second", options, trained.id, (id) => move({ trained: id })),
      h("div", { class: "field" }, "Grader", segments("Grader", graders.map((g) => [g, g, GRADERS[g]]), grader, (g) => move({ grader: g })))),
    h("section", { class: "card flush" }, problems.element));
  return { title: `Answers to ${benchmark.label}`, body, keys: problems.keys };
}

function samples(correct, all, seeds) {
  return h("span", { class: "nowrap" }, `${correct}/${all}`, h("span", { class: "faint small" }, ` ${percent(seeds)} of seeds`));
}

// In samples where both have the same number of them, else in percent.
function change(row) {
  const isSame = row.before_samples === row.after_samples;
  const delta = isSame ? row.after_correct - row.before_correct : row.after_correct / row.after_samples - row.before_correct / row.before_samples;
  if (Math.abs(delta) < 1e-9) return h("span", { class: "faint" }, "=");
  const size = Math.abs(delta);
  return h("span", { class: `change nowrap ${delta > 0 ? "yes" : "no"}` }, `${delta > 0 ? "▲" : "▼"} ${isSame ? plural(size, "sample") : percent(size)}`);
}
