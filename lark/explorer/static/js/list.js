// A list with search, filters, sorting and pages. Its state is in the address (with a prefix, if a page has several lists).

import { h, replace, scroller } from "./dom.js";
import { count } from "./format.js";
import { loadList } from "./load.js";
import { problemCard } from "./parts.js";
import { parse, remember } from "./route.js";

// columns: [{title, key (sortable), num, cell(row), isMain}]; on a phone, a row is a block that starts with the main cell. open(row) → address or null; filters: [[flag, label, title]], or a function that returns them.
export function list({ path, columns, open, filters = [], prefix = "", placeholder = "Search", search = true, empty = "Nothing here yet.", label, more, size }) {
  const asked = { search: "", flags: "", sort: "", page: 0 };
  const stored = parse().query;
  for (const key of Object.keys(asked)) if (stored[prefix + key]) asked[key] = stored[prefix + key];
  let values = null;
  let at = -1;
  let turn = 0;
  const chips = h("div", { class: "row chips", role: "group", "aria-label": "Filters" });
  const body = h("tbody");
  const head = h("tr");
  const foot = h("div", { class: "pager" });
  const notice = h("div");
  const box = h("input", { type: "search", placeholder, "aria-label": placeholder, value: asked.search, spellcheck: "false" });
  let timer;
  box.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => change({ search: box.value, page: 0 }), 160);
  });
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === "ArrowDown") {
      event.preventDefault();
      box.blur();
      move(1);
    }
  });

  function change(changes) {
    Object.assign(asked, changes);
    remember(Object.fromEntries(Object.entries(asked).map(([key, value]) => [prefix + key, value || ""])));
    return refresh();
  }

  async function refresh() {
    const mine = ++turn;
    element.setAttribute("aria-busy", "true");
    try {
      const found = await loadList(path, { ...asked, size });
      if (mine !== turn) return;
      values = found;
      at = Math.min(at, values.rows.length - 1);
      draw();
    } catch (error) {
      if (mine === turn) replace(notice, problemCard(error, refresh));
    } finally {
      if (mine === turn) element.removeAttribute("aria-busy");
    }
  }

  function draw() {
    replace(notice);
    const pressed = asked.flags.split(",").filter(Boolean);
    replace(chips, (typeof filters === "function" ? filters() : filters).map(([flag, text, title]) => {
      const number = values.flags[flag];
      if (!number && !pressed.includes(flag)) return null;
      const toggle = () => change({ flags: (pressed.includes(flag) ? pressed.filter((f) => f !== flag) : [...pressed, flag]).join(","), page: 0 });
      return h("button", { class: "chip", "aria-pressed": String(pressed.includes(flag)), title, on: { click: toggle } }, text, h("b", {}, count(number)));
    }));
    replace(head, columns.map((column) => {
      const direction = asked.sort === column.key ? "ascending" : asked.sort === `-${column.key}` ? "descending" : null;
      const next = direction === "descending" ? column.key : direction === "ascending" ? "" : `-${column.key}`;
      return h("th", { class: `${column.num ? "num" : ""}${column.key ? " sortable" : ""}`, scope: "col", "aria-sort": column.key ? direction : null, title: column.hint },
        column.key ? h("button", { on: { click: () => change({ sort: next, page: 0 }) } }, column.title) : column.title);
    }));
    replace(body, values.rows.map((row, i) => {
      const target = open?.(row);
      const line = h("tr", { class: `${target ? "link" : ""}${i === at ? " at" : ""}` }, columns.map((column) =>
        h("td", { class: `${column.num ? "num" : ""}${column.isMain ? " main" : ""} ${column.class ?? ""}`, data: { label: column.title } }, column.cell(row, target))));
      if (target) line.addEventListener("click", (event) => { if (!event.target.closest("a, button") && !String(getSelection())) location.hash = target; });
      return line;
    }));
    if (!values.rows.length) replace(body, h("tr", {}, h("td", { colspan: columns.length, class: "empty" }, values.total ? "Nothing matches." : empty)));
    const first = values.page * values.size + 1;
    const shown = values.found ? `${count(first)}–${count(first + values.rows.length - 1)} of ${count(values.found)}` : "0";
    const filtered = values.found < values.total ? ` (${count(values.total)} in all)` : "";
    foot.hidden = !values.total;
    replace(foot, h("span", {}, shown, filtered, more ?? ""), values.pages > 1 ? h("span", { class: "row" },
      h("button", { class: "button", disabled: values.page === 0, on: { click: () => turnPage(-1) } }, "Previous"),
      h("span", {}, `${values.page + 1} / ${values.pages}`),
      h("button", { class: "button", disabled: values.page >= values.pages - 1, on: { click: () => turnPage(1) } }, "Next")) : null);
  }

  function turnPage(step) {
    const page = Math.min(Math.max(0, values.page + step), values.pages - 1);
    if (page !== values.page) { at = -1; change({ page }); }
  }

  function move(step) {
    if (!values?.rows.length) return;
    at = Math.min(Math.max(0, at + step), values.rows.length - 1);
    [...body.children].forEach((line, i) => line.classList.toggle("at", i === at));
    body.children[at].scrollIntoView({ block: "nearest" });
  }

  const keys = {
    j: () => move(1), k: () => move(-1), ArrowDown: () => move(1), ArrowUp: () => move(-1),
    n: () => turnPage(1), p: () => turnPage(-1),
    Enter: () => { const target = at >= 0 && open?.(values.rows[at]); if (target) location.hash = target; },
  };
  const element = h("div", { class: "list" },
    search || filters.length ? h("div", { class: "toolbar list-tools" }, search ? box : null, chips) : null,
    notice,
    scroller(h("table", { "aria-label": label }, h("thead", {}, head), body)), foot);
  const ready = refresh();
  return { element, keys, refresh, ready };
}
