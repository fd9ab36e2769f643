"""A view with the rows of its pool: the columns of its scoring tables, aligned with these rows. A table that
is still being made has the rows that are done.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lark.explorer.cache import Cache, stamp
from lark.explorer.listing import Entry, Listing
from lark.explorer.pool_table import Codes, PoolTable
from lark.explorer.problems import PageError, reading
from lark.explorer.views import View, views_of
from lark.pool.trajectories import KEY
from lark.scoring.sources import SOURCES

SHARD = re.compile(r"shard-(\d{8})-(\d{8})\.parquet")
"""A shard is named after its rows of the pool."""


@dataclass(frozen=True)
class OpenView:
    """A view that a page shows, and the rows of its pool."""

    listing: Listing
    view: View
    pool: PoolTable

    @property
    def cache(self) -> Cache:
        return self.listing.cache

    @property
    def key(self) -> tuple[str, ...]:
        """Identifies the view in the cache."""
        return *self.view.pool.key, self.view.id

    @property
    def version(self) -> tuple[object, ...]:
        """Changes if a file changes that the view's columns are read from."""
        entries = self.view.sources.values()
        finished = [entry.finished for entry in entries]
        return stamp(self.pool.path, *(entry.folder for entry in entries)), finished, len(self.pool)

    def describe(self) -> dict[str, Any]:
        """The view, and the others that its page links to."""
        views = views_of(self.listing, self.view.pool)
        return {"view": self.view.describe(), "views": [view.describe() for view in views]}

    def columns(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """[R] Those of these columns that the view has; NaN where a row has none (yet)."""
        columns: dict[str, np.ndarray] = {}
        for name in names:
            for entry, file in self._holders(name):
                values = _column(entry, file, name, self.pool, self.cache)
                if values is not None:
                    columns[name] = values
                    break
        return columns

    def _holders(self, name: str) -> Iterator[tuple[Entry, str]]:
        """The artifacts that may have a column, and the file that has it; finished ones first."""
        # The scoring pass repeats the token counts, which may be finished long before it.
        for source, entry in sorted(self.view.sources.items(), key=lambda item: not item[1].finished):
            kind = SOURCES[source].kind
            columns = SOURCES[source].columns
            is_holder = name in columns or (name == "truncated" and "n_tokens" in columns)
            if kind is not None and is_holder:
                yield entry, kind.file

    def stored(self, entry: Entry, file: str, name: str) -> np.ndarray:
        """A column of an artifact's table; NaN for rows that it does not have."""
        values = _column(entry, file, name, self.pool, self.cache)
        return np.full(len(self.pool), np.nan) if values is None else values

    def frame(
        self, names: Iterable[str], rows: np.ndarray | None = None, by_number: bool = False
    ) -> pd.DataFrame:
        """The columns as methods take them, of all rows or of some. `by_number`: questions and candidates
        are numbers, not ids.
        """
        chosen = slice(None) if rows is None else rows
        question = self.pool.question[chosen]
        candidate = self.pool.candidate.code[chosen]
        numbers = {name: column[chosen] for name, column in self.columns(names).items()}
        if by_number:
            return pd.DataFrame({"question_id": question, "candidate_id": candidate, **numbers})
        ids = {
            "question_id": pd.Series(np.array(self.pool.questions, dtype=object)[question], dtype=object),
            "candidate_id": pd.Series(
                np.array(self.pool.candidate.values, dtype=object)[candidate], dtype=object
            ),
        }
        return pd.DataFrame({**ids, **numbers})


def _column(entry: Entry, file: str, name: str, pool: PoolTable, cache: Cache) -> np.ndarray | None:
    """A column of an artifact's table, or of the shards that exist so far."""
    path = entry.file(file)
    if path.exists():
        version = stamp(path), len(pool)
        return cache.get(("column", path, name), version, lambda: _aligned(path, name, pool, cache))
    try:
        shards = sorted(p for p in entry.folder.iterdir() if SHARD.fullmatch(p.name))
    except OSError:
        return None
    version = stamp(*shards), len(pool)
    return cache.get(("column", entry.folder, name), version, lambda: _of_shards(shards, name, pool))


def _aligned(path: Path, name: str, pool: PoolTable, cache: Cache) -> np.ndarray | None:
    with reading(path):
        file = pq.ParquetFile(path, pre_buffer=False)
        if name not in file.schema_arrow.names:
            return None
        values = _numbers(file.read(columns=[name]), name)
        # All columns of a table have the same rows, which take longer to find than a column to read.
        rows = cache.get(("rows", path), (stamp(path), len(pool)), lambda: rows_of(path, pool))
        if len(values) != len(rows):
            raise ValueError("it has just changed")
        aligned = np.full(len(pool), np.nan)
        aligned[rows[rows >= 0]] = values[rows >= 0]
        return aligned


def rows_of(path: Path, pool: PoolTable) -> np.ndarray:
    """The pool's row of each row of a table; -1 if the pool does not have it."""
    table = pq.ParquetFile(path, read_dictionary=KEY, pre_buffer=False).read(columns=KEY)
    return pool.find(*(Codes.of(column) for column in table.columns))


def _of_shards(paths: list[Path], name: str, pool: PoolTable) -> np.ndarray | None:
    """A column as far as its shards exist; None if none has it."""
    column = np.full(len(pool), np.nan)
    is_empty = True
    for path in paths:
        first, last = map(int, re.findall(r"\d+", path.stem))
        try:
            with reading(path):
                if name in pq.read_schema(path).names:
                    column[first:last] = _numbers(pq.read_table(path, columns=[name]), name)
                    is_empty = False
        except PageError:
            continue  # merged and removed, or being replaced, since it was listed
    return None if is_empty else column


def _numbers(table: pa.Table, name: str) -> np.ndarray:
    return table[name].cast(pa.float64()).to_numpy()
