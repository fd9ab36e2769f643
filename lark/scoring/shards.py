"""Cut a pass over the pool into shards, assign them to processes, and merge their results. No model code.

A shard is a range of consecutive rows of the pool, so that it can be read without reading the rest. Shards have about equal
cost and do not depend on the number of processes: a run that was started on one GPU can resume on eight. A shard's file is
named after its rows: if `scoring.shard_tokens` has changed since, the file is ignored, never misread.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lark.errors import LarkError, first_line
from lark.pool.trajectories import complete
from lark.runtime.operation import Counts, Job
from lark.runtime.store import atomic
from lark.scoring.methods import LENGTHS_TABLE, LOCAL_TABLE, SCORES_TABLE, TOKENS

log = logging.getLogger(__name__)

LEAST_SHARDS = 16
QUADRATIC = 1 / 20_000
"""Cost of a trajectory of n tokens is n + n²/20,000: attention costs as much as the rest at about 20,000 tokens."""

FILES = {kind.name: kind.file for kind in (SCORES_TABLE, LOCAL_TABLE, TOKENS)}
"""The outputs of a pass, and the file that their shards are merged into; per-token statistics are too large for one file."""


def cost(length: np.ndarray) -> np.ndarray:
    """Estimated work of a forward pass, in tokens of a short sequence: a n + b n² (paper, App. D.1)."""
    return length + QUADRATIC * length.astype(np.float64) ** 2


def cut(costs: np.ndarray, shard_tokens: int) -> list[range]:
    """Ranges of rows of about equal cost: at least LEAST_SHARDS (or as many as there are rows)."""
    wanted = min(len(costs), max(LEAST_SHARDS, int(np.ceil(costs.sum() / shard_tokens))))
    edges = np.searchsorted(np.cumsum(costs), np.arange(1, wanted) * costs.sum() / max(wanted, 1), side="right")
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

    @classmethod
    def of(cls, lengths: Path, shard_tokens: int, blocks: int = 1) -> "Shards":
        """`lengths`: folder of the pool's token counts. `blocks`: runs of each response in short pieces (Local Naturalness)."""
        kind = LENGTHS_TABLE
        table = pd.read_parquet(lengths / kind.file, columns=["n_prompt", "n_tokens"])
        tokens = table["n_prompt"].to_numpy() + blocks * table["n_tokens"].to_numpy()
        costs = cost(tokens) if blocks == 1 else tokens.astype(np.float64)
        return cls(cut(costs, shard_tokens), tokens, costs)

    def deal(self, processes: int) -> list[list[range]]:
        """The shards of each process: the costliest first, each to the process with the least work so far."""
        costs = {rows: float(self.costs[rows.start : rows.stop].sum()) for rows in self.rows}
        hands: list[list[range]] = [[] for _ in range(processes)]
        loads = [0.0] * processes
        for rows in sorted(self.rows, key=lambda rows: (-costs[rows], rows.start)):
            rank = min(range(processes), key=lambda r: (loads[r], r))
            hands[rank].append(rows)
            loads[rank] += costs[rows]
        return hands

    def tokens_in(self, rows: range) -> int:
        return int(self.tokens[rows.start : rows.stop].sum())


def name(output: str, rows: range) -> str:
    prefix = "shard" if FILES[output] else output
    return f"{prefix}-{rows.start:08d}-{rows.stop:08d}.parquet"


def done(output: str, folder: Path, rows: range) -> bool:
    """Whether a shard need not be computed: it exists, or was merged with the others before the run was killed."""
    whole = FILES[output]
    there = _intact(folder / name(output, rows), _read_to_the_end)
    return there or (bool(whole) and _intact(folder / whole, pq.read_metadata))


def _read_to_the_end(path: Path) -> object:
    return pq.read_table(path, page_checksum_verification=True)


def _intact(path: Path, look: Callable[[Path], object]) -> bool:
    """Whether a table exists and can be read. A damaged one is removed and counts as missing."""
    if not path.exists():
        return False
    try:
        look(path)
    except (pa.ArrowException, OSError) as error:
        log.warning("%s is damaged (%s): computing it again", path, first_line(error))
        path.unlink(missing_ok=True)
        return False
    return True


def read_rows(path: Path, rows: range, columns: list[str]) -> list[dict[str, Any]]:
    """A range of rows of a pool. Reads only the row groups that contain them."""
    file = pq.ParquetFile(path, pre_buffer=False)
    found: list[dict[str, Any]] = []
    start = 0
    for group in range(file.num_row_groups):
        stop = start + file.metadata.row_group(group).num_rows
        if start < rows.stop and stop > rows.start:
            table = complete(file.read_row_group(group, columns=columns), columns)
            lower, upper = max(rows.start, start) - start, min(rows.stop, stop) - start
            found += table.slice(lower, upper - lower).to_pylist()
        start = stop
    return found


def collect(job: Job, counts: Counts) -> Counts:
    """Merge the shards of each output when all processes have finished. `counts` has the rows of each shard."""
    rest = {key: value for key, value in counts.items() if key != "shards"}
    rows = [range(*bounds) for bounds in counts["shards"]]
    return {output: {**rest, **finish(output, folder, rows)} for output, folder in job.outputs.items()}


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
        return {"tokens": sum(pq.read_metadata(part).num_rows for part in parts), "files": len(parts)}
    table = pd.read_parquet(folder / whole, columns=["n_tokens", "truncated"])
    if len(table) != rows[-1].stop:
        raise LarkError(f"{folder / whole} has {len(table)} rows, but the pool has {rows[-1].stop}. Remove {folder}.")
    return {
        "trajectories": len(table),
        "tokens": int(table["n_tokens"].sum()),
        "truncated": int(table["truncated"].sum()),
    }


def _present(parts: list[Path]) -> list[Path]:
    missing = [part.name for part in parts if not part.exists()]
    if missing:
        raise LarkError(f"{parts[0].parent}: {len(missing)} of {len(parts)} shards are missing ({missing[0]}…). Run again.")
    return parts


def _merge(parts: list[Path], path: Path) -> None:
    table = pd.concat([pd.read_parquet(part) for part in parts], ignore_index=True)
    with atomic(path) as draft:
        table.to_parquet(draft, index=False)
