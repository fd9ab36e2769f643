// A strip of all tokens: each column shows the highest value of its tokens; the frame shows which part is in view.

import { level, LEVELS } from "../charts/grids.js";
import { colour, h } from "../dom.js";

const HEIGHT = 34;

export function strip(count, { value, window: inView, seek }) {
  const canvas = h("canvas", { height: HEIGHT, "aria-hidden": "true" });
  const frame = h("div", { class: "strip-frame" });
  const element = h("div", { class: "strip", title: "All tokens. Click or drag to go there." }, canvas, frame);

  function draw() {
    const width = Math.round(element.clientWidth);
    if (!width) return;
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(HEIGHT * ratio);
    const pen = canvas.getContext("2d");
    const colours = Array.from({ length: LEVELS }, (_, k) => colour(`--h${k}`));
    const columns = canvas.width;
    for (let x = 0; x < columns; x += 1) {
      const from = Math.floor((x * count) / columns);
      const to = Math.max(from + 1, Math.floor(((x + 1) * count) / columns));
      let most = 0;
      for (let i = from; i < Math.min(to, count); i += 1) most = Math.max(most, value(i));
      const k = level(most);
      pen.fillStyle = colours[k];
      const tall = Math.max(2, Math.round(most * canvas.height));
      pen.fillRect(x, canvas.height - tall, 1, tall);
    }
    mark();
  }

  function mark() {
    const [from, to] = inView();
    frame.hidden = to - from > 0.995;
    frame.style.left = `${100 * from}%`;
    frame.style.width = `${100 * Math.max(0.004, to - from)}%`;
  }

  const at = (event) => { const box = element.getBoundingClientRect(); return Math.min(0.9999, Math.max(0, (event.clientX - box.left) / box.width)); };
  element.addEventListener("pointerdown", (event) => { element.setPointerCapture(event.pointerId); seek(at(event)); mark(); });
  element.addEventListener("pointermove", (event) => { if (event.buttons) { seek(at(event)); mark(); } });
  new ResizeObserver(draw).observe(element);
  return { element, draw, mark };
}
