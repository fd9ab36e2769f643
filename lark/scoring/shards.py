"""Cut a pass over the pool into shards, and merge their results. No model code.

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

from lark.errors import LarkError
from lark.pool.trajectories import KEY, RowGroup, complete, parts, row_group_places
from lark.scoring import tokens
from lark.scoring.methods import (
    ENTROPY_TABLE,
    EXACT_TABLE,
    FEATURES_TABLE,
    GRAM_TABLE,
    LENGTHS_TABLE,
    LOCAL_TABLE,
    SCORES_TABLE,
    TOKENS,
    TOP50_TABLE,
    UNPROMPTED_TABLE,
)
from lark.scoring.pass_sizes import CPU_TOKENS
from lark.store.part_files import intact, write_part
from lark.work.operation import Counts, Job

ROWS = {**dict.fromkeys(KEY, pa.string()), "n_tokens": pa.int64()}
"""Columns that all results have in common with the lengths. Files of other origin have other types of text.
"""
LEAST_SHARDS = 16
QUADRATIC = 1 / 20_000
"""Cost of a trajectory of n tokens is n + n²/20,000: attention costs as much as the rest at about 20,000
tokens.
"""

SKETCH_BYTES = 2**29
"""Memory for the sketched gradients of questions that are processed together (at least one question)."""
BY_QUESTION = {kind.name: kind.file for kind in (GRAM_TABLE, EXACT_TABLE, FEATURES_TABLE)}
"""Outputs of passes over whole questions. Their shards are not ranges of the pool's rows, and are named
differently.
"""
FILES = {
    **{
        kind.name: kind.file
        for kind in (LENGTHS_TABLE, SCORES_TABLE, ENTROPY_TABLE, TOP50_TABLE, UNPROMPTED_TABLE)
    },
    **{kind.name: kind.file for kind in (LOCAL_TABLE, TOKENS)},
    **BY_QUESTION,
}
"""The outputs of a pass, and the file that their shards are merged into; per-token statistics are too large
for one file.
"""


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
    wanted = number(float(costs.sum()), len(costs), shard_tokens)
    edges = np.searchsorted(
        np.cumsum(costs), np.arange(1, wanted) * costs.sum() / max(wanted, 1), side="right"
    )
    bounds = [0, *np.unique(edges).tolist(), len(costs)]
    return [range(a, b) for a, b in pairwise(bounds) if a < b]


@dataclass(frozen=True)
class Shards:
    """The shards of one pass over a pool."""

    rows: list[range]
    tokens: np.ndarray
    """[N] Tokens that the student is run on for each trajectory."""
    costs: np.ndarray
    """[N] Estimated work."""
    expected: pa.Table
    """The trajectories and their response tokens, in the order of the results: the pool's, unless there is
    an `order`.
    """
    order: np.ndarray | None = None
    """[N] Rows of the pool, the candidates of each question together, for passes that need whole questions.
    Ranges of rows then count in this order.
    """

    @classmethod
    def of(cls, lengths: Path, shard_tokens: int, blocks: int = 1, prompts: bool = True) -> "Shards":
        """`lengths`: folder of the pool's token counts. `blocks`: runs of each response in short pieces
        (Local Naturalness). `prompts`: whether the student reads them.
        """
        kind = LENGTHS_TABLE
        table = pq.read_table(lengths / kind.file, columns=[*KEY, "n_prompt", "n_tokens"])
        run_on = prompts * table["n_prompt"].to_numpy() + blocks * table["n_tokens"].to_numpy()
        costs = cost(run_on) if blocks == 1 else run_on.astype(np.float64)
        return cls(cut(costs, shard_tokens), run_on, costs, _rows(table))

    @classmethod
    def by_question(cls, lengths: Path, shard_tokens: int) -> "Shards":
        """Shards of whole questions, for passes that compare the candidates of a question with each other."""
        whole = cls.of(lengths, shard_tokens)
        codes = pd.factorize(np.array(whole.questions, dtype=object))[0]
        order = np.argsort(codes, kind="stable")
        ends = np.cumsum(np.bincount(codes))
        starts = np.concatenate([[0], ends[:-1]])
        parts = cut(np.bincount(codes, weights=whole.costs), shard_tokens)
        rows = [range(int(starts[part.start]), int(ends[part.stop - 1])) for part in parts]
        return cls(rows, whole.tokens[order], whole.costs[order], whole.expected.take(order), order)

    def read(self, path: Path, rows: range, columns: list[str]) -> list[dict[str, Any]]:
        """The rows of a shard from the pool's file."""
        if self.order is None:
            return read_rows(path, rows, columns)
        wanted = self.order[rows.start : rows.stop]
        found: dict[int, dict[str, Any]] = {}
        for run in np.split(np.sort(wanted), np.flatnonzero(np.diff(np.sort(wanted)) > 1) + 1):
            found |= zip(run.tolist(), read_rows(path, range(run[0], run[-1] + 1), columns), strict=True)
        return [found[row] for row in wanted.tolist()]

    @property
    def questions(self) -> list[str]:
        """[N] Each trajectory's question."""
        return [str(question) for question in self.expected["question_id"].to_pylist()]

    def first_questions(self, number: int | None) -> frozenset[str]:
        """The first questions of the pool. None: all."""
        return frozenset(list(dict.fromkeys(self.questions))[:number])

    def only(self, questions: frozenset[str]) -> "Shards":
        """The shards with trajectories of these questions: the same ranges, with no work for the other
        rows.
        """
        kept = np.array([question in questions for question in self.questions])
        rows = [part for part in self.rows if kept[part.start : part.stop].any()]
        return replace(self, rows=rows, tokens=self.tokens * kept, costs=self.costs * kept)

    def with_work(self, rows: range) -> list[int]:
        """The rows of a shard that the student is run on, counted from the shard's first."""
        return [int(row) for row in np.flatnonzero(self.tokens[rows.start : rows.stop])]

    def tokens_in(self, rows: range) -> int:
        return int(self.tokens[rows.start : rows.stop].sum())

    def cost_of(self, rows: range) -> float:
        return float(self.costs[rows.start : rows.stop].sum())

    def missing(self, output: str, folder: Path, parts: Iterable[range]) -> set[range]:
        """The shards that must still be computed: not those that exist, or were merged before the run was
        killed.
        """
        whole = FILES[output]
        if whole and intact(folder / whole, lambda table: _rows(table).equals(self.expected)):
            return set()
        return {rows for rows in parts if not self._is_done(output, folder / name(output, rows), rows)}

    def _is_done(self, output: str, path: Path, rows: range) -> bool:
        expected = self.expected.take([rows.start + row for row in self.with_work(rows)])
        added = ADDED.get(output, set())
        return intact(path, lambda table: added <= set(table.column_names) and _rows(table).equals(expected))


