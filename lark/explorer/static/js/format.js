// Numbers and times for people.

const group = new Intl.NumberFormat("en-US");
export const count = (n) => (n === null || n === undefined ? "–" : group.format(Math.round(n)));

// At most `digits` significant digits, without noise: 0.001234, 12.3, 1,234, 1.2e-7.
export function number(x, digits = 4) {
  if (x === null || x === undefined || !Number.isFinite(x)) return "–";
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (Number.isInteger(x) && size < 1e6) return group.format(x).replace("-", "−");
  if (size >= 1e6 || size < 1e-4) return x.toExponential(Math.max(0, digits - 2)).replace("e+", "e").replace("-", "−");
  const places = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  return (size >= 1000 ? group.format(Math.round(x)) : x.toFixed(Math.min(places, 8))).replace("-", "−");
}

// A minus sign instead of a hyphen, and none before zero.
const sign = (text) => (/^-[0.]+$/.test(text) ? text.slice(1) : text.replace(/^-/, "−"));
export const fixed = (x, places) => (x === null || x === undefined || !Number.isFinite(x) ? "–" : sign(x.toFixed(places)));
export const percent = (x, places = 0) => (x === null || x === undefined ? "–" : `${fixed(100 * x, places)}%`);

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function when(text) {
  if (!text) return "–";
  const time = new Date(text);
  if (Number.isNaN(time.getTime())) return text;
  const seconds = (Date.now() - time.getTime()) / 1000;
  if (seconds < 60 && seconds > -60) return "just now";
  if (seconds > 0 && seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds > 0 && seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return text.replace("T", " ").slice(0, 16);
}

export function bytes(n) {
  if (n === null || n === undefined) return "";
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (n >= size) return `${(n / size).toFixed(1)} ${unit}`;
  return `${n} B`;
}

export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

export const ordinal = (n) => `${n}${["th", "st", "nd", "rd"][n % 100 > 10 && n % 100 < 14 ? 0 : Math.min(n % 10, 4) % 4]}`;
