"""Write and merge the shards of an analysis. No model code: the pipeline merges them in its own process."""

from pathlib import Path

import pandas as pd
import pyarrow as pa

from lark.scoring.checks import check_shards
from lark.store.part_files import intact, write_part
from lark.store.store import atomic


def name(number: int) -> str:
    return f"shard-{number:05d}.parquet"


def write(table: pd.DataFrame, folder: Path, number: int) -> None:
    write_part(pa.Table.from_pandas(table, preserve_index=False), folder / name(number))


def is_done(folder: Path, number: int, column: str, expected: object) -> bool:
    """True if a shard exists and has the rows of this question or snapshot, and no others."""
    return intact(folder / name(number), lambda table: table[column].unique().to_pylist() == [expected])


def merge(folder: Path, file: str, count: int) -> dict[str, int]:
    """One table of all `count` shards, in their order; the shards are removed."""
    parts = [folder / name(number) for number in range(count)]
    check_shards(parts)
    table = pd.concat([pd.read_parquet(part) for part in parts], ignore_index=True)
    with atomic(folder / file) as draft:
        table.to_parquet(draft, index=False)
    for part in sorted(folder.glob("shard-*.parquet")):
        part.unlink()
    return {"shards": len(parts), "rows": len(table)}
