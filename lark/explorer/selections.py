"""Finished selections: which rows of the pool were chosen, with which rank and weight."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lark.explorer.cache import stamp
from lark.explorer.listing import Entry
from lark.explorer.pool_table import PoolTable
from lark.explorer.problems import reading
from lark.explorer.tables import OpenView, rows_of
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
