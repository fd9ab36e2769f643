// What the colours of tokens mean: five measures, each with one scale for both sides.

import { number } from "../format.js";

const quantile = (values, q) => { const sorted = Float64Array.from(values).sort(); return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))] : 0; };
const nats = (v) => `${number(v, 4)} nats`;

export const MEASURES = {
  surprisal: { label: "Surprisal", note: "−log p of the token, in nats", values: (t) => t.surprisal, form: nats, top: (all) => Math.max(1, quantile(all, 0.99)) },
  residual: { label: "Residual", note: "‖π − e_y‖², from 0 (certain and right) to 2 (certain and wrong)", values: (t) => t.residual, form: (v) => number(v, 4), top: () => 2 },
  rank: { label: "Rank", note: "place among all tokens of the vocabulary, on a logarithmic scale", values: (t) => t.rank, form: (v) => (v >= 65535 ? "≥ 65,535" : number(v, 6)), bottom: 1, top: (all) => Math.max(10, quantile(all, 0.999)), isLog: true },
  probability: { label: "Probability", note: "p of the token; dark is unlikely", values: (t) => t.probability, form: (v) => number(v, 4), top: () => 1, isTurned: true },
  entropy: { label: "Entropy", note: "of the student's distribution, in nats", values: (t) => t.entropy, form: nats, top: (all) => Math.max(0.5, quantile(all, 0.99)) },
};

export function prepare(tokens) {
  tokens.probability = tokens.surprisal.map((v) => (v === null ? null : Math.exp(-v)));
  return tokens;
}

// A function from a value to 0…1, the same for all sides.
export function scale(key, sides) {
  const measure = MEASURES[key];
  const all = sides.flatMap((side) => measure.values(side));
  const [low, high] = [measure.bottom ?? 0, measure.top(all)];
  const place = measure.isLog
    ? (v) => Math.log(Math.max(v, low) / low) / Math.log(high / low)
    : (v) => (v - low) / (high - low);
  const of = (v) => { if (v === null || v === undefined) return 0; const t = Math.min(1, Math.max(0, place(v))); return measure.isTurned ? 1 - t : t; };
  return { of, low, high, measure };
}
