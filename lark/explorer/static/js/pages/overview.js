// The overview: what is being made, results, training curves, runs and artifacts.

import { lines } from "../charts/plots.js";
import { methodColour, OKABE_ITO } from "../charts/base.js";
import { h, oneLine, replace, responsive, visible } from "../dom.js";
import { count, duration, fixed, plural, when } from "../format.js";
import { list } from "../list.js";
import { isStatic, load } from "../load.js";
import { artifactLink, card, fingerprint, later, segments, stateTag, tag } from "../parts.js";
import { resultsCard } from "./results.js";
import { address } from "../route.js";

const STAGES = [["pool", "Pool", "trajectories of teachers"], ["scores", "Scores", "the student's forward pass"], ["selection", "Selections", "chosen and weighted"], ["checkpoint", "Checkpoints", "trained students"], ["metrics", "Evaluations", "graded benchmarks"]];

export async function open() {
  let values = await load("overview");
  const status = h("div");
  const flow = h("div");
  const runs = isStatic ? null : list({
    path: "runs", prefix: "r", search: false, size: 8, label: "Runs", empty: "No run has written to this store.",
    columns: [
      { title: "Run", cell: (row) => h("details", { class: "plain" }, h("summary", {}, h("b", {}, row.name)), runDetails(row)) },
      { title: "Settings", class: "run-settings", cell: (row) => h("code", { class: "muted two-lines" }, row.overrides.length ? visible(row.overrides.join(" ")) : "defaults") },
      { title: "Steps", num: true, cell: (row) => row.steps.length ? `${row.steps.length} (${row.steps.filter((step) => step.took === "reused").length} reused)` : "–" },
      { title: "Last change", key: "changed", cell: (row) => h("span", { class: "nowrap", title: row.when }, when(row.when)) },
    ],
  });
  const artifacts = list({
    path: "artifacts", prefix: "a", label: "Artifacts", placeholder: "Search artifacts", empty: "This store is empty.",
    filters: [
      ...["running", "failed", "damaged", "interrupted", "unreadable"].map((state) => [`state:${state}`, state]),
      ...values.kinds.map(({ kind }) => [`kind:${kind}`, kind]),
    ],
    open: (row) => address("artifact", [row.kind, row.fingerprint]),
    columns: [
      { title: "Kind", cell: (row) => row.kind },
      { title: "Name", cell: (row, target) => [h("a", { href: target }, visible(row.name)), " ", fingerprint(row.fingerprint)] },
      { title: "State", cell: (row) => stateTag(row.state) },
      { title: "Made", key: "started", cell: (row) => h("span", { class: "nowrap", title: row.started }, when(row.started)) },
      { title: "Took", key: "seconds", num: true, cell: (row) => h("span", { class: "nowrap" }, duration(row.seconds)) },
      { title: "Used by", key: "users", num: true, hint: "artifacts that were made from it", cell: (row) => row.users || h("span", { class: "faint" }, "–") },
    ],
  });

  function draw() {
    replace(status, values.running.length ? runningCard(values) : null, values.failed.length ? failedCard(values.failed) : null);
    replace(flow, flowCard(values));
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
    const before = JSON.stringify([values.kinds, values.running.length]);
    const [graded, trained] = [finished("metrics"), values.running.filter((r) => r.kind === "checkpoint").length];
    values = await load("overview");
    draw();
    const now = values.running.filter((r) => r.kind === "checkpoint").length;
    if (finished("metrics") !== graded) drawResults();
    if (now !== trained || (now && !training)) drawCurves();
    else if (now) training.update();
    if (JSON.stringify([values.kinds, values.running.length]) !== before) {
      artifacts.refresh();
      runs.refresh();
    }
    return values.running.length ? 2500 : 10000;
  }, values.running.length ? 2500 : 10000);

  const body = h("div", { class: "stack" },
    h("div", { class: "page-head" },
      h("h1", {}, visible(values.store)),
      h("p", { class: "muted" }, summary(values))),
    status, flow,
    results, curves,
    runs && h("section", { class: "card flush" }, h("header", {}, h("h2", {}, "Runs"), h("p", {}, "commands that wrote to this store")), runs.element),
    h("section", { class: "card flush" }, h("header", {}, h("h2", {}, "Artifacts"), h("p", {}, "results on disk, each made once and reused by fingerprint")), artifacts.element));
  return { title: "Overview", body, keys: artifacts.keys, leave: () => poll?.() };
}

function repeat(task, first) {
  let timer;
  let ended = false;
  const next = (wait) => { timer = setTimeout(run, wait); };
  async function run() {
    let wait = 10000;
    try {
      if (!document.hidden) wait = await task();
    } catch { /* the server was ended or restarted: try again later */ }
    if (!ended) next(wait);
  }
  next(first);
  return () => { ended = true; clearTimeout(timer); };
}

