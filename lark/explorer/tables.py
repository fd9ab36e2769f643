"""Columns of scoring tables, aligned with the rows of the pool. A table that is still being made has the
rows that are done.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lark.explorer.cache import Cache, stamp
from lark.explorer.listing import Entry
from lark.explorer.pool_table import Codes, PoolTable
from lark.explorer.problems import PageError, reading
from lark.explorer.views import View
from lark.pool.trajectories import KEY
from lark.scoring.sources import SOURCES
from lark.store.store import Kind

SHARD = re.compile(r"shard-(\d{8})-(\d{8})\.parquet")


def columns(view: View, pool: PoolTable, wanted: Iterable[str], cache: Cache) -> dict[str, np.ndarray]:
    """[R] Each of these columns that the view has; NaN where a row has none (yet)."""
    found: dict[str, np.ndarray] = {}
    for name in wanted:
        holders = [(entry, kind.file) for entry, kind, has in _sources(view) if name in has]
        for entry, file in sorted(holders, key=lambda holder: not holder[0].finished):
            values = _column(entry, file, name, pool, cache)
            if values is not None:
                found[name] = values
                break
    return found


def _sources(view: View) -> Iterator[tuple[Entry, Kind, tuple[str, ...]]]:
    """The view's artifacts and the columns that they have."""
    for name, entry in view.sources.items():
        kind = SOURCES[name].kind
        if kind is not None:
            yield (
                entry,
                kind,
                (*SOURCES[name].columns, *(("truncated",) if "n_tokens" in SOURCES[name].columns else ())),
            )


def frame(
    view: View,
    pool: PoolTable,
    wanted: Iterable[str],
    cache: Cache,
    rows: np.ndarray | None = None,
    by_number: bool = False,
) -> pd.DataFrame:
    """The columns as methods take them, of all rows or of some. `by_number`: questions and candidates are
    numbers, not ids.
    """
    chosen = slice(None) if rows is None else rows
    numbers = {name: column[chosen] for name, column in columns(view, pool, wanted, cache).items()}
    if by_number:
        return pd.DataFrame(
            {"question_id": pool.question[chosen], "candidate_id": pool.candidate.code[chosen], **numbers}
        )
    return pd.DataFrame(
        {**{name: pd.Series(values, dtype=object) for name, values in names(pool, rows).items()}, **numbers}
    )


def names(pool: PoolTable, rows: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Ids of questions and candidates."""
    chosen = slice(None) if rows is None else rows
    questions, candidates = (
        np.array(pool.questions, dtype=object),
        np.array(pool.candidate.values, dtype=object),
    )
    return {
        "question_id": questions[pool.question[chosen]],
        "candidate_id": candidates[pool.candidate.code[chosen]],
    }


def _column(entry: Entry, file: str, name: str, pool: PoolTable, cache: Cache) -> np.ndarray | None:
    """A column of an artifact's table, or of the shards that exist so far."""
    path = entry.file(file)
    if path.exists():
        return cache.get(
            ("column", path, name), (stamp(path), len(pool)), lambda: _aligned(path, name, pool, cache)
        )
    try:
        shards = sorted(p for p in entry.folder.iterdir() if SHARD.fullmatch(p.name))
    except OSError:
        return None
    if not shards:
        return None
    return cache.get(
        ("column", entry.folder, name), (stamp(*shards), len(pool)), lambda: _of_shards(shards, name, pool)
    )


def _aligned(path: Path, name: str, pool: PoolTable, cache: Cache) -> np.ndarray | None:
    with reading(path):
        file = pq.ParquetFile(path, pre_buffer=False)
        if name not in file.schema_arrow.names:
            return None
        values = _numbers(file.read(columns=[name])[name])
        rows = cache.get(("rows", path), (stamp(path), len(pool)), lambda: _rows(path, pool))
        if len(values) != len(rows):
            raise ValueError("it has just changed")
        found = np.full(len(pool), np.nan)
        found[rows[rows >= 0]] = values[rows >= 0]
        return found


def _rows(path: Path, pool: PoolTable) -> np.ndarray:
    """The pool's row of each row of a table; -1 if the pool does not have it."""
    table = pq.ParquetFile(path, read_dictionary=KEY, pre_buffer=False).read(columns=KEY)
    return pool.find(*(Codes.of(table[column]) for column in KEY))


def _of_shards(paths: list[Path], name: str, pool: PoolTable) -> np.ndarray | None:
    """A shard is named after its rows of the pool."""
    found = np.full(len(pool), np.nan)
    known = False
    for path in paths:
        match = SHARD.fullmatch(path.name)
        assert match is not None
        first, last = int(match[1]), int(match[2])
        try:
            with reading(path):
                if name in pq.read_schema(path).names:
                    found[first:last] = _numbers(pq.read_table(path, columns=[name])[name])
                    known = True
        except PageError:
            continue  # merged and removed, or being replaced, since it was listed
    return found if known else None


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    return column.cast(pa.float64()).to_numpy() if not pa.types.is_boolean(column.type) else _flags(column)


def _flags(column: pa.ChunkedArray) -> np.ndarray:
    return pc.cast(column, pa.int8()).cast(pa.float64()).to_numpy()
