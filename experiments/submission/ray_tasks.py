"""Steps as tasks of a Ray cluster, submitted at once, each with the references of the tasks before it.

Ray starts a task when these are done and its GPUs and cores are free on a node, and starts it again
elsewhere if the node is lost. A task only starts the step's process, and ends with it; the step resumes from
what it finds in its folder. The tasks end with the driver, a process that `submit` leaves behind.
"""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from experiments.harness.sweep import ROOT
from experiments.submission.graph import remaining
from experiments.submission.record import DRIVER, Submission, SweepStep
from experiments.submission.step_job import python_path
from lark.cluster.nodes import connect, reach
from lark.errors import first_line
from lark.store.locks import locked
from lark.work.process import die_with_parent

RESTARTS = 5
"""How often a step is started again after its node was lost."""

log = logging.getLogger("experiments")


def run_process(folder: str, name: str, log_file: str, gpus: int, *_earlier: object) -> None:
    """The task: run the step's process to its end. Ray has set the GPUs that it may use."""
    env = {**os.environ, "PYTHONPATH": python_path()}
    env.pop("OMP_NUM_THREADS", None)  # Ray sets it to the task's cores; the step's own setting counts
    if not gpus:
        env["CUDA_VISIBLE_DEVICES"] = ""
    with Path(log_file).open("ab") as output:
        subprocess.run(
            [sys.executable, "-m", "experiments.submission", "step", folder, name],
            cwd=ROOT,
            env=env,
            check=True,  # tasks that depend on one that has failed are not started
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=die_with_parent,
        )


def drive(folder: Path) -> str | None:
    """Submit the steps that are not finished, and wait for them. Returns the errors of those that failed."""
    submission = Submission(folder)
    with locked(folder / DRIVER, folder.name):
        ray = connect(reach(submission.address, submission.outputs).address)
        waiting = _submit(ray, submission)
        failures = []
        while waiting:
            (task,), _ = ray.wait(list(waiting), num_returns=1)
            failures += _result(ray, task, submission, waiting.pop(task))
    return "\n".join(failures) or None


def _submit(ray: Any, submission: Submission) -> dict[Any, SweepStep]:
    """Submit all unfinished steps; return them by task. Of those that are ready, Ray starts the first ones
    first.
    """
    tasks: dict[str, Any] = {}
    steps = {}
    for step in _urgent_first(submission):
        options = {"num_cpus": step.cpus, "num_gpus": step.gpus, "max_retries": RESTARTS, "name": step.name}
        earlier = [tasks[name] for name in step.after if name in tasks]
        arguments = (str(submission.folder), step.name, str(submission.log_file(step)), step.gpus)
        task = ray.remote(run_process).options(**options).remote(*arguments, *earlier)
        tasks[step.name] = task
        steps[task] = step
    return steps


def _urgent_first(submission: Submission) -> list[SweepStep]:
    """Unfinished steps, the longest chains first. A step is never before one that it depends on, which is at
    least as urgent.
    """
    after = {name: step.after for name, step in submission.steps.items()}
    seconds = {name: step.seconds or 0.0 for name, step in submission.steps.items()}
    unfinished = submission.unfinished()
    done = after.keys() - {step.name for step in unfinished}
    urgency = remaining(after, seconds, done)
    return sorted(unfinished, key=lambda step: -urgency[step.name])


def _result(ray: Any, task: Any, submission: Submission, step: SweepStep) -> list[str]:
    """The error of a task that has ended, if it has failed itself."""
    try:
        ray.get(task)
    except ray.exceptions.RayError as error:
        if not submission.has_inputs(step):
            return []  # it was not started, because a step before it has failed
        reasons = _reasons(submission, step)
        if not reasons:
            submission.fail(step, f"its process was lost ({first_line(error)})")
            reasons = _reasons(submission, step)
        return [f"{step.name}: {reason}" for reason in reasons[:1]]
    log.info("%s: done", step.name)
    return []


def _reasons(submission: Submission, step: SweepStep) -> list[str | None]:
    """Why the attempts at a step's artifacts failed."""
    return [attempt.manifest.error for attempt in submission.attempts(step) if attempt.failed]
