// One problem: the samples of two students, seed by seed, with the extracted answers and both graders' verdicts.

import { h, oneLine, replace, visible } from "../dom.js";
import { count } from "../format.js";
import { load } from "../load.js";
import { answerText, mathText, plainText } from "../math/text.js";
import { problemCard, segments, tag } from "../parts.js";
import { address, go } from "../route.js";
import { modelName } from "./answers.js";

export async function open(route) {
  const [group, first, second, number] = route.parts;
  const n = Number(number);
  const values = await load(`problem/${group}/${first}/${second}/${n}`);
  const parts = [group, first, second];
  const grader = route.query.grader === "verify" ? "verify" : "paper";
  let isMath = true;
  const step = (to) => { if (to !== null) go("problem", [...parts, to], route.query); };
  const sides = h("div", { class: "sides" });
  const draw = () => replace(sides, values.sides.map((side) => h("section", { class: "card" },
    h("header", {}, h("h2", {}, visible(modelName(side))), h("p", {}, solved(side, grader))),
    seeds(side).map(([seed, samples]) => [
      h("div", { class: "seed-head" }, `seed ${seed}`, samples.some((s) => s[grader]) ? tag("good", "✓ solved") : tag("", "✗ not solved")),
      samples.map((sample) => sampleRow(group, side, sample, () => isMath)),
    ]))));
  draw();
  const back = address("answers", parts, route.query);
  const body = h("div", { class: "stack" },
    h("div", { class: "page-head" },
      h("div", { class: "row between" },
        h("div", { class: "crumbs" }, h("a", { href: back }, "Answers"), h("span", {}, "/"), h("span", {}, visible(values.task)), h("span", {}, "/"), h("code", {}, visible(values.id)), h("span", {}, `${n + 1} of ${values.count}`)),
        h("div", { class: "row" }, segments("Mathematics", [["math", "Rendered"], ["raw", "Raw LaTeX"]], "math", (key) => { isMath = key === "math"; draw(); }),
          h("button", { class: "button", disabled: values.previous === null, "aria-label": "Previous problem", on: { click: () => step(values.previous) } }, "←"),
          h("button", { class: "button", disabled: values.next === null, "aria-label": "Next problem", on: { click: () => step(values.next) } }, "→"))),
      h("h1", { class: "sr" }, `Problem ${values.id}`),
      h("section", { class: "card" }, h("div", { class: "prose question-text" }, mathText(values.text)),
        h("p", { class: "muted answer-line" }, "Answer ", h("span", { class: "answer-box" }, answerText(values.answer)), values.level === null ? null : [" ", tag("", `level ${values.level}`)]))),
    sides);
  return { title: `Problem ${values.id}`, body, keys: { "[": () => step(values.previous), "]": () => step(values.next), Escape: () => { location.hash = back; } } };
}

function seeds(side) {
  const found = new Map();
  for (const sample of side.samples) found.set(sample.seed, [...(found.get(sample.seed) ?? []), sample]);
  return [...found];
}

function solved(side, grader) {
  const all = seeds(side);
  return `${side.samples.filter((s) => s[grader]).length} of ${side.samples.length} samples correct, ${all.filter(([, samples]) => samples.some((s) => s[grader])).length} of ${all.length} seeds`;
}

const mark = (name, correct) => h("span", { class: `tag ${correct ? "good" : "bad"}`, title: `grader ${name}: ${correct ? "correct" : "wrong"}` }, correct ? "✓" : "✗", ` ${name}`);

function sampleRow(group, side, sample, isMath) {
  const text = h("div", { class: "prose" }, h("span", { class: "faint" }, "Loading…"));
  const row = h("details", { class: "sample" },
    h("summary", {}, h("span", { class: "faint" }, `#${sample.sample + 1}`),
      sample.answer === null ? tag("warn", "no box") : h("span", { class: "answer-box", title: visible(sample.answer) }, answerText(sample.answer)),
      mark("paper", sample.paper), mark("verify", sample.verify), sample.paper === sample.verify ? null : tag("warn", "graders disagree"),
      sample.truncated ? tag("warn", "truncated") : null, h("span", { class: "faint small" }, `${count(sample.tokens)} tokens`),
      h("span", { class: "ending small muted" }, h("bdi", {}, oneLine(sample.ending)))),
    sample.answer_verify !== null && sample.answer_verify !== sample.answer ? h("p", { class: "small muted" }, `The grader verify reads: ${visible(sample.answer_verify)}`) : null,
    text);
  row.addEventListener("toggle", async () => {
    if (!row.open) return;
    try {
      const values = await load(`sample/${group}/${side.id}/${sample.i}`);
      replace(text, (isMath() ? mathText : plainText)(values.text));
    } catch (error) {
      replace(text, problemCard(error));
    }
  });
  return row;
}
