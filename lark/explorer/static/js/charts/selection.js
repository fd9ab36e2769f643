// A question's candidates on the score axis, with the threshold, τ*(B) and the weight of each.

import { s } from "../dom.js";
import { fixed, number } from "../format.js";
import { tipped } from "../parts.js";
import { axisX, chart, linear } from "./base.js";

// result: of select(); names: labels of the candidates; pick(i): a candidate was clicked.
export function selectionChart(width, { scores, names, result, weighting, higher, label, isAt, pick }) {
  const height = 284;
  const [left, right, top, rail] = [46, 18, 34, 214];
  const known = scores.filter((v) => v !== null);
  if (!known.length) return chart(width, 60, label, s("text", { x: 8, y: 30 }, "This method has no scores here."));
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const pad = (high - low || Math.abs(high) || 1) * 0.05;
  // The better side is always on the right.
  const x = higher ? linear([low - pad, high + pad], [left, width - right]) : linear([high + pad, low - pad], [left, width - right]);
  x.ticks = higher ? x.ticks : linear([low - pad, high + pad], [0, 1]).ticks;
  const most = Math.max(...result.weight, 1e-9);
  const y = linear([0, most * 1.08], [rail - 26, top]);
  const weightOf = new Map(result.chosen.map((i, j) => [i, result.weight[j]]));
  const isHinge = weighting === "chi2" && result.threshold !== null && result.tau > 0;
  const parts = [];
  parts.push(y.ticks(4).map((v) => [
    s("line", { class: "tick-line", x1: left, x2: width - right, y1: y(v), y2: y(v) }),
    s("text", { x: left - 7, y: y(v) + 4, "text-anchor": "end" }, fixed(v, most < 0.1 ? 3 : 2)),
  ]));
  parts.push(s("text", { x: left - 40, y: 14 }, "weight q"));
  if (result.threshold !== null) parts.push(thresholdMarks({ x, y, result, isHinge, most, rail, top, width, right, higher }));
  parts.push(result.chosen.map((i) => s("line", { x1: x(scores[i]), x2: x(scores[i]), y1: y(0), y2: y(weightOf.get(i)), stroke: "var(--accent)", "stroke-width": 2, opacity: 0.35 })));
  parts.push(s("line", { class: "axis", x1: left, x2: width - right, y1: rail, y2: rail }));
  for (const i of [...result.order].reverse()) {
    const q = weightOf.get(i);
    const isChosen = q !== undefined;
    const mark = s("g", { class: "pick", tabindex: -1 },
      isChosen ? s("circle", { cx: x(scores[i]), cy: y(q), r: 5.5, fill: "var(--accent)", stroke: "var(--surface)", "stroke-width": 1.5 }) : null,
      s("circle", { cx: x(scores[i]), cy: rail, r: isAt(i) ? 6 : 4, fill: isChosen ? "var(--accent)" : "var(--faint)", opacity: isChosen ? 1 : 0.5, stroke: isAt(i) ? "var(--text)" : "var(--surface)", "stroke-width": isAt(i) ? 2 : 1 }));
    mark.addEventListener("click", () => pick(i));
    parts.push(tipped(mark, `${names[i]}: score ${number(scores[i], 5)}, rank ${result.order.indexOf(i) + 1} of ${result.K}${isChosen ? `, weight ${fixed(q, 4)}` : ""}`));
  }
  parts.push(axisX(x, rail + 6, { count: Math.min(7, width / 100) }), s("text", { x: width - right, y: rail + 62, "text-anchor": "end" }, label));
  return chart(width, height, `Scores and weights: ${label}`, ...parts);
}

function thresholdMarks({ x, y, result, isHinge, most, rail, top, width, right, higher }) {
  const g = x(result.threshold);
  const sign = higher ? 1 : -1;
  const parts = [
    s("line", { x1: g, x2: g, y1: top - 6, y2: rail, stroke: "var(--text)", "stroke-width": 1.2, "stroke-dasharray": "4 3", opacity: 0.75 }),
    s("text", { class: "label", x: g - 6, y: top - 8, "text-anchor": g > 220 ? "end" : "start", dx: g > 220 ? 0 : 12 }, `threshold g(B+1) = ${number(result.threshold, 4)}`),
  ];
  if (isHinge) {
    // q(g) = (g − threshold) / (K τ*): every chosen candidate is on this line.
    const slope = 1 / (result.K * result.tau);
    const end = result.threshold + sign * Math.min((most * 1.06) / slope, Math.abs(x.invert(width - right) - result.threshold));
    parts.push(s("line", { x1: g, y1: y(0), x2: x(end), y2: y(Math.abs(end - result.threshold) * slope), stroke: "var(--accent)", "stroke-width": 1.4, opacity: 0.55 }));
  }
  if (result.tau > 0) {
    const end = x(result.threshold + sign * result.tau);
    const at = rail + 36;
    const isFar = Math.max(g, end) > width - 120;
    parts.push(tipped(s("g", { class: "tau" },
      s("rect", { x: Math.min(g, end) - 4, y: at - 10, width: Math.abs(end - g) + 8, height: 20, fill: "transparent" }),
      s("path", { d: `M${g},${at - 5}v10M${end},${at - 5}v10M${g},${at}H${end}`, stroke: "var(--link)", "stroke-width": 2, fill: "none" }),
      s("text", { class: "label", x: isFar ? Math.min(g, end) - 7 : Math.max(g, end) + 7, y: at + 4, "text-anchor": isFar ? "end" : "start" }, `τ*(B) = ${number(result.tau, 4)}`)),
    "The temperature of Lemma 3: the margins of the chosen candidates over the threshold, summed and divided by K. A weight is (score − threshold) / (K τ*)."));
  }
  return parts;
}
