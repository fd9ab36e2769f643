"""The cost report of `dry_run=true`, and the refusal of runs that do not fit."""

import logging
import shutil
from collections.abc import Collection, Sequence
from math import ceil, inf
from pathlib import Path

from lark.config import Config
from lark.errors import refuse
from lark.models.shapes import shape_of
from lark.planner.duration import check_time, too_long
from lark.planner.estimates import Estimate, estimate, is_papers, planner_of
from lark.planner.lengths import PoolLengths, pool_lengths, shortest
from lark.planner.throughput import Throughput, device_memory, throughput
from lark.printing import counted, text_table
from lark.work.machine import GIB, Machine
from lark.work.operation import Step

log = logging.getLogger(__name__)

RELIEF = 0.85
"""Share of the estimated memory that a setting may need to be suggested after a failure."""
PAPER_NOTE = (
    "paper     the paper's figures for 8 A100: seconds per sample from App. D.1 (docs/reproduce.md explains"
    " how we read them),\n"
    "          hours and minutes from App. C.3 at this run's size; about 1,600 A100-hours of training in"
    " all, with ablations"
)
NOT_ESTIMATED = {
    "-": "-         not estimated: takes seconds, or a few minutes",
    "?": "?         not estimated: the size of its model is unknown without downloading it",
}
HEADER = ["stage", "operation", "work", "FLOPs", "time", "device-hours", "GiB per device"]
REUSED = ["", "reused", "", ""]


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
    notes = []
    if not all(e.fits for e in estimates):
        notes.append("!         exceeds the memory of a device")
    notes += _not_estimated(estimates, steps)
    notes.append(f"lengths   {lengths.source}")
    notes.append(f"hardware  {_hardware(hardware)}")
    notes += [f"          {note}" for note in hardware.notes]
    space = disk(estimates)
    if space:
        free = free_gib(config.outputs_path)
        notes.append(f"disk      {space}; outputs has {free:,.0f} GiB free on this machine")
    if is_papers(config, hardware):
        notes.append(PAPER_NOTE)
    refusals = filter(None, [too_long(config, estimates), refusal(estimates)])
    return "\n".join([table(estimates, steps, finished), "", *notes]), " ".join(refusals) or None


def _hardware(hardware: Throughput) -> str:
    """The devices of a plan: `8 GPUs (cuda), 312.00 TFLOP/s and 80 GiB each`."""
    machine = hardware.machine
    if machine.device == "cuda":
        devices = counted(machine.world, "GPU")
    else:
        devices = f"{machine.world} {'process' if machine.world == 1 else 'processes'}"
    nodes = f" on {machine.nodes} nodes" if machine.nodes > 1 else ""
    rates = f"{hardware.tflops:,.2f} TFLOP/s and {size(hardware.memory_gib)} each"
    return f"{devices} ({machine.device}){nodes}, {rates}"


def disk(estimates: Sequence[Estimate]) -> str | None:
    """The disk space that operations need in the outputs folder: permanently, and until they are finished."""
    return "; ".join(_disk(e) for e in estimates if e.kept_gib) or None


def _disk(e: Estimate) -> str:
    space = f"{e.name} needs {size(e.kept_gib)}"
    if not e.resume_gib:
        return space
    return f"{space}, and up to {size(e.resume_gib)} more for checkpoints until it is finished"


def size(gib: float) -> str:
    """Format a size: `15 GiB`, `12 MiB`."""
    if gib >= 10:
        return f"{gib:,.0f} GiB"
    return f"{gib:.1f} GiB" if gib >= 0.1 else f"{gib * 1024:.0f} MiB"


def free_gib(folder: Path) -> float:
    """Free space on the disk of a folder that may not exist yet."""
    paths = (folder.absolute(), *folder.absolute().parents)
    existing = next(path for path in paths if path.exists())
    return shutil.disk_usage(existing).free / GIB


def _mark(step: Step) -> str:
    """The mark in the table in place of a step's cost."""
    return "-" if step.operation.cost is None else "?"


def _not_estimated(estimates: Sequence[Estimate], steps: Sequence[Step]) -> list[str]:
    estimated = {e.step.key for e in estimates}
    marks = {_mark(step) for step in steps if step.key not in estimated}
    return [NOT_ESTIMATED[mark] for mark in sorted(marks)]


def table(
    estimates: Sequence[Estimate], steps: Sequence[Step] = (), finished: Collection[tuple[str, ...]] = ()
) -> str:
    """The estimates as a table for the terminal. `steps`: the whole plan, with the steps that have no
    estimate.
    """
    rows = {}
    for step in steps:
        cost = REUSED if step.key in finished else [_mark(step)] * 4
        rows[step.key] = [step.stage, step.title, "", *cost, ""]
    for e in estimates:
        rows[e.step.key] = _row(e)
    flops = sum(e.flops for e in estimates)
    seconds = sum(e.seconds for e in estimates)
    hours = sum(e.device_hours for e in estimates)
    total = ["all", "", "", f"{flops:.1e}", duration(seconds), f"{hours:.2f}", "", ""]
    # The column `paper` is left out unless the paper gives a figure.
    columns = len(HEADER) + any(e.paper for e in estimates)
    cells = [row[:columns] for row in (*rows.values(), total)]
    return text_table([*HEADER, "paper"][:columns], cells, right=3)


def _row(e: Estimate) -> list[str]:
    cost = REUSED
    if not e.reused:
        warning = "" if e.fits else " !"
        memory = f"{e.memory_gib:.1f}{warning}"
        cost = [f"{e.flops:.1e}", duration(e.seconds), f"{e.device_hours:.2f}", memory]
    return [e.step.stage, e.step.title, e.work, *cost, e.paper]


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
    sentences = []
    for e in estimates:
        needed = e.certain_gib if certain else e.memory_gib
        if needed > e.limit_gib:
            sentences.append(f"{_place(e)} needs about {_memory(e)}: use {e.remedy}.")
    # The base model and the trained one need the same: each sentence once.
    return " ".join(dict.fromkeys(sentences)) or None


def _memory(e: Estimate) -> str:
    """The memory that a step needs, and the memory that there is."""
    if e.sharing > 1:
        return (
            f"{size(e.memory_gib)} in each of {e.sharing} processes, which share"
            f" {size(e.limit_gib * e.sharing)}"
        )
    return f"{ceil(e.memory_gib)} GiB on a device that has {e.limit_gib:.0f}"


def _place(e: Estimate) -> str:
    """A step in a sentence: `train`, or `score (judge)` if its stage has another name."""
    return e.name if e.name == e.step.stage else f"{e.step.stage} ({e.name})"


def relief(config: Config, machine: Machine, step: Step, lengths: PoolLengths) -> str:
    """Advice for a step that ran out of memory: its estimate, and the first setting that reduces it
    clearly.
    """
    planner = planner_of(config, _memory_only(config, machine), lengths)
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
    if shape_of(config.student) is None:
        return
    estimates = estimate(config, steps, shortest(), _memory_only(config, machine), finished)
    refuse(refusal(estimates, certain=True))
    check_time(config, machine, steps, finished)
    free = free_gib(config.outputs_path)
    if sum(e.kept_gib + e.resume_gib for e in estimates) > free:
        log.warning(
            "%s has %s free, but %s: free some space, or choose another disk with outputs=<folder>.",
            config.outputs_path,
            size(free),
            disk(estimates),
        )


def _memory_only(config: Config, machine: Machine) -> Throughput:
    """The machine for estimates of memory alone: its rates do not matter, and are not measured."""
    return Throughput(machine, 1.0, device_memory(config, machine), 1.0)
