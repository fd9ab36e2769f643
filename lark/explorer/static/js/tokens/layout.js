// Tokens as lines of a fixed width. Lines have one height, so that only the visible ones need to be on the page.

import { visible } from "../dom.js";

const WIDE = /[\u1100-\u115f\u2e80-\u303e\u3041-\u33ff\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]|[\u{1f300}-\u{1faff}]|[\u{20000}-\u{3fffd}]/u;
const COMBINING = /\p{M}/u;

// The text that is shown for a token: spaces as they are, the rest visible. Line ends are shown by ⏎.
export const shown = (text) => visible(text.replace(/\t/g, "⇥   ").replace(/\r\n|\n|\r/g, "⏎"));

function cells(text) {
  let n = 0;
  for (const c of text) n += COMBINING.test(c) ? 0 : WIDE.test(c) ? 2 : 1;
  return n;
}

// lines: arrays of [token, text]; lineOf: the line that each token starts in.
export function layout(pieces, piece, columns) {
  const known = pieces.map(describe);
  const lines = [[]];
  const lineOf = new Int32Array(piece.length);
  let used = 0;
  const push = (i, text) => lines.at(-1).push([i, text]);
  const next = () => { lines.push([]); used = 0; };
  for (let i = 0; i < piece.length; i += 1) {
    const { parts, width } = known[piece[i]];
    if (parts.length === 1 && used + width > columns && width <= columns && used > 0) next();
    lineOf[i] = lines.length - 1;
    parts.forEach((part, j) => {
      if (j) next();
      for (const [text, size] of cut(part, columns - used, columns)) {
        if (used + size > columns && used > 0) next();
        push(i, text);
        used += size;
      }
    });
  }
  return { lines, lineOf };
}

// A token's text between line ends; each end belongs to the part before it.
function describe(text) {
  const parts = text.split(/(?<=\n)/).map(shown);
  if (text.endsWith("\n")) parts.push("");
  return { parts: parts.length ? parts : [""], width: parts.length === 1 ? cells(parts[0]) : 0 };
}

// Cut a part that does not fit into a line.
function cut(part, room, columns) {
  const size = cells(part);
  if (size <= Math.max(room, 0) || size <= columns) return [[part, size]];
  const found = [];
  let [text, used, limit] = ["", 0, Math.max(1, room)];
  for (const c of part) {
    const w = COMBINING.test(c) ? 0 : WIDE.test(c) ? 2 : 1;
    if (used + w > limit) {
      found.push([text, used]);
      [text, used, limit] = ["", 0, columns];
    }
    text += c;
    used += w;
  }
  found.push([text, used]);
  return found;
}
