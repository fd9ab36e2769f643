"""Finished selections: which rows of the pool were chosen, with which rank and weight."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lark.explorer.cache import Cache, stamp
from lark.explorer.listing import Entry
from lark.explorer.pool_table import Codes, PoolTable
from lark.explorer.problems import reading
from lark.pool.trajectories import KEY
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


def chosen(entry: Entry, pool: PoolTable, cache: Cache) -> Chosen:
    path = entry.file(SELECTION.file)
    return cache.get(("selection", path), (stamp(path), len(pool)), lambda: _read(entry, pool))


def _read(entry: Entry, pool: PoolTable) -> Chosen:
    path = entry.file(SELECTION.file)
    with reading(path):
        table = pq.ParquetFile(path, read_dictionary=KEY).read(columns=[*KEY, *NUMBERS])
        rows = pool.find(*(Codes.of(table[column]) for column in KEY))
        known = np.flatnonzero(rows >= 0)
        question = pool.question[rows[known]].astype(np.int64)
        numbers = {name: table[name].cast(pa.float64()).to_numpy()[known] for name in NUMBERS}
        order = np.lexsort((numbers["rank"], question))
        return Chosen(
            rows[known][order], question[order], {name: values[order] for name, values in numbers.items()}
        )
