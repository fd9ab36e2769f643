"""Rows of a table that are copied from other artifacts, as the passes read them.

`take_over` (lark/scoring/take_over.py) writes them to `taken.parquet` in the folder of the new artifact
before its pass begins: the number of each row in the order of the pass, the artifact that it is from, its
ids in this pool, and its columns. The pass computes the other rows and writes shards with both, so a shard
is complete whoever made its rows, and a resumed run needs no record of what an earlier one took over. A
shard's metadata count its copied rows by artifact; merging adds them up, for the manifest.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lark.pool import trajectories as pools
from lark.scoring import tokens
from lark.scoring.tokens import TrajectoryTokens

TAKEN = "taken.parquet"
ROW, SOURCE = "row", "source"
"""Columns that `taken.parquet` has beside those of its table."""
FROM = b"lark.taken"
"""Metadata of a table: the artifacts that rows are from, and their number, as JSON."""


class Taken:
    """The rows of one output that need not be computed."""

    def __init__(self, folder: Path) -> None:
        """`folder`: the output's."""
        self.path = folder / TAKEN

    @cached_property
    def rows(self) -> frozenset[int]:
        """Their numbers in the order of the pass."""
        if not self.path.exists():
            return frozenset()
        return frozenset(pq.read_table(self.path, columns=[ROW])[ROW].to_pylist())

    def missing(self, rows: Iterable[int]) -> list[int]:
        """Those of the rows that have to be computed."""
        return [row for row in rows if row not in self.rows]

    def completed(self, rows: Sequence[int], computed: Sequence[int], table: pa.Table | None) -> pa.Table:
        """The table of `rows`: copied, or else from `table`, which has the rows `computed` (None: nothing was
        computed).
        """
        copied = self._read(rows)
        if copied is None:
            return table
        numbers = copied[ROW].to_pylist()
        tables = [copied.drop_columns([ROW, SOURCE]).replace_schema_metadata()]
        if table is not None:
            new = [place for place, row in enumerate(computed) if row not in self.rows]
            numbers += [computed[place] for place in new]
            tables = [tables[0].select(table.column_names).cast(_plain(table)), table.take(new)]
        joined = pa.concat_tables([part.replace_schema_metadata() for part in tables])
        order = sorted(range(len(numbers)), key=numbers.__getitem__)
        return with_sources(joined.take(order), Counter(copied[SOURCE].to_pylist()))

    def completed_tokens(
        self, rows: Sequence[int], computed: Sequence[int], trajectories: Sequence[TrajectoryTokens]
    ) -> tuple[list[TrajectoryTokens], Mapping[bytes, bytes]]:
        """The same for statistics of tokens, with metadata for their file."""
        copied = self._read(rows)
        if copied is None:
            return list(trajectories), {}
        by_row = dict(zip(computed, trajectories, strict=True))
        by_row |= zip(copied[ROW].to_pylist(), tokens.from_table(copied), strict=True)
        return [by_row[row] for row in rows], _metadata(Counter(copied[SOURCE].to_pylist()))

    def completed_groups(
        self, pool: Path, columns: list[str], compute: Callable[[list[dict[str, Any]]], pa.Table]
    ) -> Iterator[pa.Table]:
        """The table of each row group of a pool's file, for an operation without shards. `compute` gets the
        rows that are not copied.
        """
        start = 0
        for rows in pools.row_groups(pool, columns):
            numbers = range(start, start + len(rows))
            new = self.missing(numbers)
            yield self.completed(numbers, new, compute([rows[number - start] for number in new]))
            start = numbers.stop

    def finish(self) -> dict[str, Any]:
        """Remove the copies, which are in the table now; return counts for the manifest."""
        if not self.rows:
            return {}
        sources = Counter(pq.read_table(self.path, columns=[SOURCE])[SOURCE].to_pylist())
        self.path.unlink()
        return _counts(sources)

    def _read(self, rows: Sequence[int]) -> pa.Table | None:
        """The copied rows among these, with their numbers; None if there are none."""
        wanted = [row for row in rows if row in self.rows]
        if not wanted:
            return None
        # Row groups outside of the range are not read.
        range_of_rows = [(ROW, ">=", wanted[0]), (ROW, "<=", wanted[-1])]
        table = pq.read_table(self.path, filters=range_of_rows, page_checksum_verification=True)
        requested = set(wanted)
        return table.filter(pa.array([row in requested for row in table[ROW].to_pylist()]))


def _plain(table: pa.Table) -> pa.Schema:
    return table.schema.remove_metadata()


def with_sources(table: pa.Table, sources: Mapping[str, int]) -> pa.Table:
    """The table with a record of where its rows were copied from."""
    return table.replace_schema_metadata({**(table.schema.metadata or {}), **_metadata(sources)})


def _metadata(sources: Mapping[str, int]) -> dict[bytes, bytes]:
    return {FROM: json.dumps(sources).encode()} if sources else {}


def sources_of(paths: Iterable[Path]) -> Counter[str]:
    """The artifacts that rows of these files were copied from, and their number."""
    total: Counter[str] = Counter()
    for path in paths:
        total.update(json.loads((pq.read_schema(path).metadata or {}).get(FROM, b"{}")))
    return total


def counts_of(paths: Iterable[Path]) -> dict[str, Any]:
    """How many rows were taken over, and from where, for the manifest; empty if none were."""
    return _counts(sources_of(paths))


def _counts(sources: Counter[str]) -> dict[str, Any]:
    return {"taken_over": sources.total(), "taken_from": dict(sources)} if sources else {}
