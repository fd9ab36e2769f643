"""Refuse runs that would take years. A typing error such as training.epochs=1000000000 should not be found
out after weeks.
"""

from collections.abc import Collection, Sequence
from math import ceil

import numpy as np

from lark.config import Config
from lark.errors import LarkError, refuse
from lark.planner.estimates import Estimate, estimate
from lark.planner.lengths import PoolLengths, pool_lengths, shortest
from lark.planner.throughput import Throughput, device_memory
from lark.pool.formats import source_files
from lark.work.machine import Machine
from lark.work.operation import Step

FASTEST = {"cpu": 0.2, "cuda": 2500.0}
"""TFLOP/s of a CPU thread and of a GPU that no machine exceeds: with them, an estimate is a lower bound."""
BANDWIDTH = 10_000.0
SHORTEST_STEP = 0.01
"""Lower bound in seconds for a training step, whatever the student's size."""
MOST_TOKEN_BYTES = 100
"""Bytes of a pool's files per selected token, at most: other columns, escapes and trajectories that are not
selected.
"""
YEAR = 365.25 * 24


def too_long(config: Config, estimates: Sequence[Estimate]) -> str | None:
    """A sentence if the estimated time exceeds hardware.max_hours, or None."""
    limit = config.hardware.max_hours
    hours = {}
    for e in estimates:
        if e.reused:
            continue
        hours[e.step.title] = e.seconds / 3600
        if e.step.operation.curve:  # it trains: however small the student, a step takes its time
            hours[e.step.title] = max(e.seconds, config.training.epochs * SHORTEST_STEP) / 3600
    total = sum(hours.values())
    if not limit or total <= limit:
        return None
    longest = max(hours, key=lambda name: hours[name])
    return (
        f"This run would take {_long(total)}, {_long(hours[longest])} of it for {longest}: more than"
        f" hardware.max_hours={limit:g}. Check the settings of {longest} (epochs, questions, samples,"
        " tokens), use more or faster devices, or raise hardware.max_hours (0: no limit)."
    )


def check_time(
    config: Config, machine: Machine, steps: Sequence[Step], finished: Collection[tuple[str, ...]]
) -> None:
    """Stop a run that would take longer than hardware.max_hours even on the fastest device. Nothing is read
    or measured.
    """
    speed = FASTEST[machine.device]
    if machine.device == "cpu":
        speed *= machine.threads
    hardware = Throughput(machine, speed, device_memory(config, machine), BANDWIDTH)
    refuse(too_long(config, estimate(config, steps, at_least(config), hardware, finished)))


def at_least(config: Config) -> PoolLengths:
    """A lower bound for the pool's lengths, from the sizes of its files."""
    pool = config.pool
    if pool.is_generated:
        return pool_lengths(config)
    try:
        size = sum(file.stat().st_size for file in source_files(pool))
    except (LarkError, OSError):
        size = 0
    if pool.questions or pool.ids or not size:
        return shortest()
    tokens = max(1, size // MOST_TOKEN_BYTES)
    longest = config.student.max_length
    lengths = np.full(1, float(min(tokens, longest)))
    return PoolLengths(ceil(tokens / longest), 1, lengths, lengths, "a lower bound")


def _long(hours: float) -> str:
    return f"about {hours / YEAR:,.0f} years" if hours > 2 * YEAR else f"about {hours:,.0f} hours"
