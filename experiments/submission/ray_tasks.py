"""Steps as tasks of a Ray cluster, submitted at once, each with the references of the tasks before it.

Ray starts a task when these are done and its GPUs and cores are free on a node, and starts it again
elsewhere if the node is lost. A task only starts the step's process, and ends with it; the step resumes from
what it finds in its folder. The tasks end with the driver, a process that `submit` leaves behind.
"""

import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from experiments.harness.sweep import ROOT
from experiments.submission.checks import no_driver
from experiments.submission.graph import SweepStep, remaining
from experiments.submission.record import DRIVER, Submission
from lark.cluster.nodes import connect, reach
from lark.errors import first_line
from lark.store.locks import holder, locked
from lark.work.process import die_with_parent, python_path

RESTARTS = 5
"""How often a step is started again after its node was lost."""
START_SECONDS = 120.0
"""How long a driver may take to start."""
LOG = "driver.log"
COMMAND = [sys.executable, "-m", "experiments.submission"]

log = logging.getLogger("experiments")


def start_driver(folder: Path) -> None:
    """Start a driver that does not end with this process or its terminal."""
    with (folder / LOG).open("ab") as output:
        process = subprocess.Popen(
            [*COMMAND, "drive", str(folder)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": python_path()},
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
            raise no_driver(folder / LOG)
        time.sleep(0.1)
    log.info("process %d has given the steps to Ray; this shell may be closed", process.pid)


def drive(folder: Path) -> str | None:
    """Submit the steps that are not finished, and wait for them. Returns the errors of those that failed."""
    submission = Submission(folder)
    with locked(folder / DRIVER, folder.name):
        ray = connect(reach(submission.address, submission.outputs).address)
        waiting = _submit(ray, submission)
        failures = []
        while waiting:
            (task,), _ = ray.wait(list(waiting), num_returns=1)
            failures += _failures(ray, task, submission, waiting.pop(task))
    return "\n".join(failures) or None


def _submit(ray: Any, submission: Submission) -> dict[Any, SweepStep]:
    """Submit all unfinished steps; return them by task.

    Of those that are ready, Ray starts the first ones first: those with the longest chains of steps after
    them. A step is at least as urgent as those that depend on it, so it is submitted before them.
    """
    unfinished = submission.unfinished()
    urgency = remaining(unfinished)
    tasks: dict[str, Any] = {}
    steps = {}
    for step in sorted(unfinished, key=lambda step: -urgency[step.name]):
        options = {"num_cpus": step.cpus, "num_gpus": step.gpus, "max_retries": RESTARTS, "name": step.name}
        earlier = [tasks[name] for name in step.after if name in tasks]
        arguments = (str(submission.folder), step.name, str(submission.log_file(step)), step.gpus)
        task = ray.remote(run_process).options(**options).remote(*arguments, *earlier)
        tasks[step.name] = task
        steps[task] = step
    return steps


def run_process(folder: str, name: str, log_file: str, gpus: int, *_earlier: object) -> None:
    """The task: run the step's process to its end. Ray has set the GPUs that it may use."""
    env = {**os.environ, "PYTHONPATH": python_path()}
    env.pop("OMP_NUM_THREADS", None)  # Ray sets it to the task's cores; the step's own setting counts
    if not gpus:
        env["CUDA_VISIBLE_DEVICES"] = ""
    with Path(log_file).open("ab") as output:
        subprocess.run(
            [*COMMAND, "step", folder, name],
            cwd=ROOT,
            env=env,
            check=True,  # tasks that depend on one that has failed are not started
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=die_with_parent,
        )


def _failures(ray: Any, task: Any, submission: Submission, step: SweepStep) -> list[str]:
    """The error of a task that has ended, if it has failed itself."""
    try:
        ray.get(task)
    except ray.exceptions.RayError as error:
        if not submission.has_inputs(step):
            return []  # it was not started, because a step before it has failed
        reason = submission.error(step)
        if reason is None:
            reason = f"its process was lost ({first_line(error)})"
            submission.fail(step, reason)
        return [f"{step.name}: {reason}"]
    log.info("%s: done", step.name)
    return []
