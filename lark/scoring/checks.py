"""Refusals of the scoring passes. No model code."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from lark.errors import LarkError


def check_shards(shards: Sequence[Path]) -> None:
    """Refuse to merge shards some of which are missing."""
    missing = [shard.name for shard in shards if not shard.exists()]
    if missing:
        raise LarkError(
            f"{shards[0].parent}: {len(missing)} of {len(shards)} shards are missing ({missing[0]}…). Run again."
        )


def check_same_columns(shards: Sequence[Path], tables: Sequence[pd.DataFrame]) -> None:
    """Refuse shards with different columns.

    Checksums cover the pages of a file, not the names of its columns. Joined, a damaged name would leave NaN.
    """
    for shard, table in zip(shards, tables, strict=True):
        if list(table.columns) != list(tables[-1].columns):
            raise LarkError(
                f"{shard} or {shards[-1].name} is damaged: their columns differ. Remove both and run again."
            )


def check_merged(path: Path, rows: int, expected: int) -> None:
    """Refuse a merged file with another number of rows than the pool."""
    if rows != expected:
        raise LarkError(f"{path} has {rows} rows, but the pool has {expected}. Remove {path.parent}.")