ADDED = {ENTROPY_TABLE.name: {"nll"}}
"""Columns that shards of earlier versions lack. Shards with different columns cannot be merged, so those of
a run that was interrupted by the update are computed again.
"""


def _rows(table: pa.Table) -> pa.Table:
    """The trajectories of a result, with their response tokens. Of tokens' statistics: with the lengths of
    the lists.
    """
    if tokens.EACH in table.column_names:
        table = table.select(KEY).append_column("n_tokens", pc.list_value_length(table[tokens.EACH]))
    return table.select(list(ROWS)).cast(pa.schema(ROWS.items()))


def is_lengths(table: pa.Table, keys: pa.Table) -> bool:
    """Whether a table has the lengths of these trajectories."""
    return {*ROWS, "truncated", "n_prompt"} <= set(table.column_names) and _rows(table).select(KEY).equals(
        keys
    )


def name(output: str, rows: range) -> str:
    prefix = "questions" if output in BY_QUESTION else "shard" if FILES[output] else output
    return f"{prefix}-{rows.start:08d}-{rows.stop:08d}.parquet"


def read_rows(path: Path, rows: range, columns: list[str]) -> list[dict[str, Any]]:
    """A range of rows of a pool. Reads only the row groups that contain them."""
    found: list[dict[str, Any]] = []
    stamp = tuple(part.stat().st_mtime_ns for part in parts(path))
    for group in _groups(path, stamp):
        there = group.rows
        if there.start < rows.stop and there.stop > rows.start:
            table = _group(group, stamp, tuple(columns))
            lower, upper = (
                max(rows.start, there.start) - there.start,
                min(rows.stop, there.stop) - there.start,
            )
            found += table.slice(lower, upper - lower).to_pylist()
    return found


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
    names = [f"{row['question_id']}/{row['candidate_id']}" for row in rows]
    return f"{len(names)} trajectories: {', '.join(names[:5])}{', …' if len(names) > 5 else ''}"


