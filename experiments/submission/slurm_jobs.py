"""Steps as SLURM jobs, through submitit: each depends on the jobs before it, so none holds GPUs while it
waits.

Only `submit` talks to SLURM, so nothing has to stay alive. A job that reaches its time limit, or is
preempted, is requeued and resumes (`hydra.launcher.max_num_timeout`).
"""

import getpass
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.submission.checks import no_answer, not_accepted
from experiments.submission.graph import SweepStep
from experiments.submission.record import Submission
from experiments.submission.step_job import run_step
from lark.printing import log_to
from lark.work.process import python_path

GENERAL = ("timeout_min", "mem_gb", "stderr_to_stdout")
SLURM = ("partition", "qos", "comment", "constraint", "exclude", "account",
         "signal_delay_s", "setup", "mem_per_gpu", "mem_per_cpu")  # fmt: skip
"""Settings of hydra.launcher that every job gets as they are. The rest follows from the step."""


class StepJob:
    """What a job calls. submitit calls `checkpoint` before a job ends at its time limit, and submits what
    it returns again.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name

    def __call__(self) -> None:
        log_to(sys.stdout)  # submitit writes it to the log of the job
        run_step(self.folder, self.name)

    def checkpoint(self) -> Any:
        from submitit.helpers import DelayedSubmission  # noqa: PLC0415  # an optional package

        return DelayedSubmission(self)


def active_jobs(submission: Submission) -> dict[str, str]:
    """The jobs of unfinished steps that are waiting or running. Without any job, SLURM is not needed."""
    if submission.place != "slurm" or not submission.jobs:
        return {}
    command = ["squeue", "--noheader", "--user", getpass.getuser(), "--format", "%A"]
    try:
        listing = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip()
        raise no_answer(reason, submission.folder) from error
    queue = set(listing.stdout.split())
    unfinished = {step.name for step in submission.unfinished()}
    return {name: job for name, job in submission.jobs.items() if name in unfinished and job in queue}


def submit_jobs(submission: Submission, launcher: Mapping[str, Any]) -> int:
    """Submit a job for every step that is not finished and has none; return how many. `launcher`: the
    settings of Hydra's launcher.
    """
    os.environ["PYTHONPATH"] = python_path()  # jobs inherit it
    jobs = active_jobs(submission)
    are_submitted = len(jobs)
    for step in submission.unfinished():
        if step.name not in jobs:
            needed = [jobs[name] for name in step.after if name in jobs]
            jobs[step.name] = _submit(submission, step, launcher, needed)
    return len(jobs) - are_submitted


def _submit(
    submission: Submission, step: SweepStep, launcher: Mapping[str, Any], needed: Sequence[str]
) -> str:
    """Submit the job of a step; return its id. `needed`: the jobs that it waits for."""
    import submitit  # noqa: PLC0415  # an optional package

    logs = submission.folder / "logs" / step.name
    timeouts = launcher.get("max_num_timeout", 3)
    executor = submitit.AutoExecutor(logs, cluster="slurm", slurm_max_num_timeout=timeouts)
    executor.update_parameters(**parameters(launcher, step, needed))
    try:
        return str(executor.submit(StepJob(submission.folder, step.name)).job_id)
    except Exception as error:
        raise not_accepted(step, error) from error


def parameters(launcher: Mapping[str, Any], step: SweepStep, needed: Sequence[str]) -> dict[str, Any]:
    """Parameters of a step's job, as submitit names them."""
    chosen = {key: value for key, value in launcher.items() if value is not None}
    settings: dict[str, Any] = {
        "name": f"lark-{step.name}",
        "nodes": 1,
        "tasks_per_node": 1,
        "cpus_per_task": step.cpus,
    }
    settings |= {key: chosen[key] for key in GENERAL if key in chosen}
    settings |= {f"slurm_{key}": chosen[key] for key in SLURM if key in chosen}
    additional = dict(chosen.get("additional_parameters", {}))
    if needed:
        settings["slurm_dependency"] = f"afterok:{':'.join(needed)}"
        additional["kill-on-invalid-dep"] = "yes"
    if additional:
        settings["slurm_additional_parameters"] = additional
    if step.gpus:
        settings["gpus_per_node"] = step.gpus
    return settings
