"""Pages of long lists: search, filters and sorting are done here, and only one page of rows is sent.

The static export writes all rows of its (short) lists, and static/js/lists.js applies the same rules to them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lark.explorer.problems import PageError
from lark.explorer.values import number

PAGE = 25
"""Rows per page, if nothing else is asked for."""
MOST = 100
"""Rows per page, at most."""


@dataclass(frozen=True)
class Query:
    """The search, filters, order and page of a list that are asked for."""

    search: str = ""
    flags: tuple[str, ...] = ()
    """Rows must have all of them. `a|b`: one of both."""
    sort: str = ""
    """A key; `-key` sorts in descending order. Empty: the list's own order."""
    page: int = 0
    size: int = PAGE

    @classmethod
    def of(cls, values: Mapping[str, str]) -> "Query":
        page = values.get("page", "0")
        size = values.get("size", str(PAGE))
        if not (page.isdecimal() and size.isdecimal()) or len(page + size) > 9:
            raise PageError("page= and size= take numbers.", 400)
        return cls(
            search=values.get("search", "").strip().lower(),
            flags=tuple(filter(None, values.get("flags", "").split(","))),
            sort=values.get("sort", ""),
            page=int(page),
            size=min(max(1, int(size)), MOST),
        )


@dataclass(frozen=True)
class Rows:
    """A list: how many rows, how each is made, and what it can be filtered and sorted by."""

    count: int
    make: Callable[[int], dict[str, Any]]
    text: Callable[[int], str]
    """The text that a search looks at."""
    flags: Mapping[str, np.ndarray] = field(default_factory=dict)
    """[count] booleans by name."""
    sorts: Mapping[str, np.ndarray] = field(default_factory=dict)
    """[count] numbers by name; NaN is last in either direction."""

    def page(self, query: Query) -> dict[str, Any]:
        """One page of the rows that match, with counts for the filters."""
        matched = np.arange(self.count)
        if query.search:
            matched = matched[[query.search in self.text(i).lower() for i in range(self.count)]]
        chosen = matched
        for flag in query.flags:
            chosen = chosen[self._flagged(flag)[chosen]]
        chosen = self._sorted(chosen, query.sort)
        pages = max(1, -(-len(chosen) // query.size))
        page = min(query.page, pages - 1)
        first = page * query.size
        return {
            "rows": [self.make(int(i)) for i in chosen[first : first + query.size]],
            "total": self.count,
            "found": len(chosen),
            "page": page,
            "pages": pages,
            "size": query.size,
            # Counted before the filters, so that a filter that is off says how many rows it would leave.
            "flags": {name: int(values[matched].sum()) for name, values in self.flags.items()},
        }

    def _flagged(self, flag: str) -> np.ndarray:
        """[count] Whether a row has one of the flags `a|b`."""
        parts = [self.flags[name] for name in flag.split("|") if name in self.flags]
        if not parts:
            raise PageError(f"There is no filter {flag[:40]} here: use {', '.join(self.flags)}.", 400)
        return np.logical_or.reduce(parts)

    def _sorted(self, chosen: np.ndarray, sort: str) -> np.ndarray:
        key = sort.removeprefix("-")
        if not key:
            return chosen
        if key not in self.sorts:
            raise PageError(f"This list cannot be sorted by {key[:40]}: use {', '.join(self.sorts)}.", 400)
        values = self.sorts[key][chosen].astype(np.float64)
        if sort.startswith("-"):
            values = -values  # not reversed afterwards: NaN stays last, and equal rows keep their order
        return chosen[np.argsort(values, kind="stable")]

    def everything(self, numbers: Iterable[int] | None = None) -> dict[str, Any]:
        """All rows, or those with these numbers (`n`), with what the browser needs to search, filter and
        sort them itself.
        """
        rows = []
        for i in range(self.count):
            row = self.make(i)
            if numbers is not None and row["n"] not in numbers:
                continue
            more = {
                "_text": self.text(i).lower(),
                "_flags": [name for name, values in self.flags.items() if values[i]],
                "_sort": {name: number(values[i]) for name, values in self.sorts.items()},
            }
            rows.append({**row, **more})
        return {"rows": rows, "size": PAGE, "flags": list(self.flags)}


def list_of(
    rows: Sequence[dict[str, Any]],
    text: Callable[[dict[str, Any]], str],
    flags: Mapping[str, Iterable[str]],
    sorts: Mapping[str, Iterable[float | None]],
) -> Rows:
    """A list of rows that are in memory. `flags`: values by key; `state:failed` filters by row["state"]."""
    by_name = {}
    for key, values in flags.items():
        for value in values:
            by_name[f"{key}:{value}"] = np.array([row[key] == value for row in rows], dtype=bool)
    numbers = {name: np.array(list(values), dtype=np.float64) for name, values in sorts.items()}
    return Rows(len(rows), rows.__getitem__, lambda i: text(rows[i]), by_name, numbers)
