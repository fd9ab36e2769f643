"""Merge the shards of a pass when all processes have finished, and count what they contain. No model code."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from lark.scoring import taken, token_files
from lark.scoring.checks import check_shards
from lark.scoring.shards import name, prefix
from lark.scoring.sources import FILES, LENGTHS_TABLE
from lark.store.part_files import write_part
from lark.work.operation import Counts, Job


def collect_lengths(job: Job, counts: Counts) -> Counts:
    """`lengths.parquet`, in the pool's order, from its shards."""
    rows = [range(*bounds) for bounds in counts["shards"]]
    merged = finish(LENGTHS_TABLE.name, job.folder, rows)
    table = pd.read_parquet(job.folder / LENGTHS_TABLE.file, columns=["n_prompt", "n_tokens"])
    total = int((table["n_prompt"] + table["n_tokens"]).sum())
    return {**merged, "tokens": total, "without_response": int((table["n_tokens"] == 0).sum())}


def collect(job: Job, counts: Counts) -> Counts:
    """Merge the shards of each output. `counts` has the rows of each output's shards."""
    common = {key: value for key, value in counts.items() if key != "shards"}
    merged = {}
    for output, folder in job.outputs.items():
        rows = [range(*bounds) for bounds in counts["shards"][output]]
        merged[output] = {**common, **finish(output, folder, rows)}
    return merged


def finish(output: str, folder: Path, rows: Sequence[range]) -> dict[str, Any]:
    """Merge the shards of an output, remove those of other cuts, and count."""
    shards = [folder / name(output, part) for part in rows]
    # Rows that are copied are in the shards.
    (folder / taken.TAKEN).unlink(missing_ok=True)
    if not FILES[output]:
        check_shards(shards)
        _remove_shards(output, folder, keep=set(shards))
        return {**token_files.write_index(folder, shards), **taken.counts_of(shards)}
    path = folder / FILES[output]
    # A run that was killed after merging has the table, but perhaps no shards any more.
    if not path.exists():
        check_shards(shards)
        _merge(shards, path)
    _remove_shards(output, folder)
    table = pd.read_parquet(path, columns=["n_tokens", "truncated"])
    return {
        "trajectories": len(table),
        "tokens": int(table["n_tokens"].sum()),
        "truncated": int(table["truncated"].sum()),
        **taken.counts_of([path]),
    }


def _merge(shards: Sequence[Path], path: Path) -> None:
    merged = pd.concat([pd.read_parquet(shard) for shard in shards], ignore_index=True)
    table = pa.Table.from_pandas(merged, preserve_index=False)
    write_part(taken.with_sources(table, taken.sources_of(shards)), path, compression="snappy")


def _remove_shards(output: str, folder: Path, keep: Collection[Path] = ()) -> None:
    for shard in folder.glob(f"{prefix(output)}-*.parquet"):
        if shard not in keep:
            shard.unlink()
