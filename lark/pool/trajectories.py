"""A normalised pool on disk: `trajectories.parquet`, written and read one row group at a time."""

from collections.abc import Iterator
from dataclasses import fields
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lark import config as conf
from lark.errors import LarkError
from lark.pool.cleaning import Tally
from lark.pool.summary import Summary
from lark.pool.trajectory import Trajectory
from lark.runtime.store import Kind, atomic

POOL = Kind("pool", 3, "trajectories.parquet")
FILE = POOL.file
KEY = ["question_id", "candidate_id"]
"""Columns that identify a trajectory."""
TEXT = [*KEY, "system", "question", "response", "thinking", "conversation"]
"""Columns that make up a trajectory's conversation (lark/models/dialogue.py)."""
ROWS_IN_MEMORY = 2000
CHARACTERS_IN_MEMORY = 8_000_000
"""Limits of a row group; one trajectory may exceed the character limit. Readers hold one row group in memory."""
SCHEMA = pa.schema(
    [
        ("question_id", pa.string()), ("candidate_id", pa.string()), ("teacher", pa.string()), ("rollout", pa.int32()),
        ("system", pa.string()), ("question", pa.string()), ("response", pa.string()), ("answer", pa.string()),
        ("correct", pa.bool_()), ("thinking", pa.string()), ("conversation", pa.string()),
    ]
)  # fmt: skip


def write(trajectories: Iterator[Trajectory], path: Path, pool: conf.Pool, tally: Tally | None = None) -> dict[str, Any]:
    """Write the normalised pool and return its summary. `tally`: what `read` counts meanwhile."""
    tally = Tally() if tally is None else tally
    summary = Summary(pool, tally)
    with atomic(path) as draft, pq.ParquetWriter(draft, SCHEMA, compression="zstd") as writer:
        batch: list[Trajectory] = []
        characters = 0
        for trajectory in trajectories:
            summary.add(trajectory)
            batch.append(trajectory)
            characters += sum(map(len, trajectory.texts))
            if len(batch) == ROWS_IN_MEMORY or characters >= CHARACTERS_IN_MEMORY:
                writer.write_batch(_record_batch(batch))
                batch, characters = [], 0
        if batch:
            writer.write_batch(_record_batch(batch))
    if summary.trajectories == 0:
        filtered = " that pool.correct_only=true would keep" if pool.correct_only else ""
        filtered += f" for the questions {', '.join(pool.ids)}" if pool.ids else ""
        raise LarkError(f"pool {pool.name}: there is no trajectory in {pool.path or 'its sources'}{filtered}.")
    return {**summary.to_dict(), **tally.to_dict(pool)}


def tables(path: Path, columns: list[str] | None = None) -> Iterator[pa.Table]:
    """A normalised pool, one row group in memory at a time. Columns that an older file lacks are null."""
    file = pq.ParquetFile(path, pre_buffer=False)
    wanted = SCHEMA.names if columns is None else columns
    for group in range(file.num_row_groups):
        yield complete(file.read_row_group(group, columns=wanted), wanted)


def group_rows(path: Path) -> list[range]:
    """The rows of each row group of a normalised pool."""
    metadata = pq.read_metadata(path)
    stops = accumulate(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
    return [range(start, stop) for start, stop in pairwise([0, *stops])]


def complete(table: pa.Table, columns: list[str]) -> pa.Table:
    """The table with all these columns, in their order: null where an older file has none."""
    missing = [name for name in columns if name not in table.column_names]
    for name in missing:
        table = table.append_column(name, pa.nulls(len(table), SCHEMA.field(name).type))
    return table.select(columns)


def row_groups(path: Path, columns: list[str] | None = None) -> Iterator[list[dict[str, Any]]]:
    """The rows of a normalised pool, one row group in memory at a time."""
    for table in tables(path, columns):
        yield table.to_pylist()


def iterate(path: Path, columns: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a normalised pool, one at a time."""
    for rows in row_groups(path, columns):
        yield from rows


def _record_batch(batch: list[Trajectory]) -> pa.RecordBatch:
    columns = {field.name: [getattr(trajectory, field.name) for trajectory in batch] for field in fields(Trajectory)}
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)
