"""Submit a sweep: plan its graph, write it down, and leave the work to SLURM, or to Ray and a driver that
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
from experiments.submission import checks
from experiments.submission.graph import graph
from experiments.submission.record import DRIVER, GRAPH, Submission, SweepStep, folder_of, write_graph
from experiments.submission.resources import Shares
from experiments.submission.slurm_jobs import active_jobs, submit_jobs
from experiments.submission.step_job import python_path
from lark.cluster.nodes import Cluster, Node, address_of, machine_of, reach
from lark.errors import LarkError
from lark.printing import counted
from lark.processors import gpu_ids
from lark.store.locks import holder, locked
from lark.work.machine import Machine, resolve, usable_cores

log = logging.getLogger("experiments")

START_SECONDS = 120.0
"""How long a driver may take to start."""
LOG = "driver.log"


def submit(sweep: Sweep) -> Submission:
    """Submit the steps of a sweep that are not finished and not under way. Returns the submission."""
    checks.check_settings(sweep)
    hardware = sweep.trials[0].config.hardware
    if hardware.cluster == "slurm":
        checks.check_slurm(sweep)
        address = None
        steps = plan_steps(sweep, _slurm_node(sweep))
    else:
        address = address_of(hardware)
        cluster = None if address is None else reach(address, sweep.store.root)
        steps = plan_steps(sweep, _ray_node(sweep, cluster))
        nodes = (Node(usable_cores(), len(gpu_ids())),) if cluster is None else cluster.nodes
        checks.check_room(steps, nodes, grows=cluster is not None)
    folder = folder_of(sweep.store.root, sweep.title, sweep.scale, sweep.arguments)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock", folder.name):
        return _submit(sweep, folder, steps, hardware.cluster, address)


def _submit(
    sweep: Sweep, folder: Path, steps: Sequence[SweepStep], place: str, address: str | None
) -> Submission:
    before = _submitted_before(folder)
    driver = holder(folder / DRIVER)
    if driver is not None:
        before = checks.check_driver(before, folder, driver, place, address)
        checks.check_same_steps(before, steps)
        log.info(
            "it is being carried out (%s); steps that fail can be submitted again when it has ended", driver
        )
        return before
    if place != "slurm":
        checks.check_no_jobs(before, folder)
    elif before is not None:
        steps = _as_queued(steps, before)
    trials = [{"overrides": trial.overrides, "config": asdict(trial.config)} for trial in sweep.trials]
    write_graph(
        folder,
        steps,
        title=sweep.title,
        arguments=list(sweep.arguments),
        place=place,
        address=address,
        launcher=dict(sweep.launcher),
        trials=trials,
    )
    submission = Submission(folder)
    unfinished = submission.unfinished()
    finished = len(steps) - len(unfinished)
    in_total = f"{counted(len(steps), 'step')} of {counted(len(trials), 'trial')}"
    log.info("%s: %s, %d finished", sweep.title, in_total, finished)
    if unfinished and place == "slurm":
        log.info("%s submitted to SLURM", counted(len(submit_jobs(submission)), "job"))
    elif unfinished:
        _start_driver(folder)
    return submission


def _submitted_before(folder: Path) -> Submission | None:
    """The sweep as it was submitted before. None: it was not, or its graph is damaged."""
    if not (folder / GRAPH).exists():
        return None
    try:
        return Submission(folder)
    except LarkError:
        log.info("%s cannot be used, and is written again", folder / GRAPH)
        return None


def _as_queued(steps: Sequence[SweepStep], before: Submission) -> list[SweepStep]:
    """Steps whose SLURM jobs are waiting or running keep the resources that these jobs have asked for."""
    planned = {step.name: step for step in steps}
    for name in active_jobs(before.unfinished_jobs()):
        queued = before.steps[name]
        if name in planned:
            planned[name] = replace(planned[name], gpus=queued.gpus, cpus=queued.cpus)
    return list(planned.values())


def plan_steps(sweep: Sweep, machine: Machine) -> list[SweepStep]:
    """The steps of a sweep, each once, with what they get of a node like `machine`."""
    shares = Shares(machine, sweep.store)
    steps = []
    for vertex in graph([trial.steps for trial in sweep.trials]):
        step = vertex.step
        share = shares.share(step, sweep.trials[vertex.trial])
        folders = [artifact.folder.as_posix() for artifact in step.artifacts]
        steps.append(
            SweepStep(
                name=vertex.name,
                title=step.title,
                trial=vertex.trial,
                trials=vertex.trials,
                after=vertex.after,
                key=step.key,
                artifacts=tuple(folders),
                **asdict(share),
            )
        )
    return steps


def _slurm_node(sweep: Sweep) -> Machine:
    """The node that a SLURM job gets."""
    hardware = sweep.trials[0].config.hardware
    machine = resolve(hardware, here=False)
    cores = int(sweep.launcher.get("cpus_per_task") or 1)
    return replace(machine, threads=hardware.threads or max(1, cores // machine.processes))


def _ray_node(sweep: Sweep, cluster: Cluster | None) -> Machine:
    """The node that a Ray task runs on. None: this machine, on which the driver starts a cluster."""
    hardware = sweep.trials[0].config.hardware
    if cluster is not None:
        return machine_of(cluster, hardware.device, hardware.processes, hardware.threads, 0)
    return resolve(replace(hardware, cluster="none", address=None, workers=0, elastic=False))


def _start_driver(folder: Path) -> None:
    """Start a driver that does not end with this process or its terminal."""
    command = [sys.executable, "-m", "experiments.submission", "drive", str(folder)]
    env = {**os.environ, "PYTHONPATH": python_path()}
    with (folder / LOG).open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS
    while holder(folder / DRIVER) is None:
        if process.poll() == 0:  # everything is done
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise LarkError(f"The process that gives the steps to Ray has ended: see {folder / LOG}.")
        time.sleep(0.1)
    log.info("process %d has given the steps to Ray; this shell may be closed", process.pid)
