// A question: candidates × methods, what was chosen and why, and a slider for the budget.

import { selectionChart } from "../charts/selection.js";
import { h, replace, responsive, visible } from "../dom.js";
import { plural } from "../format.js";
import { load } from "../load.js";
import { answerText, mathText } from "../math/text.js";
import { choice, methodName, segments, stateTag, studentChoice } from "../parts.js";
import { address, follow, go, remember } from "../route.js";
import { select, WEIGHTINGS } from "../select.js";
import { why } from "../why.js";
import { candidateTable } from "./candidates.js";

export async function open(route) {
  const [pool, asked, number] = route.parts;
  const n = Number(number);
  const values = await load(`question/${pool}/${asked}/${n}`);
  const view = follow(asked, values.view.id);
  const state = startState(values, route.query);
  const [table, reasons, bar] = [h("div"), h("div", { "aria-live": "polite" }), h("div")];
  const note = h("p", { class: "muted small" });
  const output = h("output", { "aria-live": "polite" }, String(state.budget));
  const K = Math.max(1, values.candidates.length);
  const slider = h("input", { type: "range", min: 1, max: K, step: 1, value: state.budget, id: "budget", "aria-label": "Budget B", on: { input: () => change({ budget: Number(slider.value) }) } });
  const weightings = segments("Weighting", WEIGHTINGS, state.weighting, (weighting) => change({ weighting }));
  const method = choice("Method", values.rankings.map((r) => [r.key, methodName(r.label)]), state.method, (key) => change({ method: key, sort: key }));
  const menu = selectionsMenu(values, change);

  const ranking = () => values.rankings.find((r) => r.key === state.method);
  const result = () => {
    const active = ranking();
    return active ? select(values.scores[active.key], values.place, state.budget, state.weighting, active.higher) : null;
  };
  const plot = responsive((width) => {
    const active = ranking();
    const found = result();
    return selectionChart(width, {
      scores: values.scores[active.key], names: values.candidates.map((c) => visible(c.id)), result: found, weighting: state.weighting, higher: active.higher,
      label: `score of ${methodName(active.label)}`, isAt: (i) => at(found) === i, pick: (i) => change({ at: i }),
    });
  });
  const at = (found) => state.at ?? found?.chosen[0] ?? null; // the best one, until another is looked at

  function change(changes) {
    Object.assign(state, changes);
    slider.value = state.budget;
    output.textContent = String(state.budget);
    method.querySelector("select").value = state.method;
    weightings.set(state.weighting);
    remember({ m: state.method, B: state.budget, w: state.weighting, sort: state.sort === state.method ? "" : state.sort, a: state.marked[0], b: state.marked[1] });
    draw();
  }

  function mark(i) {
    const marked = state.marked.includes(i) ? state.marked.filter((c) => c !== i) : [...state.marked, i].slice(-2);
    change({ marked, at: i });
  }

  function draw() {
    const found = result();
    const used = values.selections.find((s) => s.ranking === state.method && s.weighting === state.weighting && s.chosen.length === state.budget);
    replace(table, candidateTable(values, state, found, { change, mark, compare: (i) => openComparison(i) }));
    if (found) {
      replace(note, sentence(found, used));
      replace(reasons, at(found) === null ? null : why(values, state, found, at(found)));
      if (menu.localName === "label") menu.querySelector("select").value = used?.fingerprint ?? "";
      plot.redraw();
    }
    replace(bar, state.marked.length === 2 ? compareBar() : null);
  }

  function openComparison(i) {
    const other = state.marked.find((c) => c !== i) ?? result()?.chosen.find((c) => c !== i) ?? values.candidates.find((c) => c.c !== i)?.c ?? i;
    go("compare", [pool, view, n, i, other]);
  }

  const compareBar = () => h("div", { class: "compare-bar", role: "status" },
    h("span", { class: "clip" }, state.marked.map((c, i) => `${"AB"[i]}: ${visible(values.candidates[c].id)}`).join("   ")),
    h("a", { class: "button nowrap", href: address("compare", [pool, view, n, ...state.marked]) }, "Compare them ", h("kbd", {}, "c")));

  const step = (to) => { if (to !== null) go("question", [pool, view, to], { m: state.method, B: state.budget, w: state.weighting }); };
  const order = () => table.querySelector("table")?.order ?? [];
  const move = (by) => {
    const rows = order();
    const place = Math.min(Math.max(0, rows.indexOf(state.at) + by), rows.length - 1);
    change({ at: rows[state.at === null ? 0 : place] });
    table.querySelector("tr.at")?.scrollIntoView({ block: "nearest" });
  };
  const body = h("div", { class: "stack" },
    h("div", { class: "page-head" },
      h("div", { class: "row between" },
        h("div", { class: "crumbs" }, h("a", { href: address("pool", [pool, view]) }, visible(values.view.pool.name)), h("span", {}, "/"), h("code", {}, visible(values.id)), h("span", {}, `question ${n + 1} of ${values.count}`)),
        h("div", { class: "row" }, studentChoice("question", values.views, values.view, [n]),
          h("button", { class: "button", disabled: values.previous === null, title: "Previous question ([)", "aria-label": "Previous question", on: { click: () => step(values.previous) } }, "←"),
          h("button", { class: "button", disabled: values.next === null, title: "Next question (])", "aria-label": "Next question", on: { click: () => step(values.next) } }, "→"))),
      h("h1", { class: "sr" }, `Question ${values.id}`),
      h("section", { class: "card" }, h("div", { class: "prose question-text" }, mathText(values.text)),
        values.answer ? h("p", { class: "muted answer-line" }, "Answer ", h("span", { class: "answer-box" }, answerText(values.answer))) : null)),
    values.rankings.length ? h("section", { class: "card" },
      h("header", {}, h("h2", {}, "Why these?"), menu),
      h("div", { class: "toolbar" }, method, h("div", { class: "slider" }, h("label", { for: "budget", class: "field" }, "Budget B"), slider, output), h("div", { class: "field" }, "Weights", weightings)),
      plot, note, reasons) : h("section", { class: "card" }, h("p", { class: "muted" }, "No student has been run on this pool yet: there are no scores to compare. ", values.view.id === "-" ? null : stateTag("running"))),
    values.notes.map((text) => h("p", { class: "small muted" }, visible(text))),
    h("section", { class: "card flush" }, h("header", {}, h("h2", {}, plural(values.candidates.length, "candidate")), h("p", {}, values.rankings.length ? "● selected · #1 rank · mark two to compare them token by token" : "mark two to compare them")), table),
    bar);
  return {
    title: `Question ${values.id}`, body, shown: draw,
    keys: {
      j: () => move(1), k: () => move(-1), ArrowDown: () => move(1), ArrowUp: () => move(-1),
      x: () => state.at !== null && mark(state.at),
      c: () => state.marked.length === 2 ? go("compare", [pool, view, n, ...state.marked]) : state.at !== null && openComparison(state.at),
      Enter: () => state.at !== null && openComparison(state.at),
      "[": () => step(values.previous), "]": () => step(values.next),
      "-": () => change({ budget: Math.max(1, state.budget - 1) }), "+": () => change({ budget: Math.min(K, state.budget + 1) }), "=": () => change({ budget: Math.min(K, state.budget + 1) }),
    },
  };
}

