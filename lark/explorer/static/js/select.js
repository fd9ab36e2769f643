// Selection and weights in the browser, in the same order of operations as `select` in lark/selection/rules.py, so that the
// weights of the chi2 rule are equal to the last bit: rows are sorted once, sums are taken best first.

// scores: numbers or null; place: order of the candidate ids; higher: whether a high score is better.
export function select(scores, place, budget, weighting, higher = true) {
  const utility = scores.map((score) => (score === null ? null : higher ? score : -score));
  const order = [...scores.keys()].filter((i) => utility[i] !== null).sort((a, b) => utility[b] - utility[a] || place[a] - place[b]);
  const K = order.length;
  const size = Math.min(budget, K);
  const hasThreshold = K > size;
  const threshold = hasThreshold ? utility[order[size]] : null;
  const chosen = order.slice(0, size);
  const margins = chosen.map((i) => (hasThreshold ? utility[i] - threshold : NaN));
  const marginSum = margins.reduce((sum, margin) => sum + margin, 0);
  const mass = masses(weighting, { chosen, order, utility, margins, marginSum });
  const total = mass.reduce((sum, m) => sum + m, 0);
  const isWeighted = hasThreshold && total > 0;
  const weight = mass.map((m) => (isWeighted ? m / total : 1 / size));
  return {
    chosen, order, weight, K, size,
    threshold: hasThreshold ? (higher ? threshold : -threshold) : null,
    tau: hasThreshold ? marginSum / K : null,
    isTied: hasThreshold && utility[chosen[size - 1]] === threshold,
  };
}

export const WEIGHTINGS = [["chi2", "χ²"], ["kl", "KL"], ["softmax", "softmax"], ["proportional", "proportional"], ["uniform", "uniform"]];

function masses(weighting, { chosen, order, utility, margins, marginSum }) {
  const best = utility[order[0]];
  const exponential = (temperature) => chosen.map((i) => (temperature > 0 ? Math.exp((utility[i] - best) / temperature) : 0));
  if (weighting === "chi2") return margins;
  if (weighting === "kl") return exponential(marginSum);
  if (weighting === "softmax") return exponential(deviation(order.map((i) => utility[i])));
  if (weighting === "proportional") return chosen.map((i) => Math.max(utility[i], 0));
  return chosen.map(() => 1);
}

function deviation(values) {
  const mean = values.reduce((sum, v) => sum + v, 0) / Math.max(values.length, 1);
  return Math.sqrt(values.reduce((sum, v) => sum + (v - mean) ** 2, 0) / Math.max(values.length, 1));
}
