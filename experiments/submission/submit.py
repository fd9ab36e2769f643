"""Submit a sweep: plan its graph, write it down, and leave the work to SLURM, or to Ray and a driver that
outlives this process.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from experiments.harness.sweep import Sweep
from experiments.submission import checks
from experiments.submission.graph import SweepStep, graph
from experiments.submission.ray_tasks import start_driver
from experiments.submission.record import GRAPH, Submission, folder_of, write_graph
from experiments.submission.resources import Shares
from experiments.submission.slurm_jobs import active_jobs, submit_jobs
from lark.cluster.nodes import Cluster, Node, address_of, machine_of, reach
from lark.printing import counted, some
from lark.processors import gpu_ids
from lark.store.locks import locked
from lark.work.machine import Machine, resolve, usable_cores

log = logging.getLogger("experiments")


def submit(sweep: Sweep) -> Submission:
    """Submit the steps of a sweep that are not finished and not under way. Returns the submission."""
    checks.check_settings(sweep)
    hardware = sweep.trials[0].config.hardware
    address = None
    if hardware.cluster == "slurm":
        checks.check_slurm(sweep.launcher.get("nodes", 1))
        steps = plan_steps(sweep, _slurm_node(sweep))
    else:
        address = address_of(hardware)
        cluster = None if address is None else reach(address, sweep.store.root)
        steps = plan_steps(sweep, _ray_node(sweep, cluster))
        nodes = (Node(usable_cores(), len(gpu_ids())),) if cluster is None else cluster.nodes
        checks.check_room(steps, nodes, grows=cluster is not None)
    folder = folder_of(sweep)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock", folder.name):
        submission = _written(sweep, folder, steps, address)
        _start(sweep, submission)
    return submission


def _written(sweep: Sweep, folder: Path, steps: Sequence[SweepStep], address: str | None) -> Submission:
    """The sweep as it is written down. While it is being carried out, it stays as it is: its processes and
    jobs read it.
    """
    if (folder / GRAPH).exists():
        before = Submission(folder)
        under_way = _under_way(before)
        if under_way:
            place = sweep.trials[0].config.hardware.cluster
            is_same = (before.place, before.address) == (place, address)
            has_same_steps = {step.name for step in steps} == set(before.steps)
            checks.check_unchanged(folder, under_way, is_same and has_same_steps)
            return before
    write_graph(folder, sweep, steps, address)
    return Submission(folder)


def _under_way(submission: Submission) -> str:
    """Where and by what a sweep is being carried out; empty if it is not."""
    if submission.driver is not None:
        return f"{submission.address or 'a Ray cluster of its own'} ({submission.driver})"
    jobs = active_jobs(submission)
    return f"SLURM ({counted(len(jobs), 'job')}: {some(jobs.values())})" if jobs else ""


def _start(sweep: Sweep, submission: Submission) -> None:
    """Give the unfinished steps to SLURM, or to a driver."""
    steps = counted(len(submission.steps), "step")
    unfinished = submission.unfinished()
    finished = len(submission.steps) - len(unfinished)
    trials = counted(len(sweep.trials), "trial")
    log.info("%s: %s of %s, %d finished", sweep.title, steps, trials, finished)
    if submission.driver is not None:
        log.info(
            "it is being carried out (%s); steps that fail can be submitted again when it has ended",
            submission.driver,
        )
    elif unfinished and submission.place == "slurm":
        log.info("%s submitted to SLURM", counted(submit_jobs(submission, sweep.launcher), "job"))
    elif unfinished:
        start_driver(submission.folder)


def plan_steps(sweep: Sweep, machine: Machine) -> list[SweepStep]:
    """The steps of a sweep, each once, with what they get of a node like `machine`."""
    shares = Shares(machine, sweep.store)
    steps = []
    for node in graph([trial.steps for trial in sweep.trials]):
        trial = sweep.trials[node.trial]
        (step,) = [step for step in trial.steps if step.key == node.key]
        gpus, cpus, seconds = shares.share(step, trial)
        steps.append(replace(node, gpus=gpus, cpus=cpus, seconds=seconds))
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
