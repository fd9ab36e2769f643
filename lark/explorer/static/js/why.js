// Why a candidate was chosen, or not: its rank, what its score is made of, what its weight is made of, and what other methods think.

import { h, visible } from "./dom.js";
import { fixed, number, ordinal, percent } from "./format.js";
import { methodName } from "./parts.js";

const finite = (v) => v !== null && v !== undefined && Number.isFinite(v);

// ĝ = l/L (2ρ̂ − ρ̄) of Algorithm 1, line 7, from the numbers of the table. Null if a candidate has none.
export function learnability(candidates, i) {
  const valid = candidates.filter((c) => finite(c.loss) && finite(c.rho) && c.loss > 0);
  const mine = candidates[i];
  if (!valid.includes(mine)) return null;
  const total = valid.reduce((sum, c) => sum + c.loss, 0);
  const mean = valid.reduce((sum, c) => sum + c.rho * c.loss, 0) / total;
  const place = (key) => 1 + valid.filter((c) => c[key] > mine[key]).length;
  return { share: mine.loss / total, total, mean, gain: 2 * mine.rho - mean, score: (mine.loss / total) * (2 * mine.rho - mean), lossPlace: place("loss"), rhoPlace: place("rho"), K: valid.length };
}

// result: of select(), for the method, budget and weighting of the page.
export function why(values, state, result, i) {
  const ranking = values.rankings.find((r) => r.key === state.method);
  const candidate = values.candidates[i];
  if (!ranking || !candidate) return null;
  const place = result.chosen.indexOf(i);
  const score = values.scores[ranking.key][i];
  const name = h("b", {}, visible(candidate.id));
  const steps = [
    scoreStep(values, ranking, i, score),
    score === null ? null : rankStep(ranking, result, i, place),
    place < 0 ? null : weightStep(state, result, place, score),
    othersStep(values, state, ranking, i),
  ];
  return h("section", { class: "why", "aria-label": "Explanation" },
    h("h3", {}, place >= 0 ? "Why " : "Why not ", name, "?"),
    h("dl", {}, steps.filter(Boolean).map(([title, ...text]) => [h("dt", {}, title), h("dd", {}, ...text)])));
}

function scoreStep(values, ranking, i, score) {
  if (score === null) return ["Score", "It has none: no response tokens are left after truncation, or the score is not defined."];
  const parts = ranking.method === "lark" ? learnability(values.candidates, i) : null;
  if (!parts) return ["Score", h("b", {}, number(score, 4)), ". ", h("span", { class: "muted" }, visible(ranking.about))];
  const { loss, rho } = values.candidates[i];
  return ["Score", h("b", {}, number(score, 4)), ` = ${percent(parts.share, 2)} of the question's loss × ${fixed(parts.gain, 4)}. `,
    h("span", { class: "muted" }, `How much there is to learn: its loss, ${fixed(loss, 3)} nats per token, is the ${ordinal(parts.lossPlace)} highest of ${parts.K} (l / L = ${fixed(loss, 3)} / ${fixed(parts.total, 1)}). `,
      `How fast it is learned: its ρ̂, ${fixed(rho, 3)}, is the ${ordinal(parts.rhoPlace)} highest (2ρ̂ − ρ̄ = ${fixed(2 * rho, 3)} − ${fixed(parts.mean, 3)}).`)];
}

function rankStep(ranking, result, i, place) {
  const rank = result.order.indexOf(i) + 1;
  const said = `${ordinal(rank)} of ${result.K} by ${methodName(ranking.label)}; the budget takes ${result.size}. `;
  if (result.threshold === null) return ["Rank", said, h("span", { class: "muted" }, "Every candidate is taken.")];
  if (place >= 0 && rank === result.size && result.isTied) return ["Rank", said, h("span", { class: "muted" }, "The next candidate has the same score: the order of the ids decided.")];
  const isFirstOut = rank === result.size + 1;
  return ["Rank", said, h("span", { class: "muted" }, isFirstOut ? "It is the best one left out: its score is the threshold." : `The threshold is the score of the best one left out, ${number(result.threshold, 4)}.`)];
}

function weightStep(state, result, place, score) {
  const q = result.weight[place];
  const factor = `In training it counts ${fixed(q * result.size, 2)} times as much as with equal weights (w = B q).`;
  const isEqual = result.threshold === null || state.weighting === "uniform" || !(result.tau > 0);
  if (isEqual || state.weighting !== "chi2") return ["Weight", h("b", {}, fixed(q, 4)), ". ", h("span", { class: "muted" }, isEqual ? "All weights are equal." : factor)];
  const margin = Math.abs(score - result.threshold);
  return ["Weight", h("b", {}, fixed(q, 4)), ` = margin ${number(margin, 4)} / ${number(result.K * result.tau, 4)}, the sum of the ${result.size} margins (K τ*). `, h("span", { class: "muted" }, factor)];
}

function othersStep(values, state, ranking, i) {
  const others = values.rankings.filter((r) => r.key !== ranking.key && values.ranks[r.key][i]);
  if (!others.length) return null;
  const text = (list) => list.map((r) => `${methodName(r.label)} #${values.ranks[r.key][i]}`).join(", ");
  const [agree, not] = [true, false].map((isTop) => others.filter((r) => (values.ranks[r.key][i] <= state.budget) === isTop));
  return ["Others", agree.length ? `also in the top ${state.budget} of ${text(agree)}` : `in no other method's top ${state.budget}`, not.length ? h("span", { class: "muted" }, ` · ${text(not)}`) : null];
}
