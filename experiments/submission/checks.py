"""Refusals of `submit`. A sweep is carried out in one place at a time, so that no step is started twice."""

import importlib.util
import logging
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments.harness.sweep import Sweep
from experiments.submission.record import DRIVER, GRAPH, JOBS, Submission, SweepStep, jobs_of
from experiments.submission.slurm_jobs import active_jobs, queued
from lark.cluster.nodes import Node
from lark.errors import LarkError
from lark.printing import counted
from lark.store.locks import holder
from lark.work.machine import pinned

SHOWN_JOBS = 20
"""How many SLURM jobs a message lists."""

log = logging.getLogger("experiments")


def check_settings(sweep: Sweep) -> None:
    """Refuse settings of single runs."""
    configs = [trial.config for trial in sweep.trials]
    if any(config.force for config in configs):
        raise LarkError(
            "force= cannot be submitted: use `python -m experiments run`, or remove the artifacts."
        )
    if any(config.dry_run for config in configs):
        raise LarkError(
            "dry_run=true cannot be submitted: `python -m experiments plan` shows what a sweep would do and"
            " cost."
        )


def check_cluster(sweep: Sweep) -> None:
    """Refuse hardware without a cluster."""
    hardware = sweep.trials[0].config.hardware
    if hardware.cluster == "none":
        raise LarkError(
            f"hardware={hardware.name}: sweeps are submitted to a cluster, with hardware=ray or"
            f" hardware=slurm. On one machine, use `python -m experiments run {sweep.title}`."
        )


def check_slurm(sweep: Sweep) -> None:
    if importlib.util.find_spec("submitit") is None:
        raise LarkError(f"hardware=slurm needs submitit: pip install {pinned('hydra-submitit-launcher')}.")
    if shutil.which("sbatch") is None:
        raise LarkError(
            "hardware=slurm submits jobs, but there is no sbatch here: run it on the cluster's login node."
        )
    nodes = sweep.launcher.get("nodes", 1)
    if nodes != 1:
        raise LarkError(
            f"hydra.launcher.nodes={nodes}: a submitted step runs on one node, and many steps run at once."
            " Leave it out."
        )


def check_room(steps: Sequence[SweepStep], nodes: Sequence[Node], grows: bool) -> None:
    """Report steps that need more than any node has. `grows`: other nodes can join the cluster."""
    large = [step for step in steps if not any(_has_room(node, step) for node in nodes)]
    if not large:
        return
    most = max(large, key=lambda step: (step.gpus, step.cpus))
    needed = counted(most.cpus, "CPU") + (f" and {counted(most.gpus, 'GPU')}" if most.gpus else "")
    verb = "needs" if len(large) == 1 else "need"
    sentence = (
        f"{counted(len(large), 'step')} of the sweep, such as {most.title}, {verb} up to {needed} of one"
        " node, which no node has"
    )
    if not grows:
        raise LarkError(f"{sentence}. Lower hardware.threads or hardware.processes.")
    log.warning(
        "%s now. The sweep waits until such a node joins the cluster; otherwise lower hardware.threads or"
        " hardware.processes.",
        sentence,
    )


def _has_room(node: Node, step: SweepStep) -> bool:
    return node.cpus >= step.cpus and node.gpus >= step.gpus


def check_same_place(before: Submission, place: str, address: str | None) -> None:
    """Refuse to submit a sweep that is under way elsewhere. `before`: as it was submitted before."""
    if before.driver is not None and (before.place, before.address) != (place, address):
        cluster = f"the Ray cluster at {before.address}" if before.address else "a Ray cluster of its own"
        raise LarkError(
            f"{before.folder.name} is being carried out on {cluster} ({before.driver}). Submit it with the"
            " same hardware, or wait until it is done. To move it, end that process first; finished steps are"
            " kept."
        )
    if place == "slurm":
        return
    try:
        jobs = active_jobs(before)
    except LarkError as error:
        raise LarkError(
            f"{before.folder.name} was submitted to SLURM, and may have jobs there. {error}"
            f" {_no_jobs(before.folder)}"
        ) from error
    if jobs:
        raise LarkError(
            f"{before.folder.name} is being carried out on SLURM ({counted(len(jobs), 'job')}:"
            f" {_listed(jobs.values())}). Submit it with hardware=slurm, or wait until it is done. To move it,"
            f" cancel the jobs first (`scancel {_listed(jobs.values())}`); finished steps are kept."
        )


def check_same_steps(before: Submission, steps: Iterable[SweepStep]) -> None:
    """Refuse another graph than that of the driver, whose steps read it while they work."""
    if {step.name for step in steps} != set(before.steps):
        raise LarkError(
            f"{before.folder.name} is being carried out ({before.driver}), and its inputs or the code have"
            " changed since it was submitted. End that process, or wait for it; then submit again."
        )


def check_nothing_under_way(folder: Path) -> None:
    """Refuse a sweep that is under way and whose graph cannot be read."""
    problem = f"{folder / GRAPH} is damaged or of another version."
    driver = holder(folder / DRIVER)
    if driver is not None:
        raise LarkError(
            f"{problem} Its steps are being carried out ({driver}). End that process, then submit again."
        )
    jobs = set(jobs_of(folder).values())
    try:
        active = sorted(jobs & queued()) if jobs else []
    except LarkError as error:
        raise LarkError(f"{problem} It may have SLURM jobs. {error} {_no_jobs(folder)}") from error
    if active:
        raise LarkError(
            f"{problem} It has {counted(len(active), 'SLURM job')} ({_listed(active)}). Cancel them"
            f" (`scancel {_listed(active)}`), then submit again."
        )


def _no_jobs(folder: Path) -> str:
    return f"If none of its jobs is left, remove {folder / JOBS}."


def _listed(jobs: Iterable[str]) -> str:
    listed = list(jobs)
    if len(listed) > SHOWN_JOBS:
        listed[SHOWN_JOBS:] = ["…"]
    return " ".join(listed)
