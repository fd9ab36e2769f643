// The table of results: accuracy of every model on every benchmark, with intervals over problems.

import { methodColour } from "../charts/base.js";
import { intervals } from "../charts/plots.js";
import { h, replace, responsive, scroller, visible } from "../dom.js";
import { fixed } from "../format.js";
import { card, methodName, segments } from "../parts.js";
import { address } from "../route.js";

export const modelLabel = (model) => methodName(model.label);
export const modelNote = (model) => model.base ? "" : [model.amount, model.weighting].filter(Boolean).map(visible).join(", ");

export const GRADERS = { paper: "The paper's rules: the last \\boxed{} answer, compared as text (Appendix C.4)", verify: "math-verify: compares answers as mathematics" };

const DRAWN = 16;

const READINGS = {
  Acc: "share of problems that at least one of a seed's k samples solves; mean ± standard deviation over decoding seeds, and the 95% interval over problems",
  "pass@1": "share of samples that are correct, with the 95% interval over problems (bootstrap)",
  pass: "probability that k of a problem's samples contain a correct one (unbiased estimate from the samples of all seeds)",
  maj: "how often the most frequent of a seed's k answers is correct; ties count in part",
};
const meaning = (name) => READINGS[name] ?? READINGS[name.split("@")[0]];
const readingOf = (cell, name) => cell && (cell.readings[name] ?? (name.startsWith("Acc@") ? cell : null));

export function resultsCard(values) {
  if (!values.models.length) return values.notes.length ? card("Results", null, h("p", { class: "muted" }, visible(values.notes.join(" ")))) : null;
  let grader = values.graders[0];
  const some = Object.values(values.models[0].cells)[0][grader];
  const names = [`Acc@${some.samples}`, ...new Set(Object.keys(some.readings))];
  let name = names[0];
  const students = [...new Set(values.models.map((model) => model.student))];
  const box = h("div");
  const plot = responsive((width) => intervals(width, {
    label: "Accuracy with 95% intervals", title: "percent, with the 95% interval", domain: [0, 100],
    groups: values.tasks.map((task) => ({
      name: visible(task.label),
      rows: values.models.slice(0, DRAWN).filter((model) => readingOf(model.cells[task.group]?.[grader], name)).map((model, i) => {
        const cell = model.cells[task.group][grader];
        const reading = readingOf(cell, name);
        const [low, high] = reading.interval ?? [reading.mean, reading.mean];
        const bounds = reading.interval ? ` (${fixed(low, 1)} to ${fixed(high, 1)})` : "";
        const seeds = reading === cell ? `, by seed ${cell.by_seed.map((v) => fixed(v, 1)).join(", ")}` : "";
        return {
          label: `${students.length > 1 ? `${visible(model.student)} ` : ""}${modelLabel(model)}${model.budget ? ` B=${model.budget}` : ""}`, mean: reading.mean, low, high,
          colour: model.base ? "var(--faint)" : methodColour(model.ranking, i),
          tip: `${modelLabel(model)} ${modelNote(model)}: ${fixed(reading.mean, 2)}${bounds}${seeds}`,
        };
      }),
    })),
  }));
  const caption = h("p", {});
  const draw = () => {
    replace(box, table(values, grader, name, students));
    const beside = name.startsWith("Acc@") ? `. Below it, pass@1: ${READINGS["pass@1"]}` : "";
    replace(caption, `${name} in percent: ${meaning(name)}${beside}`);
    plot.redraw();
  };
  draw();
  return h("section", { class: "card" },
    h("header", {}, h("div", { class: "row" }, h("h2", {}, "Results"), caption),
      h("div", { class: "field" }, "Metric", segments("Metric", names.map((option) => [option, option, meaning(option)]), name, (option) => { name = option; draw(); })),
      h("div", { class: "field" }, "Grader", segments("Grader", values.graders.map((name) => [name, name, GRADERS[name]]), grader, (name) => { grader = name; draw(); }))),
    h("div", { class: "grid wide-left" }, scroller(box), plot),
    values.models.length > DRAWN ? h("p", { class: "small muted" }, `The chart shows the first ${DRAWN} of ${values.models.length} models.`) : null,
    values.notes.map((note) => h("p", { class: "small muted" }, visible(note))));
}

const bounds = (reading) => `${fixed(reading.interval[0], 1)}–${fixed(reading.interval[1], 1)}`;
const average = (readings) => readings.reduce((sum, reading) => sum + reading.mean, 0) / readings.length;

function averageReading(cells) {
  const readings = cells.map((cell) => cell.readings["pass@1"]).filter(Boolean);
  return readings.length === cells.length ? { mean: average(readings), interval: null } : null;
}

// pass@1 below Acc@k, which can rise while single samples get worse.
function single(name, reading) {
  if (!name.startsWith("Acc@") || !reading) return null;
  return h("div", { class: "muted small" }, `pass@1 ${fixed(reading.mean, 2)}`, reading.interval ? h("span", { class: "faint interval" }, ` ${bounds(reading)}`) : null);
}

function table(values, grader, name, students) {
  const best = (student, task) => Math.max(...values.models.filter((m) => m.student === student).map((m) => readingOf(m.cells[task.group]?.[grader], name)?.mean ?? -1));
  const base = (student) => values.models.find((model) => model.base && model.student === student);
  return h("table", { class: "results" },
    h("thead", {}, h("tr", {}, students.length > 1 ? h("th", {}, "Student") : null, h("th", {}, "Method"), h("th", { class: "num" }, "B"),
      values.tasks.map((task) => h("th", { class: "num" }, visible(task.label))), h("th", { class: "num" }, "Average"))),
    h("tbody", {}, values.models.map((model) => {
      const cells = values.tasks.map((task) => model.cells[task.group]?.[grader]);
      const readings = cells.map((cell) => readingOf(cell, name));
      const known = readings.filter(Boolean);
      const first = base(model.student);
      return h("tr", {},
        students.length > 1 ? h("td", {}, visible(model.student)) : null,
        h("td", { class: "nowrap" }, model.checkpoint ? h("a", { href: address("artifact", ["checkpoint", model.checkpoint]), title: modelNote(model) }, modelLabel(model)) : modelLabel(model)),
        h("td", { class: "num nowrap" }, model.base ? "–" : model.budget ?? visible(model.amount ?? "–")),
        cells.map((cell, i) => {
          const task = values.tasks[i];
          const reading = readings[i];
          if (!reading) return h("td", { class: "num faint" }, "–");
          const target = first?.cells[task.group] && !model.base ? address("answers", [task.group, first.id, model.id]) : null;
          const text = [h(reading.mean === best(model.student, task) ? "b" : "span", {}, fixed(reading.mean, 2)), (reading.std ?? null) === null ? null : h("span", { class: "muted small" }, ` ±${fixed(reading.std, 1)}`)];
          return h("td", { class: "num nowrap", title: `${cell.problems} problems × ${cell.by_seed.length} seeds × ${cell.samples} samples; truncated ${fixed(cell.truncated, 1)}%, without a box ${fixed(cell.unboxed, 1)}%` },
            target ? h("a", { href: target, class: "fill", title: "See the answers, problem by problem" }, text) : text,
            reading.interval ? h("div", { class: "faint interval" }, bounds(reading)) : null,
            single(name, cell.readings["pass@1"]));
        }),
        h("td", { class: "num nowrap" }, known.length === cells.length ? [h("b", {}, fixed(average(known), 2)), single(name, averageReading(cells))] : "–"));
    })));
}
