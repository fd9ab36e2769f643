"""The steps of a plan as parts for scale.py: how much work each is for N trajectories, and how it is
divided among G GPUs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from lark.config import Config
from lark.planner.estimates import Estimate, planner_of
from lark.planner.lengths import CHARACTERS, PoolLengths, pool_lengths
from lark.planner.scale import Part
from lark.planner.throughput import LOAD_BYTES, START_SECONDS, throughput
from lark.work.machine import GIB, PLANNED, Machine, resolve
from lark.work.operation import Step

CORES = 8
"""Cores per GPU, unless hardware.threads is set. Nodes with 8 GPUs usually have 96 or more."""
TEXT_SHARE = 0.4
"""Size of a pool's Parquet files, relative to its text: zstd on mathematical English."""
ROW_BYTES = 300
"""Bytes per trajectory of the tables of lengths and scores together, with those of their shards."""


@dataclass(frozen=True)
class Workload:
    """The size of a pool, and the GPUs that a plan is made for."""

    trajectories: int
    gpus: int
    per_node: int = 8


def parts(
    config: Config, steps: Sequence[Step], workload: Workload, lengths: PoolLengths | None = None
) -> list[Part]:
    """The parts of a run, in order. Steps that take less than a second are left out."""
    measured = lengths or pool_lengths(config)
    questions = max(1, round(workload.trajectories / measured.candidates))
    planned = [_part(config, step, workload, replace(measured, questions=questions)) for step in steps]
    return [part for part in planned if part is not None and part.work + part.serial >= 1.0]


def disk_gib(config: Config, steps: Sequence[Step], workload: Workload) -> dict[str, float]:
    """Disk space in GiB: of the pool, of the tables, and what operations declare."""
    lengths = pool_lengths(config)
    text = workload.trajectories * float(lengths.response.mean()) * CHARACTERS
    space = {"pool": TEXT_SHARE * text / GIB, "tables": ROW_BYTES * workload.trajectories / GIB}
    machine = _machine(config, workload, workload.gpus)
    for step in steps:
        cost = _estimate(config, step, machine, lengths)
        if cost is not None and cost.kept_gib:
            space[step.title] = cost.kept_gib + cost.resume_gib
    return space


def _machine(config: Config, workload: Workload, gpus: int) -> Machine:
    machine = resolve(config.hardware, here=False)
    processes = min(gpus, workload.per_node)
    cores = CORES if machine.device == "cuda" else machine.threads
    return replace(
        machine,
        processes=processes,
        nodes=ceil(gpus / processes),
        threads=config.hardware.threads or cores,
        cluster=PLANNED,
        workers=gpus,
    )


def _part(config: Config, step: Step, workload: Workload, lengths: PoolLengths) -> Part | None:
    """A step as a part; None if the size of its model is unknown."""
    operation = step.operation
    serial = operation.row_seconds * lengths.trajectories
    if operation.shard_rows:
        shards = ceil(lengths.trajectories / operation.shard_rows)
        return Part(step.title, "shards", serial, START_SECONDS["cpu"], shards)
    if callable(operation.run) or operation.cost is None:
        return Part(step.title, "not", 0.0, 0.0, serial=serial)
    together = operation.gpus(config) == 0
    most = config.training.global_batch * config.hardware.sequence_parallel if together else 2**31
    gpus = 1 if operation.on_cpu or operation.processes == "one" else min(workload.gpus, most)
    cost = _estimate(config, step, _machine(config, workload, gpus), lengths)
    if cost is None:
        return None
    start = START_SECONDS["cpu"]
    if not operation.on_cpu:
        device = resolve(config.hardware, here=False).device
        start = START_SECONDS[device] + cost.certain_gib * GIB / LOAD_BYTES
    work = max(0.0, cost.seconds - start) * gpus
    if together:
        intervals = config.training.checkpoints
        return Part(step.title, "together", work, start, intervals, most=most, serial=serial)
    if not cost.shards:
        return Part(step.title, "not", work, start, serial=serial)
    return Part(step.title, "shards", work, start, cost.shards, serial=serial)


def _estimate(config: Config, step: Step, machine: Machine, lengths: PoolLengths) -> Estimate | None:
    planner = planner_of(config, throughput(config, machine), lengths)
    return None if planner is None else planner.estimate(step)