function summary(values) {
  const total = values.kinds.reduce((sum, kind) => sum + kind.finished, 0);
  if (!total && !values.running.length) return "Nothing has been made here yet. `make run` starts the demo.";
  const active = values.running.length ? `${plural(values.running.length, "artifact")} being made` : "no run in progress";
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

function runningCard(values) {
  return card("In progress", "updates by itself", h("div", { class: "tight" }, values.running.map((row) => {
    const done = row.bar;
    return h("div", { class: "progress" },
      h("div", { class: "row between" },
        h("span", {}, artifactLink(row.kind, row.fingerprint, `${row.kind} / ${visible(row.name)}`)),
        h("span", { class: "muted small" }, done ? [done.what, done.done, done.left && done.left !== "?" ? `${done.left} left` : null, done.rate].filter(Boolean).map(visible).join(" · ") : oneLine(row.last) || "started", row.parts ? ` · ${plural(row.parts, "part")} done` : "")),
      h("div", { class: "meter", role: "progressbar", "aria-valuenow": done?.percent ?? 0, "aria-valuemin": 0, "aria-valuemax": 100 }, h("i", { style: { width: `${done?.percent ?? 0}%` } })));
  })));
}

function failedCard(rows) {
  return card("Needs attention", null, h("div", { class: "tight" }, rows.map((row) =>
    h("div", { class: "tight failed" }, h("div", { class: "row" }, stateTag(row.state), artifactLink(row.kind, row.fingerprint, `${row.kind} / ${visible(row.name)}`)),
      h("p", { class: "small muted" }, visible(row.error ?? (row.state === "damaged" ? "Its files have changed since it was made: the next run rebuilds it." : "The manifest does not say why.")))))));
}

function runDetails(row) {
  return h("div", { class: "tight run-details" },
    row.results.length ? h("div", { class: "table-scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, Object.keys(row.results[0]).map((name) => h("th", {}, name)))),
      h("tbody", {}, row.results.map((result) => h("tr", {}, Object.values(result).map((cell) => h("td", {}, cell))))))) : null,
    h("dl", { class: "kv" }, row.steps.map((step) => [
      h("dt", {}, step.title),
      h("dd", {}, step.took, " ", step.kind ? artifactLink(step.kind, step.fingerprint, step.where) : h("span", { class: "muted" }, visible(step.where))),
    ])),
    h("p", { class: "small faint" }, visible(row.last)));
}

const MEASURES = [["loss", "Loss"], ["grad_norm", "Gradient norm"], ["learning_rate", "Learning rate"], ["tokens_per_second", "Tokens/s"]];
const MOST_CURVES = 8;

function curvesCard({ curves }) {
  if (!curves.length) return null;
  const chosen = new Set(curves.slice(0, 4).map((curve) => curve.fingerprint));
  const loaded = new Map();
  let measure = "loss";
  const plot = responsive((width) => {
    const shown = curves.filter((curve) => chosen.has(curve.fingerprint) && loaded.has(curve.fingerprint));
    return lines(width, {
      label: `Training: ${measure}`, title: "training step", height: 250,
      curves: shown.flatMap((curve) => {
        const { columns } = loaded.get(curve.fingerprint);
        const stroke = colourOf(curve);
        const held = columns.step.map((x, i) => [x, columns.held_out_loss[i]]).filter(([, y]) => y !== null && y !== undefined);
        const points = columns.step.map((x, i) => [x, columns[measure][i]]);
        const calm = measure === "loss" && points.length > 30;
        return [
          { colour: stroke, points, faint: calm },
          ...(calm ? [{ colour: stroke, points: smooth(points) }] : []),
          ...(measure === "loss" && held.length ? [{ colour: stroke, points: held, dots: true }] : []),
        ];
      }),
    });
  });
  // The method's colour, if only one curve has it.
  const isOnly = (curve) => curves.filter((other) => other.method === curve.method).length === 1;
  const colourOf = (curve) => (isOnly(curve) ? methodColour(curve.method, curves.indexOf(curve)) : OKABE_ITO[curves.indexOf(curve) % OKABE_ITO.length]);
  const fetchChosen = () => Promise.all(curves.filter((c) => chosen.has(c.fingerprint) && !loaded.has(c.fingerprint)).map(async (c) => {
    loaded.set(c.fingerprint, await load(`curve/${c.fingerprint}`));
  })).then(() => plot.redraw());
  fetchChosen().catch(() => {});
  const toggle = (curve) => {
    if (chosen.has(curve.fingerprint)) chosen.delete(curve.fingerprint);
    else if (chosen.size < MOST_CURVES) chosen.add(curve.fingerprint);
    legend.replaceChildren(...legendItems());
    fetchChosen().catch(() => {});
  };
  const legendItems = () => curves.map((curve) => h("button", { class: "chip", "aria-pressed": String(chosen.has(curve.fingerprint)), on: { click: () => toggle(curve) } },
    h("span", { class: "swatch", style: { background: colourOf(curve) } }), visible(curve.name), h("b", {}, fixed(curve.loss, 3)),
    curve.state === "running" ? h("span", { class: "dot pulse" }) : null));
  const legend = h("div", { class: "row chips scroll-chips" }, legendItems());
  const element = h("section", { class: "card" },
    h("header", {}, h("div", { class: "row" }, h("h2", {}, "Training"), h("p", {}, "running mean in front, last loss beside each name")),
      segments("Measure", MEASURES, measure, (key) => { measure = key; plot.redraw(); })),
    plot, legend);
  // Load the curves of runs in progress again.
  const update = () => {
    for (const curve of curves) if (curve.state === "running") loaded.delete(curve.fingerprint);
    fetchChosen().catch(() => {});
  };
  return { element, update };
}

function smooth(points, span = 12) {
  const found = [];
  let [sum, size] = [0, 0];
  const window = [];
  for (const [x, y] of points) {
    if (y === null) continue;
    window.push(y);
    sum += y;
    size += 1;
    if (size > span) { sum -= window.shift(); size -= 1; }
    found.push([x, sum / size]);
  }
  return found;
}

