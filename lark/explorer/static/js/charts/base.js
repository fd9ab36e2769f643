// Axes, scales and ticks of SVG charts.

import { s } from "../dom.js";
import { number } from "../format.js";

export const OKABE_ITO = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#B8A800", "#888888"];
// The same colours as in figures (lark/output/style.py).
const METHODS = {
  lark: "#D55E00", rsr: "#0072B2", local_naturalness: "#009E73", grape: "#E69F00", llm_judge: "#CC79A7", rule_quality: "#56B4E9",
  token_length: "#8a8a8a", random: "#6f6a8a",
};
export const methodColour = (method, i = 0) => METHODS[method] ?? OKABE_ITO[i % OKABE_ITO.length];

export function linear([a, b], [x, y]) {
  const span = b - a || 1;
  const scale = (v) => x + ((v - a) / span) * (y - x);
  scale.invert = (p) => a + ((p - x) / (y - x || 1)) * span;
  scale.ticks = (n = 6) => ticks(a, b, n);
  return scale;
}

export function log([a, b], [x, y]) {
  const low = Math.log10(Math.max(a, 1e-12));
  const high = Math.log10(Math.max(b, a * 1.0001, 1e-12));
  const inner = linear([low, high], [x, y]);
  const scale = (v) => inner(Math.log10(Math.max(v, 1e-12)));
  scale.invert = (p) => 10 ** inner.invert(p);
  scale.ticks = () => {
    const digits = high - low < 1.2 ? [1, 2, 5] : high - low < 3 ? [1, 3] : [1];
    const found = [];
    for (let e = Math.floor(low); e <= Math.ceil(high); e++) for (const d of digits) found.push(d * 10 ** e);
    return found.filter((v) => v >= a * 0.999 && v <= b * 1.001);
  };
  return scale;
}

export function ticks(a, b, n = 6) {
  if (!(b > a)) return [a];
  const raw = (b - a) / n;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((m) => raw <= m * 1.0001);
  const found = [];
  for (let i = Math.ceil(a / step - 1e-9); i * step <= b + step * 1e-9; i++) found.push(i * step);
  return found;
}

export const tickText = (v, step) => {
  if (step && Math.abs(v) < step * 1e-6) return "0";
  return Math.abs(v) >= 1000 ? (Math.abs(v) >= 1e6 ? `${+(v / 1e6).toPrecision(3)}M` : `${+(v / 1e3).toPrecision(3)}k`).replace("-", "−") : number(+v.toPrecision(4), 3).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
};

export function chart(width, height, label, ...children) {
  return s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label }, ...children);
}

export function axisX(scale, y, { title, x, count = 6, form = tickText, grid = 0 } = {}) {
  const values = scale.ticks(count);
  const step = values.length > 1 ? values[1] - values[0] : 0;
  return s("g", {},
    values.map((v) => [
      grid ? s("line", { class: "tick-line", x1: scale(v), x2: scale(v), y1: y - grid, y2: y }) : null,
      s("text", { x: scale(v), y: y + 15, "text-anchor": "middle" }, form(v, step)),
    ]),
    title ? s("text", { x, y: y + 31, "text-anchor": "end" }, title) : null);
}

export function axisY(scale, x, { title, count = 5, form = tickText, grid = 0, y = 0 } = {}) {
  const values = scale.ticks(count);
  const step = values.length > 1 ? values[1] - values[0] : 0;
  return s("g", {},
    values.map((v) => [
      grid ? s("line", { class: "tick-line", x1: x, x2: x + grid, y1: scale(v), y2: scale(v) }) : null,
      s("text", { x: x - 7, y: scale(v) + 4, "text-anchor": "end" }, form(v, step)),
    ]),
    title ? s("text", { x: x - 7, y: y - 8, "text-anchor": "start" }, title) : null);
}

export const line = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(2)},${y.toFixed(2)}`).join("");
