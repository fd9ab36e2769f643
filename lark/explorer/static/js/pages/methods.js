// Methods: how scores are distributed, where methods agree, and on which questions two of them disagree most.

import { methodColour } from "../charts/base.js";
import { density, matrix } from "../charts/grids.js";
import { histogram, strips } from "../charts/plots.js";
import { h, oneLine, replace, responsive, visible } from "../dom.js";
import { fixed, percent, plural } from "../format.js";
import { list } from "../list.js";
import { load } from "../load.js";
import { card, choice, later, methodName, poolChoice, segments, teacherName } from "../parts.js";
import { address, follow, remember } from "../route.js";

export async function open(route) {
  const [pool, asked] = route.parts;
  const [values, { pools }] = await Promise.all([load(`methods/${pool}/${asked}`), load("overview")]);
  const view = follow(asked, values.view.id);
  const keys = values.rankings.map((r) => r.key);
  if (!keys.length) return { title: "Methods", body: nothing(values) };
  const pick = (key, otherwise) => (keys.includes(key) ? key : otherwise);
  const state = {
    m: pick(route.query.m, keys[0]),
    B: values.budgets.includes(Number(route.query.B)) ? Number(route.query.B) : values.budgets.includes(3) ? 3 : values.budgets[0],
    x: pick(route.query.x, values.comparable[0] ?? keys[0]),
    y: pick(route.query.y, values.comparable.includes("rsr") ? "rsr" : values.comparable[1] ?? keys[0]),
  };
  const label = (key) => methodName(values.rankings.find((r) => r.key === key).label);
  const [scoresBox, agreementBox, questionsBox] = [h("div"), h("div"), h("div")];
  let questions = { keys: {} };
  let shownKeys = {};

  function drawScores() {
    replace(scoresBox, later(load(`distribution/${pool}/${view}/${state.m}`), distribution));
  }
  function drawAgreement() {
    replace(agreementBox, later(load(`agreement/${pool}/${view}/${state.B}`), (found) => agreement(found, state, (x, y) => { change({ x, y }); questionsBox.scrollIntoView({ block: "nearest", behavior: "smooth" }); })));
  }
  function drawQuestions() {
    const pair = [state.x, state.y].sort((a, b) => keys.indexOf(a) - keys.indexOf(b)); // one address for both orders
    questions = list({
      path: `disagreement/${pool}/${view}/${pair.join("/")}/${state.B}`, prefix: "q", label: "Questions on which the two methods disagree most", placeholder: "Search questions",
      filters: [["disjoint", `nothing in common at B=${state.B}`]],
      open: (row) => address("question", [pool, view, row.n], { m: state.x, B: state.B }),
      columns: [
        { title: "Question", isMain: true, cell: (row, target) => h("div", { class: "tight question-cell" }, h("a", { href: target, class: "fill two-lines" }, oneLine(row.text)), h("code", { class: "faint small" }, visible(row.id))) },
        ...[0, 1].map((side) => ({ title: `${label(pair[side])} chooses`, class: "picks", cell: (row) => row.picks[side].map((name) => h("span", { class: `tag${row.picks[1 - side].includes(name) ? " accent" : ""}`, title: visible(name) }, visible(name))) })),
        { title: "Rank correlation", key: "spearman", num: true, cell: (row) => fixed(row.spearman, 3) },
        { title: `Common at B=${state.B}`, key: "overlap", num: true, cell: (row) => percent(row.overlap) },
      ],
    });
    for (const key of Object.keys(shownKeys)) delete shownKeys[key];
    Object.assign(shownKeys, questions.keys);
    const options = values.comparable.map((key) => [key, label(key)]);
    replace(questionsBox, h("section", { class: "card flush" },
      h("header", {}, h("div", { class: "row" }, h("h2", {}, "Where two methods disagree most")),
        h("div", { class: "row" }, choice("", options, state.x, (x) => change({ x })), h("span", { class: "muted" }, "and"), choice("", options, state.y, (y) => change({ y })))),
      questions.element));
  }
  function change(changes) {
    Object.assign(state, changes);
    remember({ ...state, qpage: "", qsearch: "", qsort: "", qflags: "" });
    if ("m" in changes) drawScores();
    if ("B" in changes || "x" in changes || "y" in changes) drawAgreement();
    if ("B" in changes || "x" in changes || "y" in changes) drawQuestions();
  }
  drawScores();
  if (values.comparable.length > 1) { drawAgreement(); drawQuestions(); }
  const body = h("div", { class: "stack" },
    h("div", { class: "page-head" },
      h("div", { class: "row between" }, h("h1", {}, "Methods"), poolChoice("methods", pools, values.views, values.view)),
      h("p", { class: "muted" }, `${plural(values.rankings.length, "method")} can be computed from the artifacts of the pool `, h("a", { href: address("pool", [pool, view]) }, visible(values.view.pool.name)), `: ${plural(values.questions, "question")}, ${plural(values.trajectories, "trajectory", "trajectories")}.`)),
    h("div", { class: "toolbar" }, segments("Method", values.rankings.map((r) => [r.key, methodName(r.label), visible(r.about)]), state.m, (m) => change({ m }))),
    scoresBox,
    values.comparable.length > 1 ? [
      h("div", { class: "toolbar" }, h("h2", {}, "Agreement"), segments("Budget", values.budgets.map((b) => [b, `B = ${b}`]), state.B, (B) => change({ B }))),
      agreementBox, questionsBox] : null);
  return { title: "Methods", body, keys: shownKeys };
}

