"""How the pool is cut into shards, dealt to processes, and put together again. No model code.

A shard is a run of neighbouring rows of the pool, so that it can be read without reading the rest, and shards are of
about equal cost. They do not depend on the number of processes: a run that was started on one GPU goes on with eight.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from lark.artifacts import atomic
from lark.scoring.methods import METHODS

LEAST_SHARDS = 16
QUADRATIC = 1 / 20_000
"""Cost of a trajectory of n tokens is n + n²/20,000: attention costs as much as the rest at about 20,000 tokens."""


def cost(length: np.ndarray) -> np.ndarray:
    """Estimated work of a forward pass, in tokens of a short sequence: a n + b n² (paper, App. D.1)."""
    return length + QUADRATIC * length.astype(np.float64) ** 2


def cut(lengths: Sequence[int] | np.ndarray, shard_tokens: int) -> list[range]:
    """Runs of rows of about equal cost: at least LEAST_SHARDS (or as many as there are rows)."""
    costs = cost(np.asarray(lengths))
    wanted = min(len(costs), max(LEAST_SHARDS, int(np.ceil(costs.sum() / shard_tokens))))
    edges = np.searchsorted(np.cumsum(costs), np.arange(1, wanted) * costs.sum() / wanted, side="right")
    bounds = [0, *np.unique(edges).tolist(), len(costs)]
    return [range(a, b) for a, b in pairwise(bounds) if a < b]


def deal(shards: Sequence[range], lengths: np.ndarray, processes: int) -> list[list[int]]:
    """Shard numbers for each process, the costliest first to whoever has the least."""
    costs = [float(cost(lengths[shard.start : shard.stop]).sum()) for shard in shards]
    hands: list[list[int]] = [[] for _ in range(processes)]
    loads = [0.0] * processes
    for number in sorted(range(len(shards)), key=lambda i: (-costs[i], i)):
        rank = min(range(processes), key=lambda r: (loads[r], r))
        hands[rank].append(number)
        loads[rank] += costs[number]
    return hands


def read_rows(path: Path, rows: range, columns: list[str]) -> list[dict[str, str]]:
    """Some neighbouring rows of a pool, reading only the row groups they lie in."""
    file = pq.ParquetFile(path)
    found: list[dict[str, str]] = []
    start = 0
    for group in range(file.num_row_groups):
        stop = start + file.metadata.row_group(group).num_rows
        if start < rows.stop and stop > rows.start:
            table = file.read_row_group(group, columns=columns)
            lower, upper = max(rows.start, start) - start, min(rows.stop, stop) - start
            found += table.slice(lower, upper - lower).to_pylist()
        start = stop
    return found


def name(shard: int) -> str:
    return f"shard-{shard:05d}.parquet"


def merge(folder: Path, file: str) -> dict[str, int]:
    """Put the shards together into one table, and add a column for each method that the table is enough for."""
    parts = sorted(folder.glob("shard-*.parquet"))
    table = pd.concat([pd.read_parquet(part) for part in parts], ignore_index=True)
    for method in METHODS.values():
        if method.needs == {"statistics"} and "nll" in table.columns:
            table[f"score_{method.name}"] = method.score(table)
    with atomic(folder / file) as draft:
        table.to_parquet(draft, index=False)
    for part in parts:
        part.unlink()
    return {
        "trajectories": len(table),
        "tokens": int(table["n_tokens"].sum()),
        "truncated": int(table["truncated"].sum()),
    }
