// How the teachers of a pool were asked: models, rollouts, verdicts and costs.

import { h, scroller, visible } from "../dom.js";
import { count, percent } from "../format.js";
import { teacherName } from "../parts.js";

export function taughtCard(rows) {
  if (!rows.length) return null;
  const paid = rows.some((row) => row.cost);
  const failed = rows.some((row) => Object.keys(row.failures).length);
  const money = (value) => (value === null ? "–" : value.toPrecision(3));
  const reasons = (row) => Object.entries(row.failures).map(([reason, number]) => `${visible(reason)}: ${count(number)}`).join(", ");
  return h("section", { class: "card" },
    h("header", {}, h("h2", {}, "How they were asked"), h("p", {}, "rollouts of the teachers of this run, before any filter of the pool")),
    scroller(h("table", { "aria-label": "How the teachers were asked" },
      h("thead", {}, h("tr", {}, h("th", { class: "stick" }, "Teacher"), h("th", {}, "Model"), h("th", {}, "Asked on"), h("th", { class: "num" }, "Questions"), h("th", { class: "num" }, "Rollouts"),
        h("th", { class: "num" }, "Mean tokens"), h("th", { class: "num", title: "reached the limit on tokens" }, "Cut off"), h("th", { class: "num", title: "share of those with a verdict" }, "Correct"),
        h("th", { class: "num", title: "correct rollouts with different texts" }, "Correct and different"),
        paid ? [h("th", { class: "num" }, "Cost"), h("th", { class: "num" }, "Cost of each")] : null, failed ? h("th", {}, "Without an answer") : null)),
      h("tbody", {}, rows.map((row) => h("tr", {},
        h("td", { class: "stick" }, teacherName(row.teacher)), h("td", {}, row.models.map(visible).join(", ")), h("td", {}, visible(row.day)),
        h("td", { class: "num" }, count(row.questions)), h("td", { class: "num" }, count(row.rollouts)), h("td", { class: "num" }, count(row.tokens)),
        h("td", { class: "num" }, percent(row.cut, 1)), h("td", { class: "num" }, percent(row.correct, 1)), h("td", { class: "num" }, count(row.distinct)),
        paid ? [h("td", { class: "num" }, money(row.cost)), h("td", { class: "num" }, money(row.cost_per_distinct))] : null,
        failed ? h("td", {}, reasons(row)) : null))))));
}