// The method, budget and weighting that the page opens with: those of the address, or of the largest selection (LARK's, if any).
function startState(values, query) {
  const size = (s) => s.chosen.length + (s.ranking === "lark" ? 1000 : 0);
  const first = [...values.selections].sort((a, b) => size(b) - size(a))[0];
  const keys = values.rankings.map((r) => r.key);
  const method = keys.includes(query.m) ? query.m : first?.ranking ?? keys[0] ?? null;
  const marked = ["a", "b"].map((key) => query[key]).filter((v) => v !== undefined && values.candidates[Number(v)]).map(Number);
  return {
    method,
    budget: Math.min(Math.max(1, Number(query.B) || first?.chosen.length || 3), Math.max(1, values.candidates.length)),
    weighting: WEIGHTINGS.some(([key]) => key === query.w) ? query.w : first?.weighting ?? "chi2",
    sort: query.sort || method, at: null, marked,
  };
}

export const selectionName = (s) => `${methodName(s.label)}, ${s.amount}, ${s.weighting}`;

function selectionsMenu(values, change) {
  if (!values.selections.length) return h("p", {}, "no selection has been made yet: this is what one would choose");
  return choice("Selection", [["", "none: computed here"], ...values.selections.map((s) => [s.fingerprint, selectionName(s)])], "", (print) => {
    const chosen = values.selections.find((s) => s.fingerprint === print);
    if (chosen?.chosen.length) change({ method: chosen.ranking, sort: chosen.ranking, budget: chosen.chosen.length, weighting: chosen.weighting, at: null });
    else change({});
  });
}

function sentence(found, used) {
  if (!found.K) return "No candidate of this question has a score of this method (yet).";
  const parts = [`K = ${found.K} candidates with a score, B = ${found.size}.`];
  if (found.threshold === null) parts.push("The budget takes every candidate: there is no threshold, and all weights are equal.");
  else if (found.isTied) parts.push("The last selected and the first rejected candidate have equal scores, so the tie was broken by candidate_id.");
  parts.push(used ? `This is the selection ${visible(used.name)} as it was made.` : "No selection of this store has these settings: the browser computes it, by the same rules.");
  return parts.join(" ");
}
