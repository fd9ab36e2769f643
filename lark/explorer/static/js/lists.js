// Search, filters, sorting and pages of a list that is here as a whole. The same rules as lark/explorer/lists.py.

export function query(all, { search = "", flags = "", sort = "", page = 0, size = all.size } = {}) {
  const wanted = search.trim().toLowerCase();
  const matched = wanted ? all.rows.filter((row) => row._text.includes(wanted)) : all.rows;
  let chosen = matched;
  for (const flag of flags.split(",").filter(Boolean)) {
    const names = flag.split("|");
    chosen = chosen.filter((row) => names.some((name) => row._flags.includes(name)));
  }
  const key = sort.replace(/^-/, "");
  if (key) {
    const sign = sort.startsWith("-") ? -1 : 1;
    const value = (row) => row._sort[key] ?? null;
    chosen = [...chosen].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === null || y === null) return (x === null) - (y === null);
      return sign * (x - y);
    });
  }
  const pages = Math.max(1, Math.ceil(chosen.length / size));
  const at = Math.min(Number(page) || 0, pages - 1);
  const counts = Object.fromEntries(all.flags.map((name) => [name, matched.filter((row) => row._flags.includes(name)).length]));
  return {
    rows: chosen.slice(at * size, (at + 1) * size),
    total: all.rows.length, found: chosen.length, page: at, pages, size, flags: counts,
  };
}
