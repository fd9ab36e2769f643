// Plots: histogram, dots with intervals, quantiles by group.

import { s } from "../dom.js";
import { count, number } from "../format.js";
import { tipped } from "../parts.js";
import { axisX, axisY, chart, linear, log } from "./base.js";

const min = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
const max = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);

// Bars between edges. `marked` are counts drawn in front, such as one teacher's part of all.
export function histogram(width, { edges, counts, marked, label, title, titleY, isLog = false, height = 190, colour = "var(--series)" }) {
  const [left, right, top, bottom] = [44, 12, titleY ? 24 : 14, 38];
  const x = (isLog ? log : linear)([edges[0], edges.at(-1)], [left, width - right]);
  const y = linear([0, max(counts) || 1], [height - bottom, top]);
  const bars = (values, fill, opacity) => values.map((v, i) => v ? tipped(s("rect", {
    x: x(edges[i]) + 0.5, width: Math.max(0.5, x(edges[i + 1]) - x(edges[i]) - 1), y: y(v), height: Math.max(0.5, y(0) - y(v)), fill, opacity, rx: 1.5,
  }), `${number(edges[i], 3)} to ${number(edges[i + 1], 3)}: ${count(v)}`) : null);
  return chart(width, height, label,
    axisY(y, left, { count: 4, grid: width - left - right, title: titleY, y: top }),
    s("g", {}, bars(counts, marked ? "var(--line-strong)" : colour, 1), marked ? bars(marked, colour, 1) : null),
    axisX(x, height - bottom, { title, x: width - right, count: Math.min(8, width / 80) }));
}

// One row per group: a dot with an interval. groups: [{name, rows: [{label, mean, low, high, colour, tip}]}].
export function intervals(width, { groups, label, title, domain }) {
  const left = Math.min(190, width * 0.34);
  const [right, top, step, gap] = [46, 6, 21, 20];
  const rows = groups.flatMap((group) => group.rows);
  const [a, b] = domain ?? [Math.min(0, min(rows.map((r) => r.low))), max(rows.map((r) => r.high))];
  const x = linear([a, b], [left, width - right]);
  let at = top;
  const parts = groups.map((group) => {
    const start = at + 14;
    at += gap;
    const drawn = group.rows.map((row) => {
      const y = at + step / 2;
      at += step;
      return tipped(s("g", { tabindex: 0 },
        s("rect", { x: 0, y: y - step / 2, width, height: step, fill: "transparent" }),
        s("text", { class: "label", x: left - 10, y: y + 4, "text-anchor": "end" }, row.label),
        s("line", { x1: x(row.low), x2: x(row.high), y1: y, y2: y, stroke: row.colour, "stroke-width": 2, opacity: 0.45, "stroke-linecap": "round" }),
        s("circle", { cx: x(row.mean), cy: y, r: 4.2, fill: row.colour }),
        s("text", { x: width - right + 8, y: y + 4 }, row.mean.toFixed(1))), row.tip);
    });
    at += 6;
    return s("g", {}, s("text", { class: "strong", x: 0, y: start }, group.name), drawn);
  });
  const height = at + 34;
  return chart(width, height, label,
    x.ticks(5).map((v) => s("line", { class: "tick-line", x1: x(v), x2: x(v), y1: top, y2: height - 36 })),
    parts, axisX(x, height - 36, { title, x: width - right, count: 5 }));
}

// Quantiles (5, 25, 50, 75, 95%) of each group as a strip.
export function strips(width, { rows, label, title, isLog = false, colour = "var(--series)", domain }) {
  const left = Math.min(150, width * 0.3);
  const [right, top, step] = [16, 8, 24];
  const known = rows.filter((row) => row.quantiles);
  const [a, b] = domain ?? [min(known.map((r) => r.quantiles[0])), max(known.map((r) => r.quantiles[4]))];
  const x = (isLog ? log : linear)(isLog ? [Math.max(a, 1), b] : [a, b], [left, width - right]);
  const height = top + step * rows.length + 38;
  return chart(width, height, label,
    x.ticks(6).map((v) => s("line", { class: "tick-line", x1: x(v), x2: x(v), y1: top, y2: height - 38 })),
    rows.map((row, i) => {
      const y = top + step * i + step / 2;
      const text = s("text", { class: "label", x: left - 10, y: y + 4, "text-anchor": "end" }, shorten(row.name, left / 7.6));
      if (!row.quantiles) return text;
      const [q5, q25, q50, q75, q95] = row.quantiles.map((v) => x(v));
      return tipped(s("g", { tabindex: 0, class: row.pick ? "pick" : null, on: row.pick ? { click: row.pick } : null },
        s("rect", { x: 0, y: y - step / 2, width, height: step, fill: "transparent" }), text,
        s("line", { x1: q5, x2: q95, y1: y, y2: y, stroke: row.colour ?? colour, "stroke-width": 1.5, opacity: 0.55 }),
        s("rect", { x: q25, width: Math.max(1, q75 - q25), y: y - 6, height: 12, rx: 3, fill: row.colour ?? colour, opacity: 0.32 }),
        s("line", { x1: q50, x2: q50, y1: y - 7, y2: y + 7, stroke: row.colour ?? colour, "stroke-width": 2.5 })),
      `${row.name}: median ${number(row.quantiles[2])}, middle half ${number(row.quantiles[1])} to ${number(row.quantiles[3])}, 5–95% ${number(row.quantiles[0])} to ${number(row.quantiles[4])}`);
    }),
    axisX(x, height - 38, { title, x: width - right, count: Math.min(6, width / 90) }));
}

export const shorten = (text, most) => (text.length > most ? `${text.slice(0, Math.max(3, Math.floor(most) - 1))}…` : text);
