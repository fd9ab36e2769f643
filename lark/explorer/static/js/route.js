// The state of the page is in the address: #/page/part/part?key=value. The back button and links work as expected.

export function parse(hash = location.hash) {
  const [path, words = ""] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").map(decodeURIComponent).filter((part) => part !== "");
  return { page: parts[0] ?? "overview", parts: parts.slice(1), query: Object.fromEntries(new URLSearchParams(words)) };
}

export function address(page, parts = [], query = {}) {
  const words = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined));
  const tail = words.toString();
  return `#/${[page, ...parts].map((part) => encodeURIComponent(part)).join("/")}${tail ? `?${tail}` : ""}`;
}

export function go(page, parts, query) {
  location.hash = address(page, parts, query);
}

// Change the query without a new entry in the history and without drawing the page again.
export function remember(changes) {
  const route = parse();
  history.replaceState(null, "", address(route.page, route.parts, { ...route.query, ...changes }));
}

// During a run, the server may answer with a newer view of the pool than the address asks for: the address follows.
export function follow(asked, found) {
  if (asked === found) return found;
  const route = parse();
  history.replaceState(null, "", address(route.page, route.parts.map((part) => (part === asked ? found : part)), route.query));
  return found;
}
