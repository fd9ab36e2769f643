"""Whether each trajectory is correct, for methods that prefer correct ones: `correctness.parquet`. No model
code.

By the rule of `pool.correct_only` (lark/pool/trajectory.py): the boxed answer against the pool's `answer`,
or the pool's `correct`.
"""

from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lark.errors import LarkError
from lark.pool import trajectories as pools
from lark.pool.trajectories import KEY
from lark.pool.trajectory import Trajectory, verdict
from lark.scoring.sources import CORRECTNESS_TABLE
from lark.store.store import atomic
from lark.work.operation import Job

SCHEMA = pa.schema([*((name, pa.string()) for name in KEY), ("correct", pa.float64())])
NAMES = [field.name for field in fields(Trajectory)]


def write_correctness(job: Job) -> dict[str, Any]:
    """1 for a correct trajectory, 0 for a wrong one, NaN where there is nothing to judge it by. In the
    pool's order.
    """
    count, correct, unknown = 0, 0, 0
    with (
        atomic(job.folder / CORRECTNESS_TABLE.file) as draft,
        pq.ParquetWriter(draft, SCHEMA, compression="zstd") as writer,
    ):
        for rows in pools.row_groups(job.inputs["pool"] / pools.FILE, NAMES):
            found = [verdict(Trajectory(**row), job.config.pool) for row in rows]
            values = [np.nan if judged is None else float(judged) for judged in found]
            ids = {name: [row[name] for row in rows] for name in KEY}
            writer.write_batch(pa.RecordBatch.from_pydict({**ids, "correct": values}, schema=SCHEMA))
            count, correct, unknown = (
                count + len(rows),
                correct + found.count(True),
                unknown + found.count(None),
            )
        if unknown == count:
            raise LarkError(
                f"method={job.config.method.name} needs to know which trajectories are correct, and no"
                f" trajectory of the pool {job.config.pool.name} has an `answer` or a `correct`. Add one of"
                " them to the pool (docs/own-pool.md), set pool.labels=vote, or choose another method."
            )
    return {"trajectories": count, "correct": correct, "unknown": unknown}