function nothing(values) {
  return h("div", { class: "stack" }, h("h1", {}, "Methods"), card(null, null, h("p", { class: "muted" }, `No student has been run on the pool ${visible(values.view.pool.name)} yet: there are no scores.`)));
}

function distribution(values) {
  const colour = methodColour(values.method);
  const title = `score of ${methodName(values.label)} (${values.higher ? "higher" : "lower"} is better)`;
  const teachers = [...values.teachers].sort((a, b) => ((b.quantiles?.[2] ?? -Infinity) - (a.quantiles?.[2] ?? -Infinity)) * (values.higher ? 1 : -1));
  return h("div", { class: "grid two" },
    h("div", { class: "grid" },
      card("Scores by teacher", "median, middle half, 5–95%", h("div", { class: "tall" }, responsive((width) => strips(width, { rows: teachers.map((t) => ({ name: teacherName(t.teacher), quantiles: t.quantiles })), label: "Scores by teacher", title, colour })))),
      card("All candidates", plural(values.scored, "score"), responsive((width) => histogram(width, { edges: values.edges, counts: values.histogram, label: "Scores of all candidates", title, titleY: "candidates", colour })))),
    values.length ? card("Scores by length", "colour: number of candidates; line: median score", responsive((width) => density(width, { ...values.length, label: "Scores by length", titleX: "response tokens", titleY: "score", height: Math.min(560, Math.max(300, width * 0.9)) }))) : null);
}

function agreement(values, state, pick) {
  const names = values.rankings.map((r) => methodName(r.label));
  const keys = values.rankings.map((r) => r.key);
  const isChosen = (i, j) => (keys[i] === state.x && keys[j] === state.y) || (keys[i] === state.y && keys[j] === state.x);
  const shares = values.shares;
  const most = Math.max(...shares.flat());
  return h("div", { class: "grid" },
    h("div", { class: "matrix-row" },
      card("Rank correlation", "Spearman within questions, mean; click a pair", responsive((width) => matrix(width, {
        rows: names, columns: names, values: values.spearman, low: -1, high: 1, label: "Rank correlation between methods", isDiverging: true, chosen: isChosen, short: (v) => fixed(v, 1).replace("0.", "."),
        tip: (i, j) => `${names[i]} and ${names[j]}: ${fixed(values.spearman[i][j], 3)}`, pick: (i, j) => pick(keys[i], keys[j]),
      }))),
      card(`Common selections at B = ${values.budget}`, "share that both choose; click a pair", responsive((width) => matrix(width, {
        rows: names, columns: names, values: values.overlap, low: 0, high: 1, label: "Overlap of selections", form: (v) => percent(v), chosen: isChosen,
        tip: (i, j) => `${names[i]} and ${names[j]} have ${percent(values.overlap[i][j], 1)} in common`, pick: (i, j) => pick(keys[i], keys[j]),
      })))),
    card(`Teachers' shares at B = ${values.budget}`, `of what each method selects; ${percent(1 / Math.max(1, values.teachers.length), 1)} would be equal shares`, responsive((width) => matrix(width, {
      rows: names, columns: values.teachers.map(teacherName), values: shares, low: 0, high: most, label: "Shares of teachers", form: (v) => percent(v),
      tip: (i, j) => `${names[i]}: ${percent(shares[i][j], 1)} from ${teacherName(values.teachers[j])}`,
    }))));
}

