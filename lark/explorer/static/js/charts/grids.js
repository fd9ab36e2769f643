// Grids of colours: matrices of pairs, and how many candidates have which length and score.

import { colour, h, s, scroller } from "../dom.js";
import { count, fixed } from "../format.js";
import { hideTip, showTip, tipped } from "../parts.js";
import { axisX, axisY, chart, line, linear, log } from "./base.js";
import { shorten } from "./plots.js";

export const LEVELS = 24;
export const level = (t) => Math.max(0, Math.min(LEVELS - 1, Math.round(t * (LEVELS - 1))));

// Blue below 0, orange above: two hues that colour-blind eyes tell apart, and the background at 0.
function diverging(v) {
  const strength = Math.round(Math.min(1, Math.abs(v)) * 88);
  return [`color-mix(in oklab, var(${v < 0 ? "--series" : "--accent"}) ${strength}%, var(--surface))`, strength > 55 ? "var(--surface)" : "var(--text)"];
}

// rows × columns of numbers in [low, high]; `short` writes them into small cells. `tip(i, j)` describes a cell; `pick(i, j)` is called on a click.
export function matrix(width, { rows, columns, values, low, high, label, form = (v) => fixed(v, 2), short = (v) => fixed(100 * v, 0), tip, pick, chosen, isDiverging = false }) {
  const left = Math.min(150, width * 0.28);
  const most = Math.max(...columns.map((name) => Math.min(name.length, 16)));
  const top = 24 + most * 4.4; // slanted names
  const cell = Math.max(14, Math.min(64, (width - left - 12 - most * 4.2) / columns.length));
  const tall = Math.min(cell, 34);
  const isSmall = cell < 30;
  const text = isSmall ? short : form;
  const height = top + tall * rows.length + 8;
  const full = Math.max(width, left + cell * columns.length + 12 + most * 4.2);
  const node = chart(full, height, label,
    columns.map((name, j) => s("text", { class: "label", transform: `translate(${left + cell * (j + 0.5) + 4},${top - 8}) rotate(-45)` }, shorten(name, 16))),
    rows.map((name, i) => s("text", { class: "label", x: left - 8, y: top + tall * (i + 0.5) + 4, "text-anchor": "end" }, shorten(name, left / 6.6))),
    values.map((row, i) => row.map((v, j) => {
      const known = v !== null && v !== undefined;
      const k = known ? level((v - low) / (high - low || 1)) : 0;
      const [fill, ink] = isDiverging ? diverging(known ? v : 0) : [`var(--h${k})`, `var(--t${k})`];
      const isChosen = chosen?.(i, j);
      const box = s("g", { tabindex: pick && i !== j ? 0 : null, role: pick ? "button" : null, class: pick ? "pick" : null },
        s("rect", {
          x: left + cell * j + 1, y: top + tall * i + 1, width: cell - 2, height: tall - 2, rx: 4, fill,
          stroke: isChosen ? "var(--text)" : "var(--line)", "stroke-width": isChosen ? 2 : 1,
        }),
        known ? s("text", { x: left + cell * (j + 0.5), y: top + tall * (i + 0.5) + (isSmall ? 3 : 4), "text-anchor": "middle", style: { fill: ink, "font-size": isSmall ? `${Math.min(9, cell * 0.42)}px` : "11px" } }, text(v)) : null);
      if (pick && i !== j) {
        box.addEventListener("click", () => pick(i, j));
        box.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(i, j); } });
      }
      return tipped(box, tip(i, j));
    })));
  if (full <= width) return node;
  node.style.width = `${full}px`; // more columns than fit
  return scroller(node);
}

// What the colours of a density mean, at its upper right corner.
function scaleLegend(right, most) {
  const [size, steps] = [12, 8];
  const ends = [s("text", { x: right - size * steps - 30, y: 12, "text-anchor": "end" }, "1"), s("text", { x: right - 26, y: 12 }, count(most))];
  return s("g", {}, ends, Array.from({ length: steps }, (_, k) => s("rect", { x: right - size * (steps - k) - 28, y: 4, width: size, height: 9, fill: `var(--h${Math.max(2, level(k / (steps - 1)))})` })));
}

// Density of points on a canvas, with the median of y at each x.
export function density(width, { x: edgesX, y: edgesY, counts, median, sizes, label, titleX, titleY, height = 300 }) {
  const [left, right, top, bottom] = [58, 12, 24, 38];
  const x = log([edgesX[0], edgesX.at(-1)], [left, width - right]);
  const y = linear([edgesY[0], edgesY.at(-1)], [height - bottom, top]);
  const most = Math.max(1, ...counts.flat());
  const ratio = devicePixelRatio || 1;
  const canvas = h("canvas", { "aria-hidden": "true", width: Math.round(width * ratio), height: Math.round(height * ratio), style: { width: `${width}px`, height: `${height}px`, position: "absolute", inset: "0" } });
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  counts.forEach((column, i) => column.forEach((n, j) => {
    if (!n) return;
    pen.fillStyle = colour(`--h${Math.max(2, level(Math.log1p(n) / Math.log1p(most)))}`);
    const [x1, x2, y1, y2] = [x(edgesX[i]), x(edgesX[i + 1]), y(edgesY[j + 1]), y(edgesY[j])];
    pen.fillRect(x1, y1, Math.ceil(x2 - x1), Math.ceil(y2 - y1));
  }));
  const middle = median.map((m, i) => [x(Math.sqrt(edgesX[i] * edgesX[i + 1])), m === null ? null : y(m)]).filter(([, v], i) => v !== null && sizes[i] > 4);
  const svg = chart(width, height, label, scaleLegend(width - right, most),
    axisY(y, left, { title: titleY, y: top }), axisX(x, height - bottom, { title: titleX, x: width - right }),
    s("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }),
    s("path", { d: line(middle), fill: "none", stroke: "var(--surface)", "stroke-width": 5, opacity: 0.8 }),
    s("path", { d: line(middle), fill: "none", stroke: "var(--accent)", "stroke-width": 2.2 }));
  svg.style.position = "relative";
  const box = h("div", { style: { position: "relative" } }, canvas, svg);
  box.addEventListener("pointermove", (event) => {
    const place = svg.getBoundingClientRect();
    const [px, py] = [event.clientX - place.left, event.clientY - place.top];
    const i = edgesX.findIndex((edge) => x(edge) > px) - 1;
    const j = edgesY.findIndex((edge) => y(edge) < py) - 1;
    const n = counts[i]?.[j];
    if (n) showTip({ x: event.clientX, y: event.clientY }, `${count(n)} candidates: ${count(edgesX[i])}–${count(edgesX[i + 1])} tokens`);
    else hideTip();
  });
  box.addEventListener("pointerleave", hideTip);
  return box;
}
