"""What the planner expects of a check's work, and rates in the form that it reads back."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lark.config import Config
from lark.gpu_check import expectations
from lark.gpu_check.check import CheckPlace
from lark.models.shapes import shape_of
from lark.planner.checks import unknown_size
from lark.planner.estimates import Estimate, Planner
from lark.planner.lengths import PoolLengths
from lark.planner.throughput import throughput
from lark.work.machine import RESERVED_GIB


def planner_for(config: Config, lengths: Sequence[int]) -> Planner:
    """The planner for a pool of trajectories of these lengths, almost all of them response."""
    shape = shape_of(config.student)
    if shape is None:
        raise unknown_size(config)
    tokens = np.array(lengths, dtype=np.float64)
    pool = PoolLengths(1, len(lengths), tokens, tokens, "as measured")
    return Planner(config, shape, throughput(config), pool)


def memory_compared(
    place: CheckPlace, peak_gib: float, estimate: Estimate | None
) -> tuple[str, dict[str, float]]:
    """The peak of a process's tensors beside the planner's estimate. Refuses one that is much larger."""
    assert estimate is not None
    planned = estimate.memory_gib - RESERVED_GIB[place.device]
    expectations.expect_planned_memory(peak_gib, planned)
    text = f"peak {peak_gib:.2f} GiB, planner {planned:.2f} GiB"
    return text, {"peak_gib": peak_gib, "planned_gib": planned}


def rate_of(kind: str, tokens_per_second: float, flops: float, planner: Planner) -> dict[str, Any]:
    """A rate of one device (lark/planner/measured.py). `flops`: per token, as the planner counts them."""
    return {
        "kind": kind,
        "tokens_per_second": tokens_per_second,
        "flops_per_token": flops,
        "hidden": planner.shape.hidden,
        "threads": planner.hardware.machine.threads,
        "student": planner.config.student.path.rpartition("/")[2],
    }