def collect_lengths(job: Job, counts: Counts) -> Counts:
    """`lengths.parquet`, in the pool's order, from its shards."""
    found = finish(LENGTHS_TABLE.name, job.folder, [range(*bounds) for bounds in counts["shards"]])
    table = pd.read_parquet(job.folder / LENGTHS_TABLE.file, columns=["n_prompt", "n_tokens"])
    tokens = int((table["n_prompt"] + table["n_tokens"]).sum())
    return {**found, "tokens": tokens, "without_response": int((table["n_tokens"] == 0).sum())}


def collect(job: Job, counts: Counts) -> Counts:
    """Merge the shards of each output when all processes have finished. `counts` has the rows of each
    output's shards.
    """
    rest = {key: value for key, value in counts.items() if key != "shards"}
    rows = {output: [range(*bounds) for bounds in shards] for output, shards in counts["shards"].items()}
    return {
        output: {**rest, **finish(output, folder, rows[output])} for output, folder in job.outputs.items()
    }


def finish(output: str, folder: Path, rows: list[range]) -> dict[str, int]:
    """Merge the shards, remove those of other cuts, and count."""
    parts = [folder / name(output, part) for part in rows]
    whole = FILES[output]
    if whole and not (folder / whole).exists():
        _merge(_present(parts), folder / whole)
    keep = set() if whole else set(_present(parts))
    for part in folder.glob(name(output, range(0)).split("-")[0] + "-*.parquet"):
        if part not in keep:
            part.unlink()
    if not whole:
        return tokens.write_index(folder, parts)
    table = pd.read_parquet(folder / whole, columns=["n_tokens", "truncated"])
    if len(table) != rows[-1].stop:
        raise LarkError(
            f"{folder / whole} has {len(table)} rows, but the pool has {rows[-1].stop}. Remove {folder}."
        )
    return {
        "trajectories": len(table),
        "tokens": int(table["n_tokens"].sum()),
        "truncated": int(table["truncated"].sum()),
    }


def _present(parts: list[Path]) -> list[Path]:
    missing = [part.name for part in parts if not part.exists()]
    if missing:
        raise LarkError(
            f"{parts[0].parent}: {len(missing)} of {len(parts)} shards are missing ({missing[0]}…). Run again."
        )
    return parts


def _merge(parts: list[Path], path: Path) -> None:
    tables = [pd.read_parquet(part) for part in parts]
    for part, table in zip(parts, tables, strict=True):
        # Checksums cover the pages of a file, not the names of its columns. Joined, a damaged name would
        # leave NaN.
        if list(table.columns) != list(tables[-1].columns):
            raise LarkError(
                f"{part} or {parts[-1].name} is damaged: their columns differ. Remove both and run again."
            )
    whole = pd.concat(tables, ignore_index=True)
    write_part(pa.Table.from_pandas(whole, preserve_index=False), path, compression="snappy")
