"""Steps as SLURM jobs, through submitit: each depends on the jobs before it, so none holds GPUs while it
waits.

Only `submit` talks to SLURM, so nothing has to stay alive. A job that reaches its time limit, or is
preempted, is requeued and resumes (`hydra.launcher.max_num_timeout`).
"""

import getpass
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.submission.record import JOBS, Submission, SweepStep
from experiments.submission.step_job import python_path, run_step
from lark.errors import LarkError
from lark.printing import log_to
from lark.store.store import write_text

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


def queued() -> set[str]:
    """Ids of the user's jobs that are waiting or running."""
    command = ["squeue", "--noheader", "--user", getpass.getuser(), "--format", "%A"]
    try:
        listing = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip()
        raise LarkError(
            f"SLURM does not answer ({reason}): try again later, on the cluster's login node."
        ) from error
    return set(listing.stdout.split())


def active_jobs(jobs: Mapping[str, str]) -> dict[str, str]:
    """Those of some steps' jobs that are waiting or running. Without any, SLURM is not needed."""
    queue = queued() if jobs else set()
    return {name: job for name, job in jobs.items() if job in queue}


def submit_jobs(submission: Submission) -> list[str]:
    """Submit a job for every step that is not finished and has none. Returns the names of these steps."""
    os.environ["PYTHONPATH"] = python_path()  # jobs inherit it
    jobs = submission.jobs
    queue = queued()
    submitted: list[str] = []
    unfinished = {step.name: step for step in submission.unfinished()}
    for name, step in unfinished.items():
        if jobs.get(name) in queue:
            if not set(submitted).intersection(step.after):
                continue
            # It waits for a job that has failed: SLURM would never start it.
            subprocess.run(["scancel", jobs[name]], check=False, capture_output=True, timeout=60)
        needed = [jobs[other] for other in step.after if other in unfinished]
        jobs[name] = _submit(submission, step, needed)
        # After each job: none is forgotten if this process is killed.
        write_text(submission.folder / JOBS, json.dumps(jobs, indent=1))
        submitted.append(name)
    return submitted


def _submit(submission: Submission, step: SweepStep, needed: Sequence[str]) -> str:
    """Submit the job of a step; return its id. `needed`: the jobs that it waits for."""
    import submitit  # noqa: PLC0415  # an optional package

    timeouts = submission.launcher.get("max_num_timeout", 3)
    logs = submission.folder / "logs"
    executor = submitit.AutoExecutor(logs, cluster="slurm", slurm_max_num_timeout=timeouts)
    executor.update_parameters(**parameters(submission, step, needed))
    try:
        return str(executor.submit(StepJob(submission.folder, step.name)).job_id)
    except Exception as error:
        reason = str(error).strip().rpartition("\n")[2] or type(error).__name__
        raise LarkError(f"SLURM does not accept the job of {step.name} ({reason}).") from error


def parameters(submission: Submission, step: SweepStep, needed: Sequence[str]) -> dict[str, Any]:
    """Parameters of a step's job, as submitit names them. `needed`: the jobs that it waits for."""
    launcher = {key: value for key, value in submission.launcher.items() if value is not None}
    settings: dict[str, Any] = {
        "name": f"lark-{step.name}",
        "nodes": 1,
        "tasks_per_node": 1,
        "cpus_per_task": step.cpus,
    }
    settings |= {key: launcher[key] for key in GENERAL if key in launcher}
    settings |= {f"slurm_{key}": launcher[key] for key in SLURM if key in launcher}
    additional = dict(launcher.get("additional_parameters", {}))
    if needed:
        settings["slurm_dependency"] = f"afterok:{':'.join(needed)}"
        additional["kill-on-invalid-dep"] = "yes"
    if additional:
        settings["slurm_additional_parameters"] = additional
    if step.gpus:
        settings["gpus_per_node"] = step.gpus
    return settings
