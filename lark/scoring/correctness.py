"""Correctness of each trajectory, for methods that prefer correct ones: `correctness.parquet`. No model
code.

By the rule of `pool.correct_only` (lark/pool/trajectory.py): the boxed answer against the pool's `answer`,
or the pool's `correct`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from math import isnan
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lark.pool import trajectories as pools
from lark.pool.trajectories import KEY
from lark.pool.trajectory import Trajectory, verdict
from lark.scoring.checks import check_known_correctness
from lark.scoring.sources import CORRECTNESS_TABLE
from lark.scoring.taken import Taken
from lark.store.store import atomic
from lark.work.operation import Job

CORRECTNESS_SCHEMA = pa.schema(dict.fromkeys(KEY, pa.string()) | {"correct": pa.float64()})
TRAJECTORY_COLUMNS = [field.name for field in fields(Trajectory)]


def write_correctness(job: Job) -> dict[str, Any]:
    """1 for a correct trajectory, 0 for a wrong one, NaN if it cannot be judged. In the pool's order."""
    counts: Counter[bool | None] = Counter()

    def judged(rows: Sequence[dict[str, Any]]) -> pa.Table:
        verdicts = [verdict(Trajectory(**row), job.config.pool) for row in rows]
        columns: dict[str, Any] = {name: [row[name] for row in rows] for name in KEY}
        columns["correct"] = np.array(verdicts, dtype=float)  # None becomes NaN
        return pa.Table.from_pydict(columns, schema=CORRECTNESS_SCHEMA)

    taken = Taken(job.folder)
    with (
        atomic(job.folder / CORRECTNESS_TABLE.file) as draft,
        pq.ParquetWriter(draft, CORRECTNESS_SCHEMA, compression="zstd") as writer,
    ):
        for table in taken.completed_groups(job.inputs["pool"] / pools.FILE, TRAJECTORY_COLUMNS, judged):
            writer.write_table(table)
            counts.update(map(_as_verdict, table["correct"].to_pylist()))
        # Inside the block, so that a table that says nothing is not kept.
        check_known_correctness(counts[True] + counts[False], job.config.method.name, job.config.pool.name)
    return {
        "trajectories": counts.total(),
        "correct": counts[True],
        "unknown": counts[None],
        **taken.finish(),
    }


def _as_verdict(correct: float) -> bool | None:
    return None if isnan(correct) else bool(correct)
