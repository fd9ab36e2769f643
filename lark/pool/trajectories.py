"""A normalised pool on disk: `trajectories.parquet`, written and read one row group at a time.

A large pool of many files is in several parts instead, `trajectories-00000.parquet` and so on
(lark/pool/partition.py). Readers are given the path of `trajectories.parquet` in both cases: `parts` finds
the files.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lark import config as conf
from lark.errors import LarkError
from lark.pool.cleaning import Tally, left_out
from lark.pool.summary import Summary
from lark.pool.trajectory import Trajectory
from lark.store.store import Kind, atomic

POOL_TABLE = Kind("pool", 4, "trajectories.parquet")
FILE = POOL_TABLE.file
KEY = ["question_id", "candidate_id"]
"""Columns that identify a trajectory."""
TEXT_COLUMNS = [*KEY, "system", "question", "response", "thinking", "conversation"]
"""Columns that make up a trajectory's conversation (lark/models/dialogue.py)."""
ROWS_IN_MEMORY = 2000
CHARACTERS_IN_MEMORY = 8_000_000
"""Limits of a row group; one trajectory may exceed the character limit. Readers hold one row group in
memory.
"""
SCHEMA = pa.schema(
    [
        ("question_id", pa.string()),
        ("candidate_id", pa.string()),
        ("teacher", pa.string()),
        ("rollout", pa.int32()),
        ("system", pa.string()),
        ("question", pa.string()),
        ("response", pa.string()),
        ("answer", pa.string()),
        ("correct", pa.bool_()),
        ("thinking", pa.string()),
        ("conversation", pa.string()),
        ("pass_rate", pa.float32()),
    ]
)


def write(
    trajectories: Iterator[Trajectory], path: Path, pool: conf.Pool, tally: Tally | None = None
) -> dict[str, Any]:
    """Write the normalised pool and return its summary. `tally`: what `read` counts meanwhile."""
    tally = Tally() if tally is None else tally
    summary = Summary(pool, tally)
    write_part(trajectories, path, summary)
    return described(summary, tally, pool)


def write_part(trajectories: Iterable[Trajectory], path: Path, summary: Summary) -> None:
    """Write one file, and add its trajectories to the summary."""
    with atomic(path) as draft, pq.ParquetWriter(draft, SCHEMA, compression="zstd") as writer:
        batch: list[Trajectory] = []
        characters = 0
        for trajectory in trajectories:
            summary.add(trajectory)
            batch.append(trajectory)
            characters += sum(map(len, trajectory.texts))
            # A row group is what readers hold in memory, so both its rows and its text are limited.
            if len(batch) == ROWS_IN_MEMORY or characters >= CHARACTERS_IN_MEMORY:
                writer.write_batch(_record_batch(batch))
                batch = []
                characters = 0
        if batch:
            writer.write_batch(_record_batch(batch))


def described(summary: Summary, tally: Tally, pool: conf.Pool) -> dict[str, Any]:
    """The manifest's counts of a pool. An empty pool is an error."""
    if summary.trajectories == 0:
        raise _nothing_left(pool, tally)
    return {**summary.to_dict(), **tally.to_dict(pool)}


def _nothing_left(pool: conf.Pool, tally: Tally) -> LarkError:
    questions = f" for the questions {', '.join(pool.ids)}" if pool.ids else ""
    reasons = ", ".join(left_out(pool, tally))
    advice = f": {reasons}. Change the settings, or add trajectories." if reasons else "."
    return LarkError(
        f"pool {pool.name}: there is no trajectory left in {pool.path or 'its sources'}{questions}{advice}"
    )


def parts(path: Path) -> list[Path]:
    """The files of a normalised pool, in order. `path`: of the file that it would be in as a whole."""
    if path.exists():
        return [path]
    return sorted(path.parent.glob(f"{path.stem}-*{path.suffix}")) or [path]


def part_name(number: int) -> str:
    path = Path(FILE)
    return f"{path.stem}-{number:05d}{path.suffix}"


def tables(path: Path, columns: list[str] | None = None) -> Iterator[pa.Table]:
    """A normalised pool, one row group in memory at a time. Columns that an older file lacks are null."""
    columns = SCHEMA.names if columns is None else columns
    for part in parts(path):
        file = pq.ParquetFile(part, pre_buffer=False)
        for group in range(file.num_row_groups):
            yield complete(file.read_row_group(group, columns=columns), columns)


def frame(path: Path, columns: list[str]) -> pd.DataFrame:
    """Some columns of a whole pool."""
    frames = [pd.read_parquet(part, columns=columns) for part in parts(path)]
    return pd.concat(frames, ignore_index=True)


@dataclass(frozen=True)
class RowGroup:
    """The place of some consecutive rows of a pool."""

    rows: range
    file: Path
    number: int
    """The row group's number in its file."""


def row_group_places(path: Path) -> list[RowGroup]:
    """The row groups of a normalised pool, in order."""
    places: list[RowGroup] = []
    start = 0
    for part in parts(path):
        metadata = pq.read_metadata(part)
        for number in range(metadata.num_row_groups):
            stop = start + metadata.row_group(number).num_rows
            places.append(RowGroup(range(start, stop), part, number))
            start = stop
    return places


def group_rows(path: Path) -> list[range]:
    """The rows of each row group of a normalised pool."""
    return [group.rows for group in row_group_places(path)]


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
    columns: dict[str, list[Any]] = {}
    for name in SCHEMA.names:
        columns[name] = [getattr(trajectory, name) for trajectory in batch]
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)
