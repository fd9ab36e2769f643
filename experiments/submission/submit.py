"""Submit a sweep: plan its graph, write it down, and leave the work to SLURM or to a conductor that
outlives this process.
"""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from experiments.harness.sweep import ROOT, Sweep
from experiments.submission import slurm_jobs
from experiments.submission.graph import graph
from experiments.submission.local_place import paths
from experiments.submission.record import (
    AGAIN,
    CONDUCTOR,
    GRAPH,
    Planned,
    Submission,
    await_record,
    folder_of,
    write_graph,
)
from experiments.submission.resources import Shares
from experiments.submission.under_way import active_jobs, refuse_second_place, refuse_unreadable
from lark.cluster.nodes import Cluster, Node, address_of, machine_of, reach
from lark.errors import LarkError
from lark.printing import counted
from lark.store.locks import locked
from lark.work.machine import Machine, gpu_ids, resolve, usable_cores

log = logging.getLogger("experiments")

START_SECONDS = 120.0
"""How long a conductor may take to start."""
LOG = "conductor.log"


def submit(sweep: Sweep) -> Submission:
    """Submit the steps of a sweep that are not finished and not under way. Returns the submission."""
    place = _place(sweep)
    address = address_of(sweep.trials[0].config.hardware) if place == "ray" else None
    cluster = reach(address, sweep.store.root) if address is not None else None
    steps = plan_steps(sweep, _machine(sweep, cluster))
    if place == "ray":
        _check_room(
            steps,
            cluster.nodes if cluster is not None else (Node(usable_cores(), len(gpu_ids())),),
            cluster is None,
        )
    folder = folder_of(sweep.store.root, sweep.title, sweep.scale, sweep.arguments)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock", folder.name):
        await_record(folder)
        before = _recorded(folder)
        if before is not None:
            refuse_second_place(before, place, address)
            if (
                process := before.conductor()
            ) is not None:  # it reads the graph while it works, so that stays as it is
                if {step.name for step in steps} != set(before.steps):
                    raise LarkError(
                        f"{folder.name} is being carried out ({process}), and its inputs or the code have"
                        " changed since it was submitted. End that process, or wait for it; then submit"
                        " again."
                    )
                (folder / AGAIN).touch()
                log.info("it is being carried out (%s); failed steps are tried again", process)
                return before
            if place == "slurm":
                steps = _as_queued(steps, before)
        write_graph(
            folder, steps, title=sweep.title, arguments=list(sweep.arguments), place=place, address=address,
            launcher=dict(sweep.launcher),
            trials=[{"overrides": trial.overrides, "config": asdict(trial.config)} for trial in sweep.trials],
        )  # fmt: skip
        submission = Submission(folder)
        left = [step for step in steps if not submission.finished(step)]
        log.info(
            "%s: %s of %s, %d finished",
            sweep.title,
            counted(len(steps), "step"),
            counted(len(sweep.trials), "trial"),
            len(steps) - len(left),
        )
        if not left:
            return submission
        (folder / CONDUCTOR).unlink(
            missing_ok=True
        )  # of one that was lost, or stopped: it ends when it sees this
        if place == "slurm":
            submitted = slurm_jobs.submit_jobs(submission)
            log.info("%s submitted to SLURM", counted(len(submitted), "job"))
        else:
            _start(folder)
    return submission


def _recorded(folder: Path) -> Submission | None:
    """The sweep as it was submitted before. None: it was not, or its graph is damaged and nothing is under
    way.
    """
    if not (folder / GRAPH).exists():
        return None
    try:
        return Submission(folder)
    except LarkError:
        refuse_unreadable(folder)
        log.info("%s cannot be used, and is written again", folder / GRAPH)
        return None


def _as_queued(steps: Sequence[Planned], before: Submission) -> list[Planned]:
    """Steps whose SLURM jobs are waiting or running keep the resources that these jobs have asked for."""
    kept = {name: before.steps[name] for name in active_jobs(before)}
    return [
        replace(step, gpus=kept[step.name].gpus, cpus=kept[step.name].cpus) if step.name in kept else step
        for step in steps
    ]


def plan_steps(sweep: Sweep, machine: Machine) -> list[Planned]:
    """The steps of a sweep, each once, with what they get of a node like `machine`."""
    shares, found = Shares(machine, sweep.store), []
    for node in graph([trial.steps for trial in sweep.trials]):
        share = shares.share(node, sweep.trials[node.trial])
        artifacts = tuple(artifact.folder.as_posix() for artifact in node.step.artifacts)
        own = (node.name, node.step.title, node.trial, node.trials, node.after, node.step.key, artifacts)
        found.append(Planned(*own, share.gpus, share.cpus, share.seconds))
    return found


def _place(sweep: Sweep) -> str:
    """Where the steps run: `slurm`, `ray` or `local`."""
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
    (cluster,) = {config.hardware.cluster for config in configs}
    if cluster == "slurm":
        slurm_jobs.require_slurm()
        if sweep.launcher.get("nodes", 1) != 1:
            raise LarkError(
                f"hydra.launcher.nodes={sweep.launcher['nodes']}: a submitted step runs on one node, and many"
                " steps run at once. Leave it out."
            )
    return "local" if cluster == "none" else cluster


def _check_room(steps: Sequence[Planned], nodes: Sequence[Node], own: bool) -> None:
    """Report steps that need more than any node has. `own`: no other node can join the cluster."""
    large = [
        step for step in steps if not any(node.cpus >= step.cpus and node.gpus >= step.gpus for node in nodes)
    ]
    if not large:
        return
    most = max(large, key=lambda step: (step.gpus, step.cpus))
    needed = counted(most.cpus, "CPU") + (f" and {counted(most.gpus, 'GPU')}" if most.gpus else "")
    verb = "needs" if len(large) == 1 else "need"
    said = (
        f"{counted(len(large), 'step')} of the sweep, such as {most.title}, {verb} up to {needed} of one"
        " node, which no node has"
    )
    if own:
        raise LarkError(f"{said}. Lower hardware.threads or hardware.processes.")
    log.warning(
        "%s now. The sweep waits until such a node joins the cluster; otherwise lower hardware.threads or"
        " hardware.processes.",
        said,
    )


def _machine(sweep: Sweep, cluster: Cluster | None) -> Machine:
    """The node that a step runs on. `cluster`: the Ray cluster, unless the sweep starts one."""
    hardware = sweep.trials[0].config.hardware
    if hardware.cluster == "slurm":
        machine = resolve(hardware, here=False)
        cores = sweep.launcher.get("cpus_per_task")
        threads = hardware.threads or (max(1, int(cores) // machine.processes) if cores else 1)
        return replace(machine, nodes=1, cluster="", workers=0, threads=threads)
    if cluster is not None:
        return machine_of(cluster, hardware.device, hardware.processes, hardware.threads, 0)
    return resolve(replace(hardware, cluster="none", address=None, workers=0, elastic=False))


def _start(folder: Path) -> None:
    """Start a conductor that does not end with this process or its terminal."""
    command = [sys.executable, "-m", "experiments.submission.conductor", str(folder)]
    with (folder / LOG).open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": paths()},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS
    while not (folder / CONDUCTOR).exists():
        if process.poll() == 0:  # nothing was left to do
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise LarkError(f"The process that starts the steps has ended: see {folder / LOG}.")
        time.sleep(0.1)
    log.info(
        "process %d starts the steps as their inputs are finished; this shell may be closed", process.pid
    )
