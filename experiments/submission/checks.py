"""Refusals of `submit`, one function per sentence. A sweep is carried out in one place at a time, so that no
step is started twice.
"""

import importlib.util
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

from experiments.harness.sweep import Sweep
from experiments.submission.graph import SweepStep
from lark.cluster.nodes import Node
from lark.errors import LarkError, refuse
from lark.printing import counted
from lark.work.machine import pinned

log = logging.getLogger("experiments")


def check_settings(sweep: Sweep) -> None:
    """Refuse settings of single runs, and hardware without a cluster."""
    configs = [trial.config for trial in sweep.trials]
    hardware = configs[0].hardware
    why = None
    if any(config.force for config in configs):
        why = "force= cannot be submitted: use `python -m experiments run`, or remove the artifacts."
    elif any(config.dry_run for config in configs):
        why = (
            "dry_run=true cannot be submitted: `python -m experiments plan` shows what a sweep would do and"
            " cost."
        )
    elif hardware.cluster == "none":
        why = (
            f"hardware={hardware.name}: sweeps are submitted to a cluster, with hardware=ray or"
            f" hardware=slurm. On one machine, use `python -m experiments run {sweep.title}`."
        )
    refuse(why)


def check_slurm(nodes: int) -> None:
    """Refuse to submit jobs where there is no SLURM, or jobs of several nodes."""
    why = None
    if importlib.util.find_spec("submitit") is None:
        why = f"hardware=slurm needs submitit: pip install {pinned('hydra-submitit-launcher')}."
    elif shutil.which("sbatch") is None:
        why = "hardware=slurm submits jobs, but there is no sbatch here: run it on the cluster's login node."
    elif nodes != 1:
        why = (
            f"hydra.launcher.nodes={nodes}: a submitted step runs on one node, and many steps run at once."
            " Leave it out."
        )
    refuse(why)


def check_room(steps: Sequence[SweepStep], nodes: Sequence[Node], grows: bool) -> None:
    """Refuse steps that need more than any node has. `grows`: only warn, other nodes can join the cluster."""
    large = []
    for step in steps:
        if not any(node.cpus >= step.cpus and node.gpus >= step.gpus for node in nodes):
            large.append(step)
    if not large:
        return
    most = max(large, key=lambda step: (step.gpus, step.cpus))
    sentence = (
        f"{counted(len(large), 'step')} of the sweep, such as {most.title}: no node has {most.cpus} CPUs and"
        f" {most.gpus} GPUs. Lower hardware.threads or hardware.processes"
    )
    if grows:
        log.warning("%s, or add such a node; the sweep waits for it", sentence)
    else:
        refuse(f"{sentence}.")


def check_unchanged(folder: Path, under_way: str, is_same: bool) -> None:
    """Refuse to submit a sweep that is being carried out (`under_way`: where, and by what) otherwise."""
    if not is_same:
        raise LarkError(
            f"{folder.name} is being carried out on {under_way}, and the hardware, its inputs or the code"
            " are not those that it was submitted with. Submit it with the same, or wait until it is done."
            " To move it, end that first (end the process, or `scancel` the jobs), and submit it again;"
            " finished steps are kept."
        )


def require_intact(folder: Path, is_intact: bool) -> None:
    """Refuse a sweep whose graph was damaged, or was written by another version of this code."""
    if not is_intact:
        raise LarkError(
            f"The graph in {folder} is damaged or of another version. End what is carrying it out, remove"
            " this folder, and submit the sweep again; finished steps are kept."
        )


def require_plan(step: SweepStep, is_planned: bool) -> None:
    """Refuse a step that its own configuration does not plan, or whose inputs are missing."""
    if not is_planned:
        raise LarkError(
            f"{step.name}: its inputs are not finished, or they or the code have changed since it was"
            " submitted. Submit the sweep again."
        )


def no_answer(reason: str, folder: Path) -> LarkError:
    """SLURM has to be asked which jobs there are."""
    return LarkError(
        f"SLURM does not answer ({reason}): try again later, on the cluster's login node. If the sweep has no"
        f" jobs there, remove {folder}; finished steps are kept."
    )


def not_accepted(step: SweepStep, error: Exception) -> LarkError:
    """SLURM's last line says why."""
    reason = str(error).strip().rpartition("\n")[2] or type(error).__name__
    return LarkError(f"SLURM does not accept the job of {step.name} ({reason}).")


def no_driver(log_file: Path) -> LarkError:
    """The driver has ended at its start."""
    return LarkError(f"The process that gives the steps to Ray has ended: see {log_file}.")
