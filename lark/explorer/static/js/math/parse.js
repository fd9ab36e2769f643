// LaTeX math to MathML elements. What it does not know makes it give up: the caller then shows the source as it is.

import { ACCENTS, FUNCTIONS, IGNORED, LARGE, LETTERS, MATRICES, OPERATORS, SPACES, STYLES, UNDER, WITH_LIMITS } from "./symbols.js";

const MATH = "http://www.w3.org/1998/Math/MathML";
const DEEPEST = 40;

export class Unknown extends Error {}

function m(tag, props, ...children) {
  const element = document.createElementNS(MATH, tag);
  for (const [key, value] of Object.entries(props ?? {})) if (value !== null) element.setAttribute(key, value);
  for (const child of children) element.append(child instanceof Node ? child : document.createTextNode(child));
  return element;
}

const choose = (parts) => m("mrow", {}, m("mo", {}, "("), m("mfrac", { linethickness: "0" }, ...parts), m("mo", {}, ")"));

// The source as a <math> element. Throws Unknown.
export function math(source, isBlock) {
  const parser = new Parser(source);
  const row = parser.row(() => parser.isAtEnd());
  return m("math", { display: isBlock ? "block" : null }, row);
}

class Parser {
  constructor(source) {
    this.source = source;
    this.at = 0;
    this.depth = 0;
  }

  isAtEnd() {
    this.skipSpace();
    return this.at >= this.source.length;
  }

  skipSpace() {
    while (/\s/.test(this.source[this.at] ?? "")) this.at += 1;
  }

  starts(text) {
    return this.source.startsWith(text, this.at);
  }

  fail(what) {
    throw new Unknown(what);
  }

