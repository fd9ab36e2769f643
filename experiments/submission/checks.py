"""Refusals of `submit`. A sweep is carried out in one place at a time, so that no step is started twice."""

import importlib.util
import logging
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments.harness.sweep import Sweep
from experiments.submission.record import GRAPH, JOBS, Submission, SweepStep, jobs_of
from experiments.submission.slurm_jobs import active_jobs
from lark.cluster.nodes import Node
from lark.errors import LarkError
from lark.planner.checks import refuse
from lark.printing import counted, some
from lark.work.machine import pinned

log = logging.getLogger("experiments")


def check_settings(sweep: Sweep) -> None:
    """Refuse settings of single runs, and hardware without a cluster."""
    refuse(_unsuitable_setting(sweep))


def _unsuitable_setting(sweep: Sweep) -> str | None:
    configs = [trial.config for trial in sweep.trials]
    hardware = configs[0].hardware
    if any(config.force for config in configs):
        return "force= cannot be submitted: use `python -m experiments run`, or remove the artifacts."
    if any(config.dry_run for config in configs):
        return (
            "dry_run=true cannot be submitted: `python -m experiments plan` shows what a sweep would do and"
            " cost."
        )
    if hardware.cluster == "none":
        return (
            f"hardware={hardware.name}: sweeps are submitted to a cluster, with hardware=ray or"
            f" hardware=slurm. On one machine, use `python -m experiments run {sweep.title}`."
        )
    return None


def check_slurm(sweep: Sweep) -> None:
    """Refuse to submit jobs where there is no SLURM, or jobs of several nodes."""
    refuse(_no_slurm(sweep.launcher.get("nodes", 1)))


def _no_slurm(nodes: int) -> str | None:
    if importlib.util.find_spec("submitit") is None:
        return f"hardware=slurm needs submitit: pip install {pinned('hydra-submitit-launcher')}."
    if shutil.which("sbatch") is None:
        return "hardware=slurm submits jobs, but there is no sbatch here: run it on the cluster's login node."
    if nodes != 1:
        return (
            f"hydra.launcher.nodes={nodes}: a submitted step runs on one node, and many steps run at once."
            " Leave it out."
        )
    return None


def check_room(steps: Sequence[SweepStep], nodes: Sequence[Node], grows: bool) -> None:
    """Report steps that need more than any node has. `grows`: other nodes can join the cluster."""
    large = [step for step in steps if not _fits(step, nodes)]
    if not large:
        return
    most = max(large, key=lambda step: (step.gpus, step.cpus))
    needed = counted(most.cpus, "CPU")
    if most.gpus:
        needed += f" and {counted(most.gpus, 'GPU')}"
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


def _fits(step: SweepStep, nodes: Sequence[Node]) -> bool:
    return any(node.cpus >= step.cpus and node.gpus >= step.gpus for node in nodes)


def check_driver(
    before: Submission | None, folder: Path, driver: str, place: str, address: str | None
) -> Submission:
    """The sweep that a driver carries out, which is to be submitted to the same cluster.

    `before`: as it was submitted before; None if its graph is damaged.
    """
    if before is None:
        refuse(
            f"{folder / GRAPH} is damaged or of another version. Its steps are being carried out ({driver})."
            " End that process, then submit again."
        )
    assert before is not None
    if (before.place, before.address) != (place, address):
        cluster = f"the Ray cluster at {before.address}" if before.address else "a Ray cluster of its own"
        refuse(
            f"{folder.name} is being carried out on {cluster} ({driver}). Submit it with the same hardware,"
            " or wait until it is done. To move it, end that process first; finished steps are kept."
        )
    return before


def check_same_steps(before: Submission, steps: Iterable[SweepStep]) -> None:
    """Refuse another graph than that of the driver, whose steps read it while they work."""
    if {step.name for step in steps} != set(before.steps):
        raise LarkError(
            f"{before.folder.name} is being carried out ({before.driver}), and its inputs or the code have"
            " changed since it was submitted. End that process, or wait for it; then submit again."
        )


def check_no_jobs(before: Submission | None, folder: Path) -> None:
    """Refuse to give a sweep to Ray that has jobs in SLURM. `before`: None if its graph is damaged."""
    jobs = jobs_of(folder) if before is None else before.unfinished_jobs()
    try:
        active = list(active_jobs(jobs).values())
    except LarkError as error:
        raise LarkError(
            f"{folder.name} was submitted to SLURM, and may have jobs there. {error} If none of its jobs is"
            f" left, remove {folder / JOBS}."
        ) from error
    if active:
        refuse(
            f"{folder.name} is being carried out on SLURM ({counted(len(active), 'job')}: {some(active)})."
            " Submit it with hardware=slurm, or wait until it is done. To move it, cancel the jobs first"
            f" (`scancel {' '.join(active)}`); finished steps are kept."
        )
