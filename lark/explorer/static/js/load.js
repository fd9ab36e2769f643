// Data of the pages. A server answers /api/<path>; a static export has the same answers as files, data/<path>.json.

import { query } from "./lists.js";

export const isStatic = document.querySelector('meta[name="lark-mode"]').content === "static";

export class Problem extends Error {}

const kept = new Map();
const KEEP = /^(text|tokens|alternatives|sample)\//; // large, and never change while a page is open
const MOST = 60;

async function get(address) {
  let response;
  try {
    response = await fetch(address, { credentials: "same-origin" });
  } catch {
    throw new Problem(isStatic ? "This part could not be loaded." : "The explorer does not answer: was it ended in the terminal?");
  }
  if (response.status === 403) throw new Problem("This page has lost its permission: open the address that the terminal shows.");
  if (response.status === 404 && isStatic) throw new Problem("This is not part of the export.");
  let values;
  try {
    values = await response.json();
  } catch {
    throw new Problem("The answer could not be read. Reload the page.");
  }
  if (values.problem && !response.ok) throw new Problem(values.problem);
  return values;
}

const file = (path) => `data/${path.split("/").map(encodeURIComponent).join("/")}.json`;

export async function load(path) {
  if (kept.has(path)) return kept.get(path);
  const values = await get(isStatic ? file(path) : `api/${path}`);
  if (KEEP.test(path)) {
    if (kept.size >= MOST) kept.delete(kept.keys().next().value);
    kept.set(path, values);
  }
  return values;
}

// A page of a list: {rows, total, found, page, pages, flags}. `asked` has search, flags, sort, page and size.
export async function loadList(path, asked) {
  if (isStatic) return query(await get(file(path)), asked);
  const words = new URLSearchParams(Object.entries(asked).filter(([, value]) => value !== "" && value !== undefined && value !== null));
  return get(`api/${path}?${words}`);
}
