// Elements from code. Texts always become text nodes: nothing that a model wrote is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, props, children) {
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") element.setAttribute("class", value);
    else if (key === "on") for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    else if (key === "style") for (const [name, v] of Object.entries(value)) element.style.setProperty(name, v);
    else if (key === "data") for (const [name, v] of Object.entries(value)) element.dataset[name] = v;
    else if (key === "value" || key === "checked" || key === "disabled") element[key] = value;
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);
export const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

export function replace(element, ...children) {
  element.replaceChildren();
  return append(element, children);
}

// A part of the page that is drawn again when its width changes.
export function responsive(draw, props = {}) {
  const box = h("div", props);
  let width = 0;
  const observer = new ResizeObserver(() => {
    const now = Math.round(box.clientWidth);
    if (now && now !== width) {
      width = now;
      replace(box, draw(width));
    }
  });
  observer.observe(box);
  box.redraw = () => width && replace(box, draw(width));
  return box;
}

// A table that can be wider than its place. The side behind which there is more fades out, and a button above says how much there is.
export function scroller(...content) {
  const box = h("div", { class: "table-scroll" }, ...content);
  const button = h("button", { class: "more-columns", type: "button", hidden: true, on: { click: () => {
    const isEnd = !box.classList.contains("more");
    box.scrollBy({ left: isEnd ? -box.scrollLeft : 0.7 * box.clientWidth, behavior: "smooth" });
  } } });
  const mark = () => {
    const edge = box.getBoundingClientRect().right;
    const hidden = [...box.querySelectorAll("thead tr:last-child th")].filter((th) => th.getBoundingClientRect().right > edge + 2).length;
    const hasMore = box.scrollLeft + box.clientWidth < box.scrollWidth - 2;
    box.classList.toggle("more", hasMore);
    button.hidden = box.scrollWidth <= box.clientWidth + 2;
    button.textContent = !hasMore ? "‹ back" : hidden ? `${hidden} more column${hidden === 1 ? "" : "s"} ›` : "more ›";
  };
  box.addEventListener("scroll", mark, { passive: true });
  const observer = new ResizeObserver(mark);
  observer.observe(box);
  for (const part of box.children) observer.observe(part); // rows may come later
  return h("div", { class: "scroll-frame" }, button, box);
}

// A colour of the style sheet as a canvas takes it. Custom properties hold light-dark(), which only a real property resolves.
const probe = h("span", { class: "sr" });
let known = new Map();
export function colour(name) {
  if (!known.has(name)) {
    if (!probe.isConnected) document.body.append(probe);
    probe.style.color = `var(${name})`;
    known.set(name, getComputedStyle(probe).color);
  }
  return known.get(name);
}
export const forgetColours = () => { known = new Map(); };

// Characters that hide or reorder others are shown by their number, wherever a model's text appears.
// eslint-disable-next-line no-control-regex, no-misleading-character-class
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\ufff9-\ufffb]/gu;
export const visible = (text) => text.replace(HIDDEN, (c) => `⟨${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
export const oneLine = (text) => visible(text.replace(/\s+/g, " "));

// A sentence of ours, with commands between backticks as code.
export const said = (text) => visible(text).split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part));

export function announce(text) {
  document.getElementById("live").textContent = text;
}
