// The overview: what is being made, results, training curves, runs and artifacts.

import { h, replace, said, visible } from "../dom.js";
import { count, duration, plural, when } from "../format.js";
import { list } from "../list.js";
import { isStatic, load, Problem } from "../load.js";
import { artifactLink, card, fingerprint, later, stateTag, tag } from "../parts.js";
import { address } from "../route.js";
import { resultsCard } from "./results.js";
import { runList, runningCard } from "./runs.js";
import { curvesCard } from "./training.js";

const STAGES = [["pool", "Pool", "trajectories of teachers"], ["scores", "Scores", "the student's forward pass"], ["selection", "Selections", "chosen and weighted"], ["checkpoint", "Checkpoints", "trained students"], ["metrics", "Evaluations", "graded benchmarks"]];

export async function open() {
  let values = await load("overview");
  const [status, flow, line] = [h("div", { class: "stack" }), h("div"), h("p", { class: "muted" })];
  const runs = isStatic ? null : runList();
  const artifacts = list({
    path: "artifacts", prefix: "a", label: "Artifacts", placeholder: "Search artifacts", empty: "This store is empty.",
    filters: () => [
      ...["running", "failed", "damaged", "interrupted", "unreadable"].map((state) => [`state:${state}`, state]),
      ...values.kinds.map(({ kind }) => [`kind:${kind}`, kind]),
    ],
    open: (row) => address("artifact", [row.kind, row.fingerprint]),
    columns: [
      { title: "Kind", cell: (row) => row.kind },
      { title: "Name", isMain: true, cell: (row, target) => [h("a", { href: target }, visible(row.name)), " ", fingerprint(row.fingerprint)] },
      { title: "State", cell: (row) => stateTag(row.state) },
      { title: "Made", key: "started", cell: (row) => h("span", { class: "nowrap", title: row.started }, when(row.started)) },
      { title: "Took", key: "seconds", num: true, cell: (row) => h("span", { class: "nowrap" }, duration(row.seconds)) },
      { title: "Used by", key: "users", num: true, hint: "artifacts that were made from it", cell: (row) => row.users || h("span", { class: "faint" }, "–") },
    ],
  });

  function draw() {
    replace(status, values.runs.length || values.running.length ? runningCard(values) : null, values.failed.length ? failedCard(values.failed) : null);
    replace(flow, flowCard(values));
    replace(line, said(summary(values)));
  }
  draw();
  const [results, curves] = [h("div"), h("div")];
  let training = null;
  const drawResults = () => replace(results, later(load("results"), resultsCard));
  const drawCurves = () => replace(curves, later(load("curves"), (found) => { training = curvesCard(found); return training?.element; }));
  drawResults();
  drawCurves();
  const finished = (kind) => values.kinds.find((k) => k.kind === kind)?.finished ?? 0;
  const poll = isStatic ? null : repeat(async () => {
    const before = signature(values);
    const [graded, trained] = [finished("metrics"), values.running.filter((r) => r.kind === "checkpoint").length];
    values = await load("overview");
    draw();
    const now = values.running.filter((r) => r.kind === "checkpoint").length;
    if (finished("metrics") !== graded) drawResults();
    if (now !== trained || (now && !training)) drawCurves();
    else if (now) training.update();
    if (signature(values) !== before) {
      artifacts.refresh();
      runs.refresh();
    }
    return pace(values);
  }, pace(values), (error) => replace(line, said(`This page is not up to date. ${error instanceof Problem ? error.message : ""}`)));

  const body = h("div", { class: "stack" },
    h("div", { class: "page-head" },
      h("h1", {}, visible(values.store)),
      line),
    status, flow,
    results, curves,
    runs && h("section", { class: "card flush" }, h("header", {}, h("h2", {}, "Runs"), h("p", {}, "commands that wrote to this store")), runs.element),
    h("section", { class: "card flush" }, h("header", {}, h("h2", {}, "Artifacts"), h("p", {}, "results on disk, each made once and reused by fingerprint")), artifacts.element));
  return { title: "Overview", body, keys: artifacts.keys, leave: () => poll?.() };
}

// What the lists below show: they are loaded again when it changes.
const signature = (values) => JSON.stringify([values.kinds, values.running.length, values.runs.map((run) => [run.name, run.done])]);
const pace = (values) => (values.running.length || values.runs.length ? 2500 : 10000);

function repeat(task, first, failed) {
  let timer;
  let ended = false;
  const next = (wait) => { timer = setTimeout(run, wait); };
  async function run() {
    let wait = 10000;
    try {
      if (!document.hidden) wait = await task();
    } catch (error) { // the server was ended, or the store is gone: try again later
      failed(error);
    }
    if (!ended) next(wait);
  }
  next(first);
  return () => { ended = true; clearTimeout(timer); };
}

function summary(values) {
  const total = values.kinds.reduce((sum, kind) => sum + kind.finished, 0);
  if (!total && !values.running.length) return "Nothing has been made here yet. `make run` starts the demo.";
  const active = values.running.length ? `${plural(values.running.length, "artifact")} being made` : values.runs.length ? `${plural(values.runs.length, "run")} in progress` : "no run in progress";
  return `${plural(total, "finished artifact")}, ${active}`;
}

function flowCard(values) {
  const by = Object.fromEntries(values.kinds.map((kind) => [kind.kind, kind]));
  const target = { pool: "pool", scores: "methods", selection: "methods", metrics: "answers" };
  return h("ol", { class: "flow", "aria-label": "From pool to results" }, STAGES.map(([kind, label, what]) => {
    const found = by[kind] ?? { finished: 0, running: 0, failed: 0 };
    const inside = [
      h("span", { class: "flow-count" }, count(found.finished)),
      h("span", { class: "flow-label" }, label),
      h("span", { class: "flow-what" }, what),
      found.running ? tag("info", h("span", { class: "dot pulse" }), `${found.running} running`) : null,
      found.failed ? tag("bad", `${found.failed} failed`) : null,
    ];
    return h("li", {}, target[kind] && found.finished ? h("a", { href: address(target[kind]) }, inside) : h("div", {}, inside));
  }));
}

function failedCard(rows) {
  return card("Needs attention", null, h("div", { class: "tight" }, rows.map((row) =>
    h("div", { class: "tight failed" }, h("div", { class: "row" }, stateTag(row.state), artifactLink(row.kind, row.fingerprint, `${row.kind} / ${visible(row.name)}`)),
      h("p", { class: "small muted" }, visible(row.error ?? (row.state === "damaged" ? "Its files have changed since it was made: the next run rebuilds it." : "The manifest does not say why.")))))));
}
