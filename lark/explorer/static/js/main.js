// The frame around the pages: navigation, the chosen pool and student, light and dark, errors.

import { announce, forgetColours, h, replace } from "./dom.js";
import * as keys from "./keys.js";
import { isStatic, load, loadList, Problem } from "./load.js";
import { problemCard } from "./parts.js";
import { address, go, parse } from "./route.js";

const PAGES = {
  overview: () => import("./pages/overview.js"),
  artifact: () => import("./pages/artifact.js"),
  pool: () => import("./pages/pool.js"),
  question: () => import("./pages/question.js"),
  compare: () => import("./pages/compare.js"),
  methods: () => import("./pages/methods.js"),
  answers: () => import("./pages/answers.js"),
  problem: () => import("./pages/problem.js"),
};
const TABS = [["overview", "Overview"], ["pool", "Pool"], ["compare", "Compare"], ["methods", "Methods"], ["answers", "Answers"]];
const TAB_OF = { artifact: "overview", question: "pool", problem: "answers" };

const OF_POOL = ["pool", "methods", "compare"]; // tabs whose address begins with a pool and a student

const main = document.getElementById("main");
const top = document.getElementById("top");
let current = { leave: () => {} };
let drawn = 0;
const context = { pool: null, view: null, pools: [] };

function theme() {
  return localStorage.getItem("lark-theme") ?? "auto";
}

function setTheme(value) {
  localStorage.setItem("lark-theme", value);
  document.documentElement.dataset.theme = value;
  forgetColours();
  document.dispatchEvent(new CustomEvent("theme"));
}

function toggleTheme() {
  const isDark = getComputedStyle(document.documentElement).colorScheme === "dark"
    || (theme() === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  setTheme(isDark ? "light" : "dark");
}

function tabAddress(tab) {
  if (tab === "compare" && context.pair) return address("compare", context.pair);
  return OF_POOL.includes(tab) && context.pool ? address(tab, [context.pool, context.view]) : address(tab);
}

function drawTop(route) {
  const active = TAB_OF[route.page] ?? route.page;
  replace(top,
    h("a", { class: "brand", href: "#/" }, h("img", { src: "static/favicon.svg", alt: "" }), "LARK", h("span", {}, "explorer")),
    h("nav", { class: "nav", "aria-label": "Pages" }, TABS.map(([tab, label]) =>
      h("a", { href: tabAddress(tab), "aria-current": tab === active ? "page" : null }, label))),
    h("div", { class: "top-end" },
      isStatic ? h("span", { class: "tag", title: "Some questions of a store, as files" }, "export") : null,
      h("button", { class: "icon-button", title: "Light or dark (t)", "aria-label": "Light or dark", on: { click: toggleTheme } }, "◐"),
      h("button", { class: "icon-button", title: "Keyboard (?)", "aria-label": "Keyboard shortcuts", on: { click: keys.help } }, "?")));
}

// The pool and student that the tabs lead to: those of the address, or the newest of the store.
async function choose(route) {
  if (["pool", "question", "compare", "methods"].includes(route.page) && route.parts.length >= 2) {
    [context.pool, context.view] = route.parts;
    return;
  }
  if (!context.pool) {
    const { pools } = await load("overview");
    context.pools = pools;
    const first = pools.find((pool) => pool.state === "finished") ?? pools[0];
    if (first) [context.pool, context.view] = [first.fingerprint, first.views[0].id];
  }
}

// Two candidates for the tab of comparisons: of the first question whose tokens were kept, or of the first one.
async function firstPair() {
  const path = `questions/${context.pool}/${context.view}`;
  const { rows } = await loadList(path, { flags: "tokens" });
  const [question] = rows.length ? rows : (await loadList(path, {})).rows;
  if (!question) throw new Problem("This pool has no questions.");
  return [context.pool, context.view, question.n, 0, Math.min(1, question.candidates - 1)];
}

async function draw() {
  const turn = ++drawn;
  const route = parse();
  current.leave?.();
  current = {};
  keys.bind({});
  document.querySelectorAll(".tooltip").forEach((tip) => { tip.hidden = true; });
  drawTop(route);
  main.setAttribute("aria-busy", "true");
  const waiting = setTimeout(() => turn === drawn && replace(main, h("div", { class: "skeleton", "aria-label": "Loading" })), 180);
  try {
    if (!PAGES[route.page]) throw new Problem("There is no such page.");
    const [page] = await Promise.all([PAGES[route.page](), choose(route)]);
    if (route.page === "compare" && route.parts.length < 5 && context.pool) {
      location.replace(address("compare", await firstPair()));
      return;
    }
    if (OF_POOL.includes(route.page) && route.parts.length < 2) {
      if (!context.pool) throw new Problem("This store has no pool yet. `make run` makes one.");
      history.replaceState(null, "", tabAddress(route.page));
      clearTimeout(waiting);
      draw();
      return;
    }
    const shown = await page.open(route, context);
    if (turn !== drawn) {
      shown.leave?.();
      return;
    }
    current = shown;
    context.pair = route.page === "compare" ? parse().parts : context.pair?.[0] === context.pool ? context.pair : null; // the tab leads back to it
    if (context.view && parse().parts[0] === context.pool) context.view = parse().parts[1] ?? context.view; // see follow()
    replace(main, shown.body);
    keys.bind(shown.keys ?? {});
    document.title = `${shown.title} · LARK explorer`;
    announce(shown.title);
    drawTop(parse());
    shown.shown?.();
  } catch (error) {
    if (turn === drawn) {
      context.pool = null; // it may be gone: the tabs lead to the newest one
      drawTop(route);
      replace(main, problemCard(error, draw));
    }
  } finally {
    clearTimeout(waiting);
    if (turn === drawn) main.removeAttribute("aria-busy");
  }
}

document.documentElement.dataset.theme = theme();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { forgetColours(); document.dispatchEvent(new CustomEvent("theme")); });
keys.bindEverywhere({
  "?": keys.help,
  t: toggleTheme,
  "/": () => { const box = main.querySelector('input[type="search"]'); box?.focus(); box?.select(); },
  "g o": () => go("overview"),
  "g p": () => { location.hash = tabAddress("pool"); },
  "g c": () => { location.hash = tabAddress("compare"); },
  "g m": () => { location.hash = tabAddress("methods"); },
  "g a": () => { location.hash = tabAddress("answers"); },
});
keys.start();
document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
let last = location.hash.split("?")[0];
addEventListener("hashchange", () => {
  const now = location.hash.split("?")[0];
  if (now !== last) scrollTo(0, 0);
  last = now;
  draw();
});
draw();
