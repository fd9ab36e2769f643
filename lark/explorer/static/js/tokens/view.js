// The tokens of one candidate: lines of coloured tokens, of which only the visible ones are on the page, and a strip above them.

import { level } from "../charts/grids.js";
import { h } from "../dom.js";
import { hideTip } from "../parts.js";
import { layout } from "./layout.js";
import { strip } from "./strip.js";

const LINE = 22;
const MARGIN = 12;
const PEAK = 0.6;

// onToken(i, element | null): the pointer or the cursor is on a token. onScroll(share): the view was scrolled by the user.
export function tokenView(tokens, { label, onToken, onScroll }) {
  const space = h("div", { class: "token-space" });
  const box = h("div", { class: "tokens", tabindex: 0, role: "application", "aria-label": `Tokens of ${label}. Arrow keys move from token to token.` }, space);
  const ruler = h("span", { class: "ruler", "aria-hidden": "true" }, "0".repeat(100));
  let state = { lines: [[]], lineOf: new Int32Array(0) };
  let scale = null;
  let values = [];
  let cursor = -1;
  let columns = 0;
  const drawn = new Map(); // line number → element
  let isMoved = false;

  const map = strip(tokens.count, {
    value: (i) => scale?.of(values[i]) ?? 0,
    window: () => {
      const [first, last] = visibleTokens();
      return [first / tokens.count, (last + 1) / tokens.count];
    },
    seek: (share) => { goTo(Math.min(tokens.count - 1, Math.floor(share * tokens.count)), "start"); onScroll?.(position()); },
  });

  function visibleTokens() {
    if (!tokens.count) return [0, -1];
    const first = Math.max(0, Math.floor(box.scrollTop / LINE));
    const last = Math.min(state.lines.length - 1, Math.floor((box.scrollTop + box.clientHeight) / LINE));
    return [firstToken(first), lastToken(last)];
  }
  function firstToken(line) {
    for (let i = line; i < state.lines.length; i += 1) if (state.lines[i].length) return state.lines[i][0][0];
    return tokens.count - 1;
  }
  function lastToken(line) {
    for (let i = line; i >= 0; i -= 1) if (state.lines[i].length) return state.lines[i].at(-1)[0];
    return 0;
  }

  function arrange() {
    space.append(ruler);
    const width = ruler.getBoundingClientRect().width / 100;
    ruler.remove();
    const fits = Math.max(12, Math.floor((box.clientWidth - 30) / (width || 8)) - 1);
    if (fits === columns) return;
    const at = columns ? visibleTokens()[0] : 0;
    columns = fits;
    state = layout(tokens.pieces, tokens.piece, columns);
    space.style.height = `${state.lines.length * LINE + 8}px`;
    box.style.setProperty("--content", `${state.lines.length * LINE + 26}px`);
    if (at) box.scrollTop = state.lineOf[at] * LINE;
    draw(true);
    map.draw();
  }

  // Add the lines that come near the window and remove those that are far; `isForced` draws all of them again.
  function draw(isForced) {
    const first = Math.max(0, Math.floor(box.scrollTop / LINE) - MARGIN);
    const last = Math.min(state.lines.length, Math.ceil((box.scrollTop + box.clientHeight) / LINE) + MARGIN);
    if (isForced) {
      space.replaceChildren();
      drawn.clear();
    }
    for (const [row, element] of drawn) {
      if (row >= first - MARGIN && row < last + MARGIN) continue;
      element.remove();
      drawn.delete(row);
    }
    const added = document.createDocumentFragment();
    for (let row = first; row < last; row += 1) {
      if (drawn.has(row)) continue;
      const element = lineElement(row);
      drawn.set(row, element);
      added.append(element);
    }
    if (added.childNodes.length) space.append(added);
  }

  function lineElement(row) {
    const line = document.createElement("div");
    line.className = "token-line";
    line.style.top = `${row * LINE}px`;
    for (const [i, text] of state.lines[row]) {
      const span = document.createElement("span");
      span.className = className(i);
      span.dataset.i = i;
      span.textContent = text;
      line.append(span);
    }
    return line;
  }

  const special = new Set(tokens.special);
  const className = (i) => `h${scale ? level(scale.of(values[i])) : 0}${i === cursor ? " cursor" : ""}${special.has(i) ? " special" : ""}`;

  function setCursor(i, isShown = true) {
    const before = cursor;
    cursor = i;
    draw();
    for (const token of space.querySelectorAll(`[data-i="${before}"], [data-i="${i}"]`)) token.className = className(Number(token.dataset.i));
    const element = space.querySelector(`[data-i="${i}"]`);
    if (isShown && element) onToken(i, element);
  }

  function goTo(i, block = "nearest") {
    const top = state.lineOf[i] * LINE;
    if (block === "start") box.scrollTop = top - LINE;
    else if (top < box.scrollTop + LINE) box.scrollTop = top - 2 * LINE;
    else if (top > box.scrollTop + box.clientHeight - 3 * LINE) box.scrollTop = top - box.clientHeight + 4 * LINE;
    draw();
  }

  const position = () => box.scrollTop / Math.max(1, box.scrollHeight - box.clientHeight);
  let waiting = false;
  box.addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
      map.mark();
      if (isMoved) onScroll?.(position());
    });
    hideTip();
  }, { passive: true });
  for (const event of ["wheel", "touchmove", "keydown", "pointerdown"]) box.addEventListener(event, () => { isMoved = true; }, { passive: true });
  box.addEventListener("pointerover", (event) => {
    const token = event.target.closest("[data-i]");
    if (token) onToken(Number(token.dataset.i), token);
  });
  box.addEventListener("pointerleave", () => onToken(null));
  box.addEventListener("click", (event) => { const token = event.target.closest("[data-i]"); if (token) setCursor(Number(token.dataset.i)); });
  box.addEventListener("blur", () => onToken(null));
  box.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const lines = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20 }[event.key];
    let to = null;
    if (step) to = cursor < 0 ? visibleTokens()[0] : cursor + step;
    else if (lines && cursor >= 0) to = nearest(cursor, lines);
    else if (lines) to = visibleTokens()[0];
    else if (event.key === "Home") to = 0;
    else if (event.key === "End") to = tokens.count - 1;
    if (to === null || !tokens.count) return;
    event.preventDefault();
    to = Math.min(Math.max(0, to), tokens.count - 1);
    goTo(to);
    setCursor(to);
  });

  // Go to the next or previous token that stands out: at least PEAK of the scale, and more than the token before it.
  function peak(step) {
    const height = (i) => scale?.of(values[i]) ?? 0;
    for (let i = cursor < 0 ? (step > 0 ? 0 : tokens.count - 1) : cursor + step; i >= 0 && i < tokens.count; i += step) {
      if (height(i) >= PEAK && (i === 0 || height(i - 1) < height(i))) {
        box.focus({ preventScroll: true });
        goTo(i);
        setCursor(i);
        return true;
      }
    }
    return false;
  }

  // The token at the same place some lines below or above.
  function nearest(i, by) {
    const row = state.lineOf[i];
    const before = state.lines[row].filter(([t]) => t < i).reduce((sum, [, text]) => sum + text.length, 0);
    const target = Math.min(Math.max(0, row + by), state.lines.length - 1);
    let sum = 0;
    for (const [t, text] of state.lines[target]) {
      sum += text.length;
      if (sum > before) return t;
    }
    return by > 0 ? lastToken(target) : firstToken(target);
  }

  const observer = new ResizeObserver(arrange);
  observer.observe(box);
  return {
    element: h("div", { class: "token-view" }, map.element, box),
    box, goTo, peak, setCursor, position,
    setScale(next) {
      scale = next;
      values = next.measure.values(tokens);
      draw(true);
      map.draw();
    },
    scrollTo(share) {
      isMoved = false;
      box.scrollTop = share * Math.max(0, box.scrollHeight - box.clientHeight);
    },
    redraw() { draw(true); map.draw(); },
    focus: () => box.focus({ preventScroll: true }),
    leave: () => observer.disconnect(),
  };
}

