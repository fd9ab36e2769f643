"""Pages of long lists: search, filters and sorting are done here, and only one page of rows is sent.

The static export writes all rows of its (short) lists, and static/js/lists.js applies the same rules to them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lark.explorer.problems import PageError

PAGE, MOST = 25, 100
"""Rows per page, if nothing else is asked for, and at most."""


@dataclass(frozen=True)
class Query:
    """What a page asks of a list."""

    search: str = ""
    flags: tuple[str, ...] = ()
    """Rows must have all of them. `a|b`: one of both."""
    sort: str = ""
    """A key; `-key` sorts in descending order. Empty: the list's own order."""
    page: int = 0
    size: int = PAGE

    @classmethod
    def of(cls, values: Mapping[str, str]) -> "Query":
        flags = tuple(flag for flag in values.get("flags", "").split(",") if flag)
        page, size = values.get("page", "0"), values.get("size", str(PAGE))
        if not (page.isdecimal() and size.isdecimal()) or len(page + size) > 9:
            raise PageError("page= and size= take numbers.", 400)
        search = values.get("search", "").strip().lower()[:500]
        return cls(search, flags[:20], values.get("sort", ""), int(page), min(max(1, int(size)), MOST))


@dataclass(frozen=True)
class Rows:
    """A list: how many rows, how each is made, and what it can be filtered and sorted by."""

    count: int
    make: Callable[[int], dict[str, Any]]
    text: Callable[[int], str]
    """What a search looks at."""
    flags: Mapping[str, np.ndarray] = field(default_factory=dict)
    """[count] booleans by name."""
    sorts: Mapping[str, np.ndarray] = field(default_factory=dict)
    """[count] numbers by name; NaN is last in either direction."""

    def page(self, query: Query) -> dict[str, Any]:
        """One page of the rows that match, with counts for the filters."""
        chosen = np.arange(self.count)
        if query.search:
            chosen = np.array(
                [i for i in range(self.count) if query.search in self.text(i).lower()], dtype=np.int64
            )
        matched = chosen
        for flag in query.flags:
            parts = [self.flags[name] for name in flag.split("|") if name in self.flags]
            if not parts:
                raise PageError(f"There is no filter {flag[:40]} here: use {', '.join(self.flags)}.", 400)
            chosen = chosen[np.logical_or.reduce(parts)[chosen]]
        chosen = self._sorted(chosen, query.sort)
        pages = max(1, -(-len(chosen) // query.size))
        page = min(query.page, pages - 1)
        return {
            "rows": [self.make(int(i)) for i in chosen[page * query.size : (page + 1) * query.size]],
            "total": self.count,
            "found": len(chosen),
            "page": page,
            "pages": pages,
            "size": query.size,
            "flags": {name: int(values[matched].sum()) for name, values in self.flags.items()},
        }

    def _sorted(self, chosen: np.ndarray, sort: str) -> np.ndarray:
        key = sort.removeprefix("-")
        if not key:
            return chosen
        if key not in self.sorts:
            raise PageError(f"This list cannot be sorted by {key[:40]}: use {', '.join(self.sorts)}.", 400)
        values = self.sorts[key][chosen].astype(np.float64)
        return chosen[np.argsort(-values if sort.startswith("-") else values, kind="stable")]

    def everything(self, keep: Callable[[dict[str, Any]], bool] = lambda row: True) -> dict[str, Any]:
        """All rows (or those to keep), with what the browser needs to search, filter and sort them itself."""
        rows = [
            {
                **row,
                "_text": self.text(i).lower(),
                "_flags": [name for name, values in self.flags.items() if values[i]],
                "_sort": {
                    name: None if np.isnan(values[i]) else float(values[i])
                    for name, values in self.sorts.items()
                },
            }
            for i, row in ((i, self.make(i)) for i in range(self.count))
            if keep(row)
        ]
        return {"rows": rows, "size": PAGE, "flags": list(self.flags)}
