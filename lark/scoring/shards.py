"""Cut a pass over the pool into shards. No model code.

A shard is a range of consecutive rows of the pool, so that it can be read without reading the rest. Shards
have about equal cost and do not depend on the number of processes: a run that was started on one GPU can
resume on eight. A shard's file is named after its rows: if `scoring.shard_tokens` has changed since, the
file is ignored, never misread.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lark.pool.trajectories import KEY, RowGroup, complete, parts, row_group_places
from lark.scoring.pass_sizes import CPU_TOKENS
from lark.scoring.sources import BY_QUESTION, FILES, LENGTHS_TABLE
from lark.scoring.tokens import TOKEN_IDS
from lark.store.part_files import intact

COMMON_COLUMNS = {**dict.fromkeys(KEY, pa.string()), "n_tokens": pa.int64()}
"""Columns that all results have in common with the lengths, in one type: files of other origin have other
types of text.
"""
LEAST_SHARDS = 16
QUADRATIC = 1 / 20_000
"""Cost of a trajectory of n tokens is n + n²/20,000: attention costs as much as the rest at 20,000 tokens."""
SKETCH_BYTES = 2**29
"""Memory for the sketched gradients of questions that are processed together (at least one question)."""


def cost(length: np.ndarray) -> np.ndarray:
    """Estimated work of a forward pass, in tokens of a short sequence: a n + b n² (paper, App. D.1)."""
    return length + QUADRATIC * length.astype(np.float64) ** 2


def number(total: float, rows: int, shard_tokens: int) -> int:
    """Shards of a pool of `total` cost: at least LEAST_SHARDS, unless they would be smaller than one
    forward pass on CPU.
    """
    least = min(LEAST_SHARDS, ceil(total / CPU_TOKENS))
    return min(rows, max(least, ceil(total / shard_tokens)))


def cut(costs: np.ndarray, shard_tokens: int) -> list[range]:
    """Ranges of rows of about equal cost."""
    shards = number(float(costs.sum()), len(costs), shard_tokens)
    targets = np.arange(1, shards) * costs.sum() / max(shards, 1)
    edges = np.searchsorted(np.cumsum(costs), targets, side="right")
    # A trajectory that costs more than a shard moves several edges to one place.
    bounds = [0, *np.unique(edges).tolist(), len(costs)]
    return [range(start, stop) for start, stop in pairwise(bounds) if start < stop]


@dataclass(frozen=True)
class Shards:
    """The shards of one pass over a pool."""

    rows: list[range]
    tokens: np.ndarray
    """[N] Tokens that the student is run on for each trajectory."""
    costs: np.ndarray
    """[N] Estimated work."""
    expected: pa.Table
    """The trajectories and their response tokens, in the order of the results."""
    order: np.ndarray | None = None
    """[N] Rows of the pool, the candidates of each question together, for passes that need whole questions.
    Ranges of rows then count in this order. None: the pool's own.
    """

    @classmethod
    def of(cls, lengths: Path, shard_tokens: int, blocks: int = 1, prompts: bool = True) -> "Shards":
        """`lengths`: folder of the pool's token counts. `blocks`: runs of each response in short pieces
        (Local Naturalness). `prompts`: whether the student reads them.
        """
        table = pq.read_table(lengths / LENGTHS_TABLE.file, columns=[*KEY, "n_prompt", "n_tokens"])
        tokens = prompts * table["n_prompt"].to_numpy() + blocks * table["n_tokens"].to_numpy()
        # Blocks are short sequences, in which attention costs next to nothing.
        costs = cost(tokens) if blocks == 1 else tokens.astype(np.float64)
        return cls(cut(costs, shard_tokens), tokens, costs, _common(table))

    @classmethod
    def by_question(cls, lengths: Path, shard_tokens: int) -> "Shards":
        """Shards of whole questions, for passes that compare the candidates of a question with each other."""
        pool = cls.of(lengths, shard_tokens)
        codes = _question_codes(pool.questions)
        order = question_order(pool.questions)
        ends = np.cumsum(np.bincount(codes))
        starts = np.concatenate([[0], ends[:-1]])
        # Ranges of questions, and from them ranges of rows.
        questions = cut(np.bincount(codes, weights=pool.costs), shard_tokens)
        rows = [range(int(starts[part.start]), int(ends[part.stop - 1])) for part in questions]
        return cls(rows, pool.tokens[order], pool.costs[order], pool.expected.take(order), order)

    def read(self, path: Path, rows: range, columns: list[str]) -> list[dict[str, Any]]:
        """The rows of a shard from the pool's file."""
        if self.order is None:
            return read_rows(path, rows, columns)
        numbers = self.order[rows.start : rows.stop]
        ascending = np.sort(numbers)
        by_number: dict[int, dict[str, Any]] = {}
        # Consecutive rows are read together.
        for run in np.split(ascending, np.flatnonzero(np.diff(ascending) > 1) + 1):
            by_number |= zip(run.tolist(), read_rows(path, range(run[0], run[-1] + 1), columns), strict=True)
        return [by_number[number] for number in numbers.tolist()]

    @property
    def questions(self) -> list[str]:
        """[N] Each trajectory's question."""
        return [str(question) for question in self.expected["question_id"].to_pylist()]

    def first_questions(self, number: int | None) -> frozenset[str]:
        """The first questions of the pool. None: all."""
        return frozenset(list(dict.fromkeys(self.questions))[:number])

    def only(self, questions: frozenset[str]) -> "Shards":
        """The shards with trajectories of these questions: the same ranges, without work for other rows."""
        inside = np.array([question in questions for question in self.questions])
        rows = [part for part in self.rows if inside[part.start : part.stop].any()]
        return replace(self, rows=rows, tokens=self.tokens * inside, costs=self.costs * inside)

    def with_work(self, rows: range) -> list[int]:
        """The rows of a shard that its file has."""
        return [rows.start + int(row) for row in np.flatnonzero(self.tokens[rows.start : rows.stop])]

    def without(self, taken: np.ndarray) -> "Shards":
        """The same shards and files, without work for rows that are copied. `taken`: [N] which rows."""
        return replace(self, tokens=self.tokens * ~taken, costs=self.costs * ~taken)

    def tokens_in(self, rows: range) -> int:
        return int(self.tokens[rows.start : rows.stop].sum())

    def cost_of(self, rows: range) -> float:
        return float(self.costs[rows.start : rows.stop].sum())

    def missing(self, output: str, folder: Path, parts: Iterable[range]) -> set[range]:
        """The shards to compute: not those that exist, or were merged before the run was killed."""
        merged = FILES[output]
        if merged and intact(folder / merged, lambda table: _common(table).equals(self.expected)):
            return set()
        return {rows for rows in parts if not self._is_done(folder / name(output, rows), rows)}

    def _is_done(self, path: Path, rows: range) -> bool:
        expected = self.expected.take(self.with_work(rows))
        return intact(path, lambda table: _common(table).equals(expected))


