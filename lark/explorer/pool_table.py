"""A pool without its texts, in memory: the rows of each question, teachers, correctness. Texts are read
when they are shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lark.explorer.cache import Cache, stamp
from lark.explorer.listing import Entry
from lark.explorer.problems import PageError, check_number, reading
from lark.pool import trajectories as pools
from lark.reading.untrusted import regular

CODED = ["question_id", "candidate_id", "teacher", "question", "answer"]
"""Columns with few distinct values: read as dictionaries."""
COLUMNS = [*CODED, "correct"]


@dataclass(frozen=True)
class Codes:
    """A column of texts: each distinct one once, and a number per row (-1: none)."""

    values: list[str]
    code: np.ndarray

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> "Codes":
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        array = encoded.unify_dictionaries().combine_chunks()
        codes = array.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
        values = [str(value) for value in array.dictionary.to_pylist()]
        return cls(values, codes)

    def __getitem__(self, row: int) -> str | None:
        code = self.code[row]
        return None if code < 0 else self.values[code]

    def numbers(self, values: list[str]) -> np.ndarray:
        """[R] The place of each row's text in another list; -1 if it is not in it."""
        place = {value: i for i, value in enumerate(values)}
        by_code = np.array([place.get(value, -1) for value in self.values] + [-1], dtype=np.int64)
        return by_code[self.code]  # the code -1 takes the -1 at the end

    @cached_property
    def place(self) -> np.ndarray:
        """[R] Each row's place in the sorted values, which decides between equal scores."""
        order = np.argsort(np.array(self.values, dtype=object), kind="stable")
        place = np.empty(len(order), dtype=np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        return place[self.code]


@dataclass(frozen=True)
class PoolTable:
    """Rows are trajectories in the pool's order; questions are numbered by first appearance."""

    path: Path
    questions: list[str]
    """Ids by number."""
    texts: list[str]
    """The question itself, by number."""
    question: np.ndarray
    """[R] The question's number."""
    candidate: Codes
    teacher: Codes
    answer: Codes
    correct: np.ndarray
    """[R] 1, 0, or -1 where the pool does not say."""
    order: np.ndarray
    """[R] Rows sorted by question."""
    start: np.ndarray
    """[N+1] Where a question's rows start in `order`."""

    def __len__(self) -> int:
        return len(self.question)

    def rows(self, number: int) -> np.ndarray:
        """Rows of a question, in the pool's order."""
        check_number(number, len(self.questions), f"This pool has {len(self.questions):,} questions")
        return self.order[self.start[number] : self.start[number + 1]]

    def text(self, number: int) -> str:
        """Id and text of a question, for a search."""
        return f"{self.questions[number]} {self.texts[number]}"

    @cached_property
    def grids(self) -> list[np.ndarray]:
        """Rows of the questions as matrices [n, K], each row ordered by candidate id; -1 where a question
        has fewer than K. Questions of similar size are together, so that all matrices have at most twice as
        many cells as the pool has rows.
        """
        size = np.diff(self.start)
        order = np.lexsort((self.candidate.place, self.question))
        grids = []
        # One matrix per power of two: a question is padded to less than twice its size.
        power = np.ceil(np.log2(np.maximum(size, 1))).astype(int)
        for k in np.unique(power):
            numbers = np.flatnonzero(power == k)
            places = np.arange(size[numbers].max())
            inside = places[None, :] < size[numbers][:, None]
            rows = order[np.where(inside, self.start[numbers][:, None] + places[None, :], 0)]
            grids.append(np.where(inside, rows, -1))
        return grids

    @cached_property
    def _sorted(self) -> tuple[np.ndarray, np.ndarray]:
        """Question and candidate of each row as one number, sorted, and the rows in this order."""
        key = self._key(self.question, self.candidate.code)
        order = np.argsort(key, kind="stable")
        return key[order], order

    def _key(self, question: np.ndarray, candidate: np.ndarray) -> np.ndarray:
        return question.astype(np.int64) * max(1, len(self.candidate.values)) + candidate

    def find(self, question: Codes, candidate: Codes) -> np.ndarray:
        """Rows of the pool with these ids; -1 for ids that it does not have."""
        first = question.numbers(self.questions)
        second = candidate.numbers(self.candidate.values)
        keys, order = self._sorted
        if not len(keys):
            return np.full(len(first), -1)
        wanted = self._key(first, second)
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        # An id that is missing has the number -1, with which a key can be equal to that of other ids.
        return np.where((keys[place] == wanted) & (first >= 0) & (second >= 0), order[place], -1)

    def read(self, rows: Sequence[int] | np.ndarray, columns: list[str]) -> list[dict[str, Any]]:
        """These rows with their texts. Only the row groups that contain them are read."""
        with reading(self.path):
            groups = pools.row_group_places(self.path)
            ends = [group.rows.stop for group in groups]
            wanted = np.asarray(rows, dtype=np.int64)
            if wanted.max(initial=-1) >= max(ends, default=0):
                raise ValueError("it has fewer rows than before")
            texts: dict[int, dict[str, Any]] = {}
            for number in np.unique(np.searchsorted(ends, wanted, side="right")):
                group = groups[number]
                inside = wanted[(wanted >= group.rows.start) & (wanted < group.rows.stop)]
                file = pq.ParquetFile(regular(group.file), pre_buffer=False)
                there = [name for name in columns if name in file.schema_arrow.names]
                table = pools.complete(file.read_row_group(group.number, columns=there), columns)
                table = table.take(pa.array(inside - group.rows.start))
                texts.update(zip(inside.tolist(), table.to_pylist(), strict=True))
            return [texts[row] for row in wanted.tolist()]


def pool_table(entry: Entry, cache: Cache) -> PoolTable:
    """The table of a pool that is finished."""
    path = entry.file(pools.FILE)
    if not pools.parts(path)[0].exists():
        raise PageError(_absent(entry))
    return cache.get(("pool", path), stamp(*pools.parts(path)), lambda: _read(path))


def _absent(entry: Entry) -> str:
    if entry.manifest.status == "failed":
        reason = entry.manifest.error or "its manifest does not say why"
        return f"The pool {entry.name} could not be made: {reason}"
    return f"The pool {entry.name} is not finished: {pools.FILE} is not there yet."


def _part(path: Path) -> pa.Table:
    file = pq.ParquetFile(regular(path), read_dictionary=CODED, pre_buffer=False)
    there = [name for name in COLUMNS if name in file.schema_arrow.names]
    return pools.complete(file.read(columns=there), COLUMNS)


def _read(path: Path) -> PoolTable:
    with reading(path):
        table = pa.concat_tables([_part(part) for part in pools.parts(path)])
        ids = Codes.of(table["question_id"])
        # Numbers by first appearance: the dictionary of a Parquet file may have another order.
        question, distinct = pd.factorize(ids.code)
        question = question.astype(np.int32)
        order = np.argsort(question, kind="stable").astype(np.int32)
        start = np.concatenate([[0], np.cumsum(np.bincount(question, minlength=len(distinct)))])
        first = order[start[:-1]]
        texts = Codes.of(table["question"])
        return PoolTable(
            path=path,
            questions=[ids.values[code] for code in distinct],
            texts=[texts[row] or "" for row in first],
            question=question,
            candidate=Codes.of(table["candidate_id"]),
            teacher=Codes.of(table["teacher"]),
            answer=Codes.of(table["answer"]),
            correct=table["correct"].cast(pa.int8()).fill_null(-1).to_numpy().astype(np.int8),
            order=order,
            start=start.astype(np.int64),
        )
