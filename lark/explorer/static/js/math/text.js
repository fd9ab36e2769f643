// Text with math between $…$, $$…$$, \(…\), \[…\], environments and \boxed{…}. Everything else stays text.

import { h, visible } from "../dom.js";
import { math } from "./parse.js";

const LONGEST = 4000;
const SECTION = 3000;
const OPEN = /\$\$|\$|\\\(|\\\[|\\boxed\s*\{|\\begin\{(?:align\*?|equation\*?|gather\*?|cases|[pbvV]?matrix|array|aligned)\}/g;

// Pieces of a text: {text} or {source, isBlock, raw}.
export function pieces(text) {
  const found = [];
  let from = 0;
  const absent = new Set(); // closing marks that do not occur any more: they are not searched again
  OPEN.lastIndex = 0;
  for (let match = OPEN.exec(text); match; match = OPEN.exec(text)) {
    if (text[match.index - 1] === "\\" && match[0][0] === "$") continue;
    const end = ending(text, match, absent);
    if (!end) continue;
    if (match.index > from) found.push({ text: text.slice(from, match.index) });
    found.push({ source: end.source, isBlock: end.isBlock, raw: text.slice(match.index, end.at) });
    from = end.at;
    OPEN.lastIndex = end.at;
  }
  if (from < text.length) found.push({ text: text.slice(from) });
  return found;
}

function find(text, mark, from, absent) {
  if (absent.has(mark)) return -1;
  const at = text.indexOf(mark, from);
  if (at < 0) absent.add(mark);
  return at >= 0 && at - from <= LONGEST ? at : -1;
}

function ending(text, match, absent) {
  const start = match.index + match[0].length;
  if (match[0].startsWith("\\boxed")) {
    const at = brace(text, start);
    return at < 0 ? null : { source: text.slice(match.index, at + 1), at: at + 1, isBlock: false };
  }
  if (match[0].startsWith("\\begin")) {
    const mark = `\\end{${match[0].slice(7, -1)}}`;
    const at = find(text, mark, start, absent);
    return at < 0 ? null : { source: text.slice(match.index, at + mark.length), at: at + mark.length, isBlock: true };
  }
  const mark = { "$$": "$$", "$": "$", "\\(": "\\)", "\\[": "\\]" }[match[0]];
  let at = find(text, mark, start, absent);
  while (at > start && mark[0] === "$" && text[at - 1] === "\\") at = find(text, mark, at + 1, absent); // \$ is a dollar sign
  if (at < 0 || at - start > LONGEST) return null;
  const source = text.slice(start, at);
  // "$5 and $6" is money: a formula neither starts nor ends with a space, and no digit follows it.
  if (mark === "$" && (/^\s|\s$|\n\s*\n/.test(source) || /\d/.test(text[at + 1] ?? "") || !source)) return null;
  return { source, at: at + mark.length, isBlock: mark === "$$" || mark === "\\]" };
}

function brace(text, from) {
  let level = 1;
  for (let i = from; i < Math.min(text.length, from + LONGEST); i += 1) {
    if (text[i] === "\\") i += 1;
    else if (text[i] === "{") level += 1;
    else if (text[i] === "}" && --level === 0) return i;
  }
  return -1;
}

function render({ text, source, isBlock, raw }) {
  if (text !== undefined) return document.createTextNode(visible(text));
  try {
    return math(source, isBlock);
  } catch {
    return h("code", { class: "raw-math", title: "LaTeX that is not shown as math" }, visible(raw));
  }
}

const nodes = (text) => pieces(text).map(render);

// An answer without delimiters, such as the content of a box: as math if it is LaTeX and can be read.
export function answerText(text) {
  if (!/\\[A-Za-z]|[\^_]/.test(text) || text.length > 400 || pieces(text).length > 1) return mathText(text, true);
  const found = render({ source: text, isBlock: false, raw: text });
  return [found.localName === "math" ? found : visible(text)];
}

// Short texts at once; sections of long ones when they come into view.
export function mathText(text, isShort = false) {
  if (isShort || text.length <= 2 * SECTION) return nodes(isShort ? text.slice(0, 2 * SECTION) : text);
  return sections(text, nodes);
}

export const plainText = (text) => (text.length <= 2 * SECTION ? [visible(text)] : sections(text, (part) => [visible(part)]));

function sections(text, draw) {
  const box = h("div", { class: "sections" });
  const observer = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      observer.unobserve(target);
      target.replaceChildren(...draw(target.source));
    }
  }, { rootMargin: "1500px" });
  for (const part of split(text)) {
    const section = h("div", { class: "section" }, visible(part));
    section.source = part;
    observer.observe(section);
    box.append(section);
  }
  return box;
}

// Cut at line ends, at the first after SECTION characters. A part without one is cut anywhere.
function split(text) {
  const parts = [];
  let from = 0;
  while (from < text.length) {
    const at = text.indexOf("\n\n", from + SECTION);
    const end = at >= 0 && at - from < 4 * SECTION ? at + 1 : Math.min(text.length, from + 4 * SECTION);
    parts.push(text.slice(from, end));
    from = end;
  }
  return parts;
}