def question_order(questions: Sequence[str]) -> np.ndarray:
    """The rows of a pool with the candidates of each question together."""
    return np.argsort(_question_codes(questions), kind="stable")


def _question_codes(questions: Sequence[str]) -> np.ndarray:
    return pd.factorize(np.array(questions, dtype=object))[0]


def _common(table: pa.Table) -> pa.Table:
    """The common columns of a result. In statistics of tokens, the number of tokens is the lists' length."""
    if TOKEN_IDS in table.column_names:
        table = table.select(KEY).append_column("n_tokens", pc.list_value_length(table[TOKEN_IDS]))
    return table.select(list(COMMON_COLUMNS)).cast(pa.schema(COMMON_COLUMNS.items()))


def is_lengths(table: pa.Table, keys: pa.Table) -> bool:
    """True if a table has the lengths of these trajectories."""
    columns = {*COMMON_COLUMNS, "truncated", "n_prompt"}
    return columns <= set(table.column_names) and _common(table).select(KEY).equals(keys)


def name(output: str, rows: range) -> str:
    """The file of a shard."""
    return f"{prefix(output)}-{rows.start:08d}-{rows.stop:08d}.parquet"


def prefix(output: str) -> str:
    """The beginning of the names of an output's shards."""
    if output in BY_QUESTION:
        return "questions"
    return "shard" if FILES[output] else output


def read_rows(path: Path, rows: range, columns: list[str]) -> list[dict[str, Any]]:
    """A range of rows of a pool. Reads only the row groups that contain them."""
    result: list[dict[str, Any]] = []
    # A pool that was written again is another file for the caches.
    stamp = tuple(part.stat().st_mtime_ns for part in parts(path))
    for group in _groups(path, stamp):
        start = max(rows.start, group.rows.start)
        stop = min(rows.stop, group.rows.stop)
        if start < stop:
            table = _group(group, stamp, tuple(columns))
            result += table.slice(start - group.rows.start, stop - start).to_pylist()
    return result


@lru_cache(maxsize=2)
def _groups(path: Path, stamp: tuple[int, ...]) -> list[RowGroup]:
    return row_group_places(path)


@lru_cache(maxsize=1)
def _group(group: RowGroup, stamp: tuple[int, ...], columns: tuple[str, ...]) -> pa.Table:
    """A row group. Shards are often smaller, so the last one is kept."""
    file = pq.ParquetFile(group.file, pre_buffer=False)
    return complete(file.read_row_group(group.number, columns=list(columns)), list(columns))


def named(rows: Sequence[Mapping[str, Any]]) -> str:
    """The trajectories of a shard, for an error message."""
    names = [f"{row['question_id']}/{row['candidate_id']}" for row in rows[:5]]
    if len(rows) > 5:
        names.append("…")
    return f"{len(rows)} trajectories: {', '.join(names)}"
