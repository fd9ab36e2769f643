"""The cost report of `dry_run=true`, and the refusal of runs that do not fit."""

import logging
import shutil
from collections.abc import Collection, Sequence
from math import ceil, inf
from pathlib import Path

from lark.config import Config
from lark.errors import LarkError
from lark.models.shapes import shape_of
from lark.planner.costs import GIB
from lark.planner.duration import check_time, too_long
from lark.planner.estimates import Estimate, estimate, is_papers, planner_of
from lark.planner.lengths import PoolLengths, pool_lengths, shortest
from lark.planner.throughput import Throughput, device_memory, throughput
from lark.printing import text_table
from lark.work.machine import Machine
from lark.work.operation import Step

log = logging.getLogger(__name__)

RELIEF = 0.85
"""Share of the estimated memory that a setting may need to be suggested after a failure."""
PAPER = (
    (
        "paper     the paper's figures for 8 A100: seconds per sample from App. D.1 (docs/reproduce.md"
        " explains how we read them),"
    ),
    (
        "          hours and minutes from App. C.3 at this run's size; about 1,600 A100-hours of training in"
        " all, with ablations"
    ),
)


def report(
    config: Config,
    steps: Sequence[Step],
    lengths: PoolLengths | None = None,
    finished: Collection[tuple[str, ...]] = (),
) -> tuple[str, str | None]:
    """The cost table with its assumptions; and a sentence for each step that does not fit, or None."""
    lengths = lengths or pool_lengths(config)
    hardware = throughput(config)
    estimates = estimate(config, steps, lengths, hardware, finished)
    machine, need = hardware.machine, disk(estimates)
    unit = "GPU" if machine.device == "cuda" else "process" if machine.world == 1 else "processes"
    devices = (
        f"{machine.world} {unit}{'s' * (machine.device == 'cuda' and machine.world > 1)} ({machine.device})"
    )
    nodes = f" on {machine.nodes} nodes" if machine.nodes > 1 else ""
    said = [
        *(["!         exceeds the memory of a device"] if not all(e.fits for e in estimates) else []),
        *_not_estimated(estimates, steps),
        f"lengths   {lengths.source}",
        f"hardware  {devices}{nodes}, {hardware.tflops:,.2f} TFLOP/s and {size(hardware.memory_gib)} each",
        *(f"          {note}" for note in hardware.notes),
        *(
            [f"disk      {need}; outputs has {free_gib(config.outputs_path):,.0f} GiB free on this machine"]
            if need
            else []
        ),
        *(PAPER if is_papers(config, hardware) else ()),
    ]
    return (
        "\n".join([table(estimates, steps, finished), "", *said]),
        " ".join(filter(None, [too_long(config, estimates), refusal(estimates)])) or None,
    )


def disk(estimates: Sequence[Estimate]) -> str | None:
    """The disk space that operations need in the outputs folder: permanently, and until they are finished."""
    return "; ".join(map(_disk, (e for e in estimates if e.kept_gib))) or None


def _disk(e: Estimate) -> str:
    more = (
        f", and up to {size(e.resume_gib)} more for checkpoints until it is finished" if e.resume_gib else ""
    )
    return f"{e.name} needs {size(e.kept_gib)}{more}"


def size(gib: float) -> str:
    """Format a size: `15 GiB`, `12 MiB`."""
    return f"{gib:,.0f} GiB" if gib >= 10 else f"{gib:.1f} GiB" if gib >= 0.1 else f"{gib * 1024:.0f} MiB"


def free_gib(folder: Path) -> float:
    """Free space on the disk of a folder that may not exist yet."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free / GIB


NOT_ESTIMATED = {
    "-": "-         not estimated: takes seconds, or a few minutes",
    "?": "?         not estimated: the size of its model is unknown without downloading it",
}


def _mark(step: Step) -> str:
    """What the table has in place of a step's cost."""
    return "-" if step.operation.cost is None else "?"


def _not_estimated(estimates: Sequence[Estimate], steps: Sequence[Step]) -> list[str]:
    known = {e.step.key for e in estimates}
    return [NOT_ESTIMATED[mark] for mark in sorted({_mark(step) for step in steps if step.key not in known})]


