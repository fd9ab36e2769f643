"""Write and merge the shards of an analysis. No model code: the pipeline merges them when all processes have finished."""

from pathlib import Path

import pandas as pd

from lark.runtime.store import atomic


def name(number: int) -> str:
    return f"shard-{number:05d}.parquet"


def write(table: pd.DataFrame, folder: Path, number: int) -> None:
    with atomic(folder / name(number)) as draft:
        table.to_parquet(draft, index=False)


def merge(folder: Path, file: str) -> dict[str, int]:
    """One table of all shards, in their order; the shards are removed."""
    parts = sorted(folder.glob("shard-*.parquet"))
    table = pd.concat([pd.read_parquet(part) for part in parts], ignore_index=True)
    with atomic(folder / file) as draft:
        table.to_parquet(draft, index=False)
    for part in parts:
        part.unlink()
    return {"shards": len(parts), "rows": len(table)}
