"""The steps of a plan as parts for scale.py: how much work each is for N trajectories, and how it is
divided among G GPUs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lark.config import Config
from lark.planner.costs import GIB
from lark.planner.estimates import LOAD_BYTES, START_SECONDS, Estimate, Planner, planner_of
from lark.planner.lengths import CHARACTERS, PoolLengths, pool_lengths
from lark.planner.scale import Part
from lark.planner.throughput import throughput
from lark.work.machine import PLANNED, Machine, resolve
from lark.work.operation import Step

CORES = 8
"""Cores per GPU, unless hardware.threads is set. Nodes with 8 GPUs usually have 96 or more."""
TEXT_SHARE = 0.4
"""Size of a pool's Parquet files, relative to its text: zstd on mathematical English."""
ROW_BYTES = 300
"""Bytes per trajectory of the tables of lengths and scores together, with those of their shards."""


@dataclass(frozen=True)
class Scale:
    """What is planned for."""

    trajectories: int
    gpus: int
    per_node: int = 8


def parts(
    config: Config, steps: Sequence[Step], scale: Scale, lengths: PoolLengths | None = None
) -> list[Part]:
    """The parts of a run, in order. Steps that take less than a second are left out."""
    known = lengths or pool_lengths(config)
    lengths = replace(known, questions=max(1, round(scale.trajectories / known.candidates)))
    found = (_part(config, step, scale, lengths) for step in steps)
    return [part for part in found if part is not None and part.work + part.whole >= 1.0]


def disk_gib(config: Config, steps: Sequence[Step], scale: Scale) -> dict[str, float]:
    """Disk space in GiB: of the pool, of the tables, and what operations declare."""
    known = pool_lengths(config)
    text = scale.trajectories * float(known.response.mean()) * CHARACTERS
    estimates = [
        e
        for step in steps
        if (e := _estimate(config, step, _machine(config, scale, scale.gpus), known)) is not None
    ]
    return {
        "pool": TEXT_SHARE * text / GIB,
        "tables": ROW_BYTES * scale.trajectories / GIB,
        **{e.step.title: e.kept_gib + e.resume_gib for e in estimates if e.kept_gib},
    }


def _machine(config: Config, scale: Scale, gpus: int) -> Machine:
    machine = resolve(config.hardware, here=False)
    processes = min(gpus, scale.per_node)
    threads = config.hardware.threads or (CORES if machine.device == "cuda" else machine.threads)
    return replace(
        machine,
        processes=processes,
        nodes=-(-gpus // processes),
        threads=threads,
        cluster=PLANNED,
        workers=gpus,
    )


def _part(config: Config, step: Step, scale: Scale, lengths: PoolLengths) -> Part | None:
    operation, whole = step.operation, step.operation.row_seconds * lengths.trajectories
    if operation.shard_rows:
        return Part(
            step.title,
            "shards",
            whole,
            START_SECONDS["cpu"],
            -(-lengths.trajectories // operation.shard_rows),
        )
    if callable(operation.run) or operation.cost is None:
        return Part(step.title, "not", 0.0, 0.0, whole=whole)
    alone, together = operation.on_cpu or operation.processes == "one", operation.gpus(config) == 0
    most = config.training.global_batch * config.hardware.sequence_parallel if together else 2**31
    gpus = 1 if alone else min(scale.gpus, most)
    e = _estimate(config, step, _machine(config, scale, gpus), lengths)
    if e is None:
        return None
    device = "cpu" if operation.on_cpu else resolve(config.hardware, here=False).device
    start = START_SECONDS[device] + (0.0 if operation.on_cpu else e.certain_gib * GIB / LOAD_BYTES)
    work = max(0.0, e.seconds - start) * gpus
    if together:
        return Part(step.title, "together", work, start, config.training.checkpoints, most=most, whole=whole)
    if not e.shards:
        return Part(step.title, "not", work, start, whole=whole)
    return Part(step.title, "shards", work, start, e.shards, whole=whole)


def _estimate(config: Config, step: Step, machine: Machine, lengths: PoolLengths) -> Estimate | None:
    planner: Planner | None = planner_of(config, throughput(config, machine), lengths)
    return None if planner is None else planner.estimate(step)
