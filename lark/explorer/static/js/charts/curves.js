// Curves over a common x axis. The pointer shows the values of all of them at the nearest point.

import { h, s } from "../dom.js";
import { number } from "../format.js";
import { hideTip, showTip } from "../parts.js";
import { axisX, axisY, chart, line, linear, log } from "./base.js";

const isKnown = (v) => v !== null && v !== undefined && Number.isFinite(v);

// curves: [{name, colour, points: [[x, y]], hasDots, isFaint}]. Points without a number are gaps; curves without a name are not described.
export function lines(width, { curves, label, title, titleY, height = 230, isLog = false, form = (v) => number(v) }) {
  const [left, right, top, bottom] = [50, 14, 26, 38];
  const all = curves.flatMap((c) => c.points).filter(([, v]) => isKnown(v) && (!isLog || v > 0));
  if (!all.length) return chart(width, 40, label, s("text", { x: 8, y: 22 }, "No numbers yet."));
  const [xs, ys] = [0, 1].map((k) => all.reduce(([a, b], point) => [Math.min(a, point[k]), Math.max(b, point[k])], [Infinity, -Infinity]));
  const x = linear(xs, [left, width - right]);
  const y = isLog ? log(ys, [height - bottom, top]) : linear([Math.min(0, ys[0]), ys[1] * 1.04 || 1], [height - bottom, top]);
  const cross = s("line", { class: "axis", y1: top, y2: height - bottom, visibility: "hidden" });
  const node = chart(width, height, label,
    axisY(y, left, { grid: width - left - right, title: titleY, y: top }),
    axisX(x, height - bottom, { title, x: width - right, count: Math.min(8, width / 90) }), cross,
    curves.map((c) => {
      const known = c.points.filter(([, v]) => isKnown(v) && (!isLog || v > 0)).map(([a, b]) => [x(a), y(b)]);
      return s("g", {},
        s("path", { d: line(known), fill: "none", stroke: c.colour, "stroke-width": c.isFaint ? 1.1 : 1.9, "stroke-linejoin": "round", opacity: c.isFaint ? 0.45 : 1 }),
        c.hasDots || known.length === 1 ? known.map(([a, b]) => s("circle", { cx: a, cy: b, r: 2.8, fill: c.colour })) : null);
    }));
  const steps = [...new Set(all.map(([a]) => a))].sort((a, b) => a - b);
  node.addEventListener("pointermove", (event) => {
    const place = node.getBoundingClientRect();
    const at = nearest(steps, x.invert(((event.clientX - place.left) * width) / place.width));
    cross.setAttribute("x1", x(at));
    cross.setAttribute("x2", x(at));
    cross.setAttribute("visibility", "visible");
    const rows = curves.filter((c) => c.name).map((c) => [c, c.points.find(([a]) => a === at)?.[1]]).filter(([, v]) => isKnown(v));
    showTip({ x: place.left + (x(at) * place.width) / width, y: event.clientY }, h("div", { class: "faint" }, `${title} ${at}`),
      rows.map(([c, v]) => h("div", { class: "row between" }, h("span", { class: "row" }, h("span", { class: "swatch", style: { background: c.colour } }), c.name), h("b", { class: "num" }, form(v)))));
  });
  node.addEventListener("pointerleave", () => { cross.setAttribute("visibility", "hidden"); hideTip(); });
  return node;
}

function nearest(sorted, value) {
  let [low, high] = [0, sorted.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle;
    else high = middle;
  }
  return Math.abs(sorted[low] - value) <= Math.abs(sorted[high] - value) ? sorted[low] : sorted[high];
}