  // Atoms until `end()` is true, as one row.
  row(end) {
    this.depth += 1;
    if (this.depth > DEEPEST) this.fail("too deep");
    const row = m("mrow");
    while (!end()) {
      if (this.at >= this.source.length) this.fail("unbalanced");
      const infix = /^\\(over|choose)(?![A-Za-z])/.exec(this.source.slice(this.at, this.at + 8));
      if (infix) { // {a \over b}: everything before and after it
        this.at += infix[0].length;
        const parts = [m("mrow", {}, ...row.childNodes), this.row(end)];
        row.append(infix[1] === "over" ? m("mfrac", {}, ...parts) : choose(parts));
        break;
      }
      const atom = this.scripted();
      if (!atom) continue;
      // A sign after another operator, as in "= −1", belongs to what follows.
      const before = row.lastChild;
      if (/^[−+±]$/.test(atom.textContent) && (!before || (before.localName === "mo" && !/[)\]}|!]/.test(before.textContent)))) atom.setAttribute("form", "prefix");
      row.append(atom);
    }
    this.depth -= 1;
    return row.childNodes.length === 1 ? row.firstChild : row;
  }

  // An atom with its sub- and superscripts.
  scripted() {
    const base = this.atom();
    let [below, above] = [null, null];
    let primes = "";
    for (;;) {
      this.skipSpace();
      const c = this.source[this.at];
      if (c === "_" && !below) { this.at += 1; below = this.argument(); }
      else if (c === "^" && !above) { this.at += 1; above = this.argument(); }
      else if (c === "'") { this.at += 1; primes += "′"; }
      else break;
    }
    if (primes) above = above ? m("mrow", {}, m("mo", {}, primes), above) : m("mo", {}, primes);
    if (!below && !above) return base;
    const body = base ?? m("mrow");
    const isStacked = body.dataset?.stacked || body.getAttribute?.("data-stacked");
    const [sub, sup, both] = isStacked ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"];
    if (below && above) return m(both, {}, body, below, above);
    return below ? m(sub, {}, body, below) : m(sup, {}, body, above);
  }

  argument() {
    this.skipSpace();
    if (this.at >= this.source.length) this.fail("argument missing");
    const c = this.source[this.at];
    if (c === "{") return this.group();
    if (/\d/.test(c)) { // \frac12 is one half: an argument without braces is one digit
      this.at += 1;
      return m("mn", {}, c);
    }
    return this.atom() ?? m("mrow");
  }

  group() {
    this.at += 1;
    const row = this.row(() => { this.skipSpace(); return this.source[this.at] === "}"; });
    this.at += 1;
    return row;
  }

  // The text between braces, as it is.
  raw() {
    this.skipSpace();
    if (this.source[this.at] !== "{") this.fail("brace missing");
    let level = 0;
    const start = this.at + 1;
    for (; this.at < this.source.length; this.at += 1) {
      const c = this.source[this.at];
      if (c === "\\") this.at += 1;
      else if (c === "{") level += 1;
      else if (c === "}" && --level === 0) return this.source.slice(start, this.at++);
    }
    return this.fail("unbalanced");
  }

  atom() {
    this.skipSpace();
    const c = this.source[this.at];
    if (c === "{") return this.group();
    if (c === "\\") return this.command();
    if (c === "}" || c === "&" || c === "$" || c === "#") this.fail(c);
    const numeral = /^\d+(?:[.,]\d+)*|^\.\d+/.exec(this.source.slice(this.at, this.at + 40));
    if (numeral) {
      this.at += numeral[0].length;
      return m("mn", {}, numeral[0]);
    }
    const letter = String.fromCodePoint(this.source.codePointAt(this.at));
    this.at += letter.length;
    if (letter === "~") return m("mspace", { width: "0.25em" });
    if (letter === "%") this.fail("comment");
    if (/\p{L}/u.test(letter)) return m("mi", {}, letter);
    if (/[.!?]/.test(letter)) return m("mtext", {}, letter); // the end of a sentence
    if (letter === "-") return m("mo", {}, "−");
    if (letter === "*") return m("mo", {}, "∗");
    return m("mo", /[()[\]|/]/.test(letter) ? { stretchy: "false" } : {}, letter);
  }

  command() {
    this.at += 1;
    const name = /^(?:[A-Za-z]+\*?|[^A-Za-z])/.exec(this.source.slice(this.at, this.at + 40))?.[0] ?? this.fail("\\");
    this.at += name.length;
    if (LETTERS[name]) return m("mi", {}, LETTERS[name]);
    if (OPERATORS[name]) return m("mo", {}, OPERATORS[name]);
    if (LARGE[name]) return m("mo", { "data-stacked": /int/.test(name) ? null : "1", movablelimits: "true" }, LARGE[name]);
    if (FUNCTIONS.has(name)) return m("mi", { "data-stacked": WITH_LIMITS.has(name) ? "1" : null, mathvariant: "normal" }, name);
    if (SPACES[name] !== undefined) return m("mspace", { width: SPACES[name] });
    if (IGNORED.has(name)) return null;
    if (ACCENTS[name]) return m("mover", { accent: "true" }, this.argument(), m("mo", { stretchy: /wide|over/.test(name) ? "true" : "false" }, ACCENTS[name]));
    if (UNDER[name]) return m("munder", { accentunder: "true" }, this.argument(), m("mo", { stretchy: "true" }, UNDER[name]));
    if (STYLES[name]) return styled(this.argument(), STYLES[name]);
    return this.special(name);
  }

  special(name) {
    switch (name) {
      case "frac": case "dfrac": case "tfrac": case "cfrac": return m("mfrac", {}, this.argument(), this.argument());
      case "binom": case "dbinom": case "tbinom":
        return choose([this.argument(), this.argument()]);
      case "sqrt": return this.root();
      case "boxed": case "fbox": return m("mrow", { class: "boxed" }, this.argument());
      case "text": case "textbf": case "textit": case "textrm": case "mbox": case "textsf": case "texttt": case "textnormal": case "emph": return m("mtext", {}, this.raw().replace(/\\([%$&_#{} ])/g, "$1"));
      case "operatorname": case "operatorname*": return m("mi", { mathvariant: "normal", "data-stacked": name.endsWith("*") ? "1" : null }, this.raw().replace(/\\[,;: ]/g, " "));
      case "left": return this.fenced();
      case "begin": return this.environment();
      case "pmod": return m("mrow", {}, m("mo", {}, "("), m("mi", { mathvariant: "normal" }, "mod"), m("mspace", { width: "0.3em" }), this.argument(), m("mo", {}, ")"));
      case "bmod": return m("mo", { lspace: "0.3em", rspace: "0.3em" }, "mod");
      case "not": return m("mo", {}, `${this.argument().textContent}\u0338`);
      case "overset": case "stackrel": { const above = this.argument(); return m("mover", {}, this.argument(), above); }
      case "underset": { const below = this.argument(); return m("munder", {}, this.argument(), below); }
      case "phantom": case "hphantom": case "vphantom": return m("mphantom", {}, this.argument());
      case "color": case "label": case "tag": this.raw(); return null;
      case "textcolor": this.raw(); return this.argument();
      case "hspace": case "hspace*": case "vspace": { const width = this.raw(); return m("mspace", { width: /^-?[\d.]+(em|ex|pt|mm|cm)$/.test(width) ? width : "1em" }); }
      case "cancel": return m("menclose", { notation: "updiagonalstrike" }, this.argument());
      case "{": case "}": return m("mo", { stretchy: "false" }, name);
      case "%": case "$": case "&": case "#": case "_": return m("mo", {}, name);
      case "|": return m("mo", {}, "‖");
      case "\\": return m("mspace", { linebreak: "newline" });
      default: return this.fail(`\\${name}`);
    }
  }

  root() {
    this.skipSpace();
    if (this.source[this.at] !== "[") return m("msqrt", {}, this.argument());
    this.at += 1;
    const degree = this.row(() => { this.skipSpace(); return this.source[this.at] === "]"; });
    this.at += 1;
    return m("mroot", {}, this.argument(), degree);
  }

  fence() {
    this.skipSpace();
    if (this.starts("\\")) {
      const name = /^\\(?:[A-Za-z]+|.)/.exec(this.source.slice(this.at, this.at + 20))[0];
      this.at += name.length;
      const found = { "\\{": "{", "\\}": "}", "\\|": "‖" }[name] ?? OPERATORS[name.slice(1)];
      return found ?? this.fail(name);
    }
    const c = this.source[this.at] ?? this.fail("fence");
    this.at += 1;
    return c === "." ? "" : c === "<" ? "⟨" : c === ">" ? "⟩" : c;
  }

  fenced() {
    const left = this.fence();
    const inside = this.row(() => { this.skipSpace(); return this.starts("\\right") && !/^\\right[a-z]/.test(this.source.slice(this.at, this.at + 7)); });
    this.at += "\\right".length;
    const right = this.fence();
    const mark = (c, form) => (c ? m("mo", { fence: "true", form, stretchy: "true" }, c) : m("mrow"));
    return m("mrow", {}, mark(left, "prefix"), inside, mark(right, "postfix"));
  }

  environment() {
    const name = this.raw();
    const ends = MATRICES[name] ?? this.fail(name);
    if (name === "array") this.raw();
    const close = `\\end{${name}}`;
    const rows = [];
    let cells = [];
    const isEdge = () => { this.skipSpace(); return this.starts("&") || this.starts("\\\\") || this.starts(close); };
    for (;;) {
      cells.push(m("mtd", {}, this.row(isEdge)));
      if (this.starts("&")) this.at += 1;
      else {
        if (cells.length > 1 || cells[0].textContent || !this.starts(close)) rows.push(m("mtr", {}, ...cells));
        cells = [];
        if (this.starts(close)) break;
        this.at += 2;
        if (this.source[this.at] === "[") this.at = Math.max(this.at, this.source.indexOf("]", this.at) + 1);
      }
    }
    this.at += close.length;
    const isAligned = /^(align|gather|split|equation)/.test(name);
    const body = m("mtable", { class: isAligned ? "aligned" : name === "cases" ? "cases" : null, displaystyle: isAligned ? "true" : null }, ...rows);
    const mark = (c, form) => (c ? m("mo", { fence: "true", form, stretchy: "true" }, c) : m("mrow"));
    return ends[0] || ends[1] ? m("mrow", {}, mark(ends[0], "prefix"), body, mark(ends[1], "postfix")) : body;
  }
}

// Letters in another style. Browsers support only mathvariant="normal", so others are shown by their own characters.
const STARTS = { "double-struck": [0x1d538, 0x1d552, 0x1d7d8], bold: [0x1d400, 0x1d41a, 0x1d7ce], script: [0x1d49c, 0x1d4b6], fraktur: [0x1d504, 0x1d51e], "sans-serif": [0x1d5a0, 0x1d5ba, 0x1d7e2], monospace: [0x1d670, 0x1d68a, 0x1d7f6] };
const SPECIAL = { "double-struck": { C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ" }, script: { B: "ℬ", E: "ℰ", F: "ℱ", H: "ℋ", I: "ℐ", L: "ℒ", M: "ℳ", R: "ℛ" }, fraktur: { C: "ℭ", H: "ℌ", I: "ℑ", R: "ℜ", Z: "ℨ" } };

function styled(node, variant) {
  const leaves = node.matches("mi, mn") ? [node] : [...node.querySelectorAll("mi, mn")];
  for (const leaf of leaves) {
    if (variant === "normal") { leaf.setAttribute("mathvariant", "normal"); continue; }
    const [upper, lower, digit] = STARTS[variant] ?? [];
    if (!upper) continue;
    leaf.textContent = [...leaf.textContent].map((c) => SPECIAL[variant]?.[c]
      ?? (/[A-Z]/.test(c) ? String.fromCodePoint(upper + c.charCodeAt(0) - 65) : /[a-z]/.test(c) ? String.fromCodePoint(lower + c.charCodeAt(0) - 97) : /\d/.test(c) && digit ? String.fromCodePoint(digit + Number(c)) : c)).join("");
  }
  return node;
}