def table(
    estimates: Sequence[Estimate], steps: Sequence[Step] = (), finished: Collection[tuple[str, ...]] = ()
) -> str:
    """The estimates as a table for the terminal. `steps`: the whole plan, with the steps that have no
    estimate.
    """
    paper = any(e.paper for e in estimates)
    header = [
        "stage",
        "operation",
        "work",
        "FLOPs",
        "time",
        "device-hours",
        "GiB per device",
        *(["paper"] if paper else []),
    ]
    total = ["all", "", "", f"{sum(e.flops for e in estimates):.1e}", duration(sum(e.seconds for e in estimates)),
             f"{sum(e.device_hours for e in estimates):.2f}", "", *([""] if paper else [])]  # fmt: skip
    known = {e.step.key: _row(e, paper) for e in estimates}
    rows = {
        step.key: [
            step.stage,
            step.title,
            "",
            *_unknown(step, step.key in finished),
            *([""] if paper else []),
        ]
        for step in steps
    }
    return text_table(header, [*(rows | known).values(), total], right=3)


def _unknown(step: Step, reused: bool) -> list[str]:
    return ["", "reused", "", ""] if reused else [_mark(step)] * 4


def _row(e: Estimate, paper: bool) -> list[str]:
    cost = (
        ["", "reused", "", ""]
        if e.reused
        else [
            f"{e.flops:.1e}",
            duration(e.seconds),
            f"{e.device_hours:.2f}",
            f"{e.memory_gib:.1f}{'' if e.fits else ' !'}",
        ]
    )
    return [e.step.stage, e.step.title, e.work, *cost, *([e.paper] if paper else [])]


def duration(seconds: float) -> str:
    if seconds == inf:
        return "never"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def refusal(estimates: Sequence[Estimate], certain: bool = False) -> str | None:
    """One sentence per step that does not fit. `certain`: only if weights and optimizer alone do not,
    without assumptions.
    """
    found = [
        f"{_place(e)} needs about {_memory(e)}: use {e.remedy}."
        for e in estimates
        if (e.certain_gib if certain else e.memory_gib) > e.limit_gib
    ]
    return " ".join(dict.fromkeys(found)) or None  # the base model and the trained one need the same


def _memory(e: Estimate) -> str:
    """What a step needs, and what there is."""
    if e.sharing > 1:
        return (
            f"{size(e.memory_gib)} in each of {e.sharing} processes, which share"
            f" {size(e.limit_gib * e.sharing)}"
        )
    return f"{ceil(e.memory_gib)} GiB on a device that has {e.limit_gib:.0f}"


def _place(e: Estimate) -> str:
    """A step in a sentence: `train`, or `score (judge)` if its stage has another name."""
    return e.name if e.name == e.step.stage else f"{e.step.stage} ({e.name})"


def refuse(estimates: Sequence[Estimate], certain: bool = False) -> None:
    """Raise an error if a step does not fit."""
    said = refusal(estimates, certain)
    if said is not None:
        raise LarkError(said)


def relief(config: Config, machine: Machine, step: Step, lengths: PoolLengths) -> str:
    """Advice for a step that ran out of memory: its estimate, and the first setting that reduces it
    clearly.
    """
    hardware = Throughput(machine, 1.0, device_memory(config, machine), 1.0)
    planner = planner_of(config, hardware, lengths)
    e = None if planner is None else planner.estimate(step)
    if planner is None or e is None:
        return "Use a device with more memory."
    most = min(e.limit_gib, RELIEF * e.memory_gib)
    needs = f"The planner's estimate is {size(e.memory_gib)} on a device that has {e.limit_gib:.0f} GiB"
    return f"{needs}. Use {planner.remedy(e, most)}, and run the command again."


def check_memory(
    config: Config, machine: Machine, steps: Sequence[Step], finished: Collection[tuple[str, ...]] = ()
) -> None:
    """Stop a run whose weights and optimizer alone exceed a device's memory; warn if the disk is too small.
    No pool is read, and nothing is measured.
    """
    if shape_of(config.student) is not None:
        hardware = Throughput(machine, 1.0, device_memory(config, machine), 1.0)
        estimates = estimate(config, steps, shortest(), hardware, finished)
        refuse(estimates, certain=True)
        check_time(config, machine, steps, finished)
        free, need = free_gib(config.outputs_path), sum(e.kept_gib + e.resume_gib for e in estimates)
        if need > free:
            log.warning("%s has %s free, but %s: free some space, or choose another disk with outputs=<folder>.",
                        config.outputs_path, size(free), disk(estimates))  # fmt: skip
