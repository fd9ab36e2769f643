// A question's candidates on the score axis, with the threshold, τ*(B) and the weight of each.

import { s } from "../dom.js";
import { fixed, number } from "../format.js";
import { tipped } from "../parts.js";
import { axisX, chart, linear } from "./base.js";
import { shorten } from "./plots.js";

const [LEFT, RIGHT, TOP, RAIL, HEIGHT] = [46, 18, 40, 214, 282];

// result: of select(); names: labels of the candidates; pick(i): a candidate was clicked.
export function selectionChart(width, { scores, names, result, weighting, higher, label, isAt, pick }) {
  const known = scores.filter((v) => v !== null);
  if (!known.length) return s("svg", { height: 0 });
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const pad = (high - low || Math.abs(high) || 1) * 0.05;
  // The better side is always on the right.
  const x = higher ? linear([low - pad, high + pad], [LEFT, width - RIGHT]) : linear([high + pad, low - pad], [LEFT, width - RIGHT]);
  x.ticks = higher ? x.ticks : linear([low - pad, high + pad], [0, 1]).ticks;
  const most = Math.max(...result.weight, 1e-9);
  const y = linear([0, most * 1.08], [RAIL - 26, TOP]);
  const weightOf = new Map(result.chosen.map((i, j) => [i, result.weight[j]]));
  const isHinge = weighting === "chi2" && result.threshold !== null && result.tau > 0;
  const parts = [y.ticks(4).map((v) => [
    s("line", { class: "tick-line", x1: LEFT, x2: width - RIGHT, y1: y(v), y2: y(v) }),
    s("text", { x: LEFT - 7, y: y(v) + 4, "text-anchor": "end" }, fixed(v, most < 0.1 ? 3 : 2)),
  ]), s("text", { x: 2, y: 14 }, "weight q")];
  if (result.threshold !== null) parts.push(thresholdMarks({ x, y, result, isHinge, most, width, higher }));
  parts.push(result.chosen.map((i) => s("line", { x1: x(scores[i]), x2: x(scores[i]), y1: y(0), y2: y(weightOf.get(i)), stroke: "var(--accent)", "stroke-width": 2, opacity: 0.35 })));
  parts.push(s("line", { class: "axis", x1: LEFT, x2: width - RIGHT, y1: RAIL, y2: RAIL }));
  for (const i of [...result.order].reverse()) parts.push(candidate(i));
  parts.push(nameLabels(width, { x, y, scores, names, result }));
  parts.push(axisX(x, RAIL + 6, { count: Math.min(7, width / 100) }), s("text", { x: width - RIGHT, y: HEIGHT - 6, "text-anchor": "end" }, `${label}, better to the right`));
  return chart(width, HEIGHT, `Scores and weights: ${label}`, ...parts);

  function candidate(i) {
    const q = weightOf.get(i);
    const isChosen = q !== undefined;
    const mark = s("g", { class: "pick", tabindex: -1, data: { c: i }, on: { click: () => pick(i) } },
      isChosen ? s("circle", { cx: x(scores[i]), cy: y(q), r: isAt(i) ? 7 : 5.5, fill: "var(--accent)", stroke: isAt(i) ? "var(--text)" : "var(--surface)", "stroke-width": isAt(i) ? 2 : 1.5 }) : null,
      // Chosen and other candidates differ in shape too, not only in colour.
      isChosen ? s("circle", { cx: x(scores[i]), cy: RAIL, r: isAt(i) ? 6 : 4, fill: "var(--accent)", stroke: isAt(i) ? "var(--text)" : "var(--surface)", "stroke-width": isAt(i) ? 2 : 1 })
        : s("circle", { cx: x(scores[i]), cy: RAIL, r: isAt(i) ? 6 : 3.6, fill: "var(--surface)", "fill-opacity": 0.6, stroke: isAt(i) ? "var(--text)" : "var(--muted)", "stroke-width": isAt(i) ? 2 : 1.2 }),
      s("rect", { x: x(scores[i]) - 7, y: RAIL - 9, width: 14, height: 18, fill: "transparent" }));
    return tipped(mark, `${names[i]}: score ${number(scores[i], 5)}, rank ${result.order.indexOf(i) + 1} of ${result.K}${isChosen ? `, weight ${fixed(q, 4)}` : ", not chosen"}`);
  }
}

// Names beside the weights of the chosen candidates, as far as they do not cover each other.
function nameLabels(width, { x, y, scores, names, result }) {
  const taken = [];
  return result.chosen.slice(0, 12).map((i, j) => {
    const text = shorten(names[i], 22);
    const [px, py, size] = [x(scores[i]), y(result.weight[j]) + 4, text.length * 6.3 + 6];
    const isLeft = px - 10 - size > LEFT;
    const box = isLeft ? [px - 10 - size, px - 10] : [px + 10, px + 10 + size];
    if (box[1] > width || taken.some(([a, b, v]) => box[0] < b && a < box[1] && Math.abs(v - py) < 14)) return null;
    taken.push([...box, py]);
    return s("text", { class: "label halo", x: isLeft ? px - 10 : px + 10, y: py, "text-anchor": isLeft ? "end" : "start" }, text);
  });
}

function thresholdMarks({ x, y, result, isHinge, most, width, higher }) {
  const g = x(result.threshold);
  const sign = higher ? 1 : -1;
  const isRight = g > width / 2;
  const parts = [
    s("line", { x1: g, x2: g, y1: TOP - 12, y2: RAIL, stroke: "var(--text)", "stroke-width": 1.2, "stroke-dasharray": "4 3", opacity: 0.75 }),
    tipped(s("text", { class: "label", x: g + (isRight ? -6 : 6), y: TOP - 14, "text-anchor": isRight ? "end" : "start" }, `threshold ${number(result.threshold, 4)}`),
      `The score of rank B + 1 = ${result.size + 1}: the best candidate that is left out.`),
  ];
  if (isHinge) {
    // q(g) = (g − threshold) / (K τ*): every chosen candidate is on this line.
    const slope = 1 / (result.K * result.tau);
    const end = result.threshold + sign * Math.min((most * 1.06) / slope, Math.abs(x.invert(width - RIGHT) - result.threshold));
    parts.push(s("line", { x1: g, y1: y(0), x2: x(end), y2: y(Math.abs(end - result.threshold) * slope), stroke: "var(--accent)", "stroke-width": 1.4, opacity: 0.55 }));
  }
  if (result.tau > 0) {
    const end = x(result.threshold + sign * result.tau);
    const at = RAIL + 36;
    const isFar = Math.max(g, end) > width - 120;
    parts.push(tipped(s("g", { class: "tau" },
      s("rect", { x: Math.min(g, end) - 4, y: at - 10, width: Math.abs(end - g) + 8, height: 20, fill: "transparent" }),
      s("path", { d: `M${g},${at - 5}v10M${end},${at - 5}v10M${g},${at}H${end}`, stroke: "var(--link)", "stroke-width": 2, fill: "none" }),
      s("text", { class: "label", x: isFar ? Math.min(g, end) - 7 : Math.max(g, end) + 7, y: at + 4, "text-anchor": isFar ? "end" : "start" }, `τ*(B) = ${number(result.tau, 4)}`)),
    "The temperature of Lemma 3: the margins of the chosen candidates over the threshold, summed and divided by K. A χ² weight is (score − threshold) / (K τ*)."));
  }
  return parts;
}
