"""Steps as SLURM jobs, through submitit: each depends on the jobs before it, so none holds GPUs while it
waits.

Only `submit` talks to SLURM, so nothing has to stay alive. A job that reaches its time limit, or is
preempted, is requeued and resumes (`hydra.launcher.max_num_timeout`).
"""

import getpass
import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.submission.local_place import paths
from experiments.submission.record import JOBS, Planned, Submission
from experiments.submission.step_job import run_step
from lark.errors import LarkError
from lark.store.store import write_text
from lark.work.machine import pinned

GENERAL = ("timeout_min", "mem_gb", "stderr_to_stdout")
SLURM = (
    "partition",
    "qos",
    "comment",
    "constraint",
    "exclude",
    "account",
    "signal_delay_s",
    "setup",
    "mem_per_gpu",
    "mem_per_cpu",
)
"""Settings of hydra.launcher that every job gets as they are. The rest follows from the step."""


class StepJob:
    """What a job calls. submitit calls `checkpoint` before a job ends at its time limit, and submits what
    it returns again.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name

    def __call__(self) -> None:
        run_step(self.folder, self.name)

    def checkpoint(self) -> Any:
        from submitit.helpers import DelayedSubmission  # noqa: PLC0415  # an optional package

        return DelayedSubmission(self)


def require_slurm() -> None:
    if importlib.util.find_spec("submitit") is None:
        raise LarkError(f"hardware=slurm needs submitit: pip install {pinned('hydra-submitit-launcher')}.")
    if shutil.which("sbatch") is None:
        raise LarkError(
            "hardware=slurm submits jobs, but there is no sbatch here: run it on the cluster's login node."
        )


def queued() -> set[str]:
    """Ids of the user's jobs that are waiting or running."""
    command = ["squeue", "--noheader", "--user", getpass.getuser(), "--format", "%A"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LarkError(f"SLURM does not answer ({error}): try again on the cluster's login node.") from error
    if listed.returncode:
        raise LarkError(f"squeue failed ({listed.stderr.strip()}): try again later.")
    return set(listed.stdout.split())


def submit_jobs(submission: Submission) -> list[str]:
    """Submit a job for every step that is not finished and has none. Returns the names of these steps."""
    import submitit  # noqa: PLC0415  # an optional package

    os.environ["PYTHONPATH"] = paths()  # jobs inherit it
    jobs, active, submitted = submission.jobs(), queued(), list[str]()
    done = {name for name, step in submission.steps.items() if submission.finished(step)}
    for name, step in submission.steps.items():
        outdated = any(other in submitted for other in step.after)  # it waits for a job that has failed
        if name in done or (jobs.get(name) in active and not outdated):
            continue
        if jobs.get(name) in active:
            subprocess.run(["scancel", jobs[name]], check=False, capture_output=True, timeout=60)
        executor = submitit.AutoExecutor(
            submission.folder / "logs",
            cluster="slurm",
            slurm_max_num_timeout=submission.launcher.get("max_num_timeout", 3),
        )
        executor.update_parameters(
            **parameters(submission, step, [jobs[other] for other in step.after if other not in done])
        )
        try:
            jobs[name] = executor.submit(StepJob(submission.folder, name)).job_id
        except Exception as error:
            raise LarkError(f"SLURM does not accept the job of {name} ({_last_line(error)}).") from error
        write_text(submission.folder / JOBS, json.dumps(jobs, indent=1))
        submitted.append(name)
    return submitted


def parameters(submission: Submission, step: Planned, needed: Sequence[str]) -> dict[str, Any]:
    """Parameters of a step's job, as submitit names them. `needed`: the jobs that it waits for."""
    launcher = submission.launcher
    found = {key: launcher[key] for key in GENERAL if launcher.get(key) is not None}
    found |= {f"slurm_{key}": launcher[key] for key in SLURM if launcher.get(key) is not None}
    more = dict(launcher.get("additional_parameters") or {})
    if needed:
        found["slurm_dependency"] = f"afterok:{':'.join(needed)}"
        more["kill-on-invalid-dep"] = "yes"
    if more:
        found["slurm_additional_parameters"] = more
    if step.gpus:
        found["gpus_per_node"] = step.gpus
    return {**found, "name": f"lark-{step.name}", "nodes": 1, "tasks_per_node": 1, "cpus_per_task": step.cpus}


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
