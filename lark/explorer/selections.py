"""Finished selections: their methods and budgets, and which rows of the pool were chosen, with which rank and
weight.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lark.errors import LarkError
from lark.explorer.cache import stamp
from lark.explorer.listing import Entry, Listing
from lark.explorer.pool_table import PoolTable
from lark.explorer.problems import reading
from lark.explorer.rankings import ranking_of
from lark.explorer.tables import OpenView, rows_of
from lark.explorer.views import selections_of
from lark.selection.write import SELECTION

NUMBERS = ("rank", "score", "weight", "training_weight", "threshold", "tau")


@dataclass(frozen=True)
class Chosen:
    """The rows of a selection, sorted by question and rank."""

    row: np.ndarray
    """[M] Rows of the pool."""
    question: np.ndarray
    """[M] Numbers of their questions, ascending."""
    numbers: dict[str, np.ndarray]

    def of(self, question: int) -> slice:
        """The part that belongs to one question."""
        first, last = np.searchsorted(self.question, [question, question + 1])
        return slice(int(first), int(last))


def chosen(entry: Entry, opened: OpenView) -> Chosen:
    path = entry.file(SELECTION.file)
    version = stamp(path), len(opened.pool)
    return opened.cache.get(("selection", path), version, lambda: _read(path, opened.pool))


def _read(path: Path, pool: PoolTable) -> Chosen:
    with reading(path):
        rows = rows_of(path, pool)
        table = pq.ParquetFile(path).read(columns=NUMBERS)
        in_pool = np.flatnonzero(rows >= 0)
        rank = table["rank"].to_numpy()[in_pool]
        question = pool.question[rows[in_pool]].astype(np.int64)
        order = np.lexsort((rank, question))
        kept = in_pool[order]
        numbers = {name: table[name].cast(pa.float64()).to_numpy()[kept] for name in NUMBERS}
        return Chosen(rows[kept], question[order], numbers)


def selected_by(entry: Entry, listing: Listing) -> dict[str, Any]:
    """The method, weighting and budget of a selection."""
    depends = listing.config(entry)["depends"]
    budget = depends.get("budget")
    ranking = ranking_of(depends, entry)
    words = amount(budget)
    return {
        "fingerprint": entry.fingerprint,
        "name": entry.name,
        "method": ranking.method.name,
        "ranking": ranking.key,
        "label": ranking.label,
        "weighting": str(depends.get("weighting")),
        "budget": budget if isinstance(budget, int) else None,
        "amount": words,
        "amount_key": re.sub(r"[^A-Za-z0-9_.-]+", "-", words).strip("-")[:80],
    }


def selections(opened: OpenView) -> tuple[list[tuple[Entry, dict[str, Any]]], list[str]]:
    """The finished selections of a view with their methods and budgets, and what is wrong with those that
    cannot be read.
    """
    described = []
    problems = []
    for entry in selections_of(opened.listing, opened.view):
        try:
            described.append((entry, selected_by(entry, opened.listing)))
        except LarkError as problem:
            problems.append(str(problem))
    return described, problems


def amount(budget: Any) -> str:
    """A selection's budget in words: "B = 3" per question, or "450 trajectories in all" across questions."""
    if not isinstance(budget, dict):
        return f"B = {budget}"
    words = {
        "total": "{:,} trajectories in all",
        "tokens": "{:,} tokens in all",
        "size": "at most {:,} per question",
    }
    return ", ".join(words.get(key, f"{key} {{}}").format(value) for key, value in budget.items())
