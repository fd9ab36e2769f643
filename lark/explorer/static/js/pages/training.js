// Training curves: several checkpoints in one chart, one measure at a time.

import { methodColour, OKABE_ITO } from "../charts/base.js";
import { lines } from "../charts/curves.js";
import { h, responsive, visible } from "../dom.js";
import { fixed, number } from "../format.js";
import { load } from "../load.js";
import { segments } from "../parts.js";

const MEASURES = {
  loss: { label: "Loss", unit: "weighted loss, nats per token" },
  token_accuracy: { label: "Token accuracy", unit: "share of response tokens that are the student's most likely one" },
  grad_norm: { label: "Gradient norm", unit: "gradient norm before clipping" },
  learning_rate: { label: "Learning rate", unit: "learning rate" },
  tokens_per_second: { label: "Speed", unit: "tokens per second" },
};
const MOST_CURVES = 8;
const CALM = 30;

export function curvesCard({ curves }) {
  if (!curves.length) return null;
  const chosen = new Set(curves.slice(0, 4).map((curve) => curve.fingerprint));
  const loaded = new Map();
  let measure = "loss";
  // The method's colour, if only one curve has it.
  const isOnly = (curve) => curves.filter((other) => other.method === curve.method).length === 1;
  const colourOf = (curve) => (isOnly(curve) ? methodColour(curve.method, curves.indexOf(curve)) : OKABE_ITO[curves.indexOf(curve) % OKABE_ITO.length]);
  const shown = () => curves.filter((curve) => chosen.has(curve.fingerprint) && loaded.has(curve.fingerprint));
  const heldOut = (columns) => columns.step.map((x, i) => [x, columns.held_out_loss[i]]).filter(([, y]) => y !== null && y !== undefined);
  const note = h("p");
  const plot = responsive((width) => {
    const found = shown();
    const hasHeldOut = measure === "loss" && found.some((curve) => heldOut(loaded.get(curve.fingerprint).columns).length);
    const isCalm = measure === "loss" && found.some((curve) => loaded.get(curve.fingerprint).columns.step.length > CALM);
    note.textContent = [isCalm ? "thin: each step; thick: mean of the last 12" : "", hasHeldOut ? "dots: held-out loss" : "", "beside each name: its last loss"].filter(Boolean).join("; ");
    return lines(width, {
      label: `Training: ${MEASURES[measure].unit}`, title: "training step", titleY: MEASURES[measure].unit, height: 260, form: (v) => number(v, 4),
      curves: found.flatMap((curve) => {
        const { columns } = loaded.get(curve.fingerprint);
        const [colour, name] = [colourOf(curve), visible(curve.name)];
        const points = columns.step.map((x, i) => [x, columns[measure][i]]);
        // Students of older versions have no token accuracy.
        if (!points.some(([, y]) => y !== null && y !== undefined)) return [];
        const held = measure === "loss" ? heldOut(columns) : [];
        return [
          { name, colour, points, isFaint: measure === "loss" && points.length > CALM },
          ...(measure === "loss" && points.length > CALM ? [{ colour, points: smooth(points) }] : []),
          ...(held.length ? [{ name: `${name}, held out`, colour, points: held, hasDots: true }] : []),
        ];
      }),
    });
  });
  const fetchChosen = () => Promise.all(curves.filter((c) => chosen.has(c.fingerprint) && !loaded.has(c.fingerprint)).map(async (c) => {
    loaded.set(c.fingerprint, await load(`curve/${c.fingerprint}`));
  })).then(() => plot.redraw(), () => plot.redraw());
  const toggle = (curve) => {
    if (chosen.has(curve.fingerprint)) chosen.delete(curve.fingerprint);
    else if (chosen.size < MOST_CURVES) chosen.add(curve.fingerprint);
    legend.replaceChildren(...legendItems());
    fetchChosen();
  };
  const legendItems = () => curves.map((curve) => h("button", { class: "chip", "aria-pressed": String(chosen.has(curve.fingerprint)), title: chosen.size >= MOST_CURVES ? `At most ${MOST_CURVES} curves at a time` : null, on: { click: () => toggle(curve) } },
    h("span", { class: "swatch", style: { background: colourOf(curve) } }), visible(curve.name), h("b", {}, fixed(curve.loss, 3)),
    curve.state === "running" ? h("span", { class: "dot pulse" }) : null));
  const legend = h("div", { class: "row chips scroll-chips" }, legendItems());
  fetchChosen();
  const element = h("section", { class: "card" },
    h("header", {}, h("div", { class: "row" }, h("h2", {}, "Training"), note),
      segments("Measure", Object.entries(MEASURES).map(([key, { label, unit }]) => [key, label, unit]), measure, (key) => { measure = key; plot.redraw(); })),
    plot, legend);
  // Load the curves of runs in progress again.
  const update = () => {
    for (const curve of curves) if (curve.state === "running") loaded.delete(curve.fingerprint);
    fetchChosen();
  };
  return { element, update };
}

function smooth(points, span = 12) {
  const found = [];
  const window = [];
  let sum = 0;
  for (const [x, y] of points) {
    if (y === null) continue;
    window.push(y);
    sum += y;
    if (window.length > span) sum -= window.shift();
    found.push([x, sum / window.length]);
  }
  return found;
}
