"""Steps as tasks of a Ray cluster: Ray queues them, and starts each where its GPUs and cores are free.

A task only starts the step's process on the node that Ray has chosen, and ends with it. A task whose node
is lost is started again elsewhere by Ray, and the step resumes from what it finds in its folder.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from experiments.harness.sweep import ROOT
from experiments.submission.local_place import paths
from experiments.submission.record import Planned, Submission
from lark.cluster.nodes import connect, reach
from lark.work.process import die_with_parent

RESTARTS = 5
"""How often a step is started again after its node was lost."""


def run_process(folder: str, name: str, log: str, gpus: int) -> int:
    """The task: run the step's process to its end. Ray has set the GPUs that it may use."""
    env = {**os.environ, "PYTHONPATH": paths(), **({} if gpus else {"CUDA_VISIBLE_DEVICES": ""})}
    env.pop("OMP_NUM_THREADS", None)  # Ray sets it to the task's cores; the step's own setting counts
    with Path(log).open("ab") as output:
        return subprocess.run(
            [sys.executable, "-m", "experiments.submission.step_job", folder, name],
            cwd=ROOT,
            env=env,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=die_with_parent,
        ).returncode


class RayPlace:
    """The nodes of a Ray cluster."""

    def __init__(self, submission: Submission) -> None:
        self.submission = submission
        self.ray = connect(reach(submission.address, submission.outputs).address)
        self.running: dict[Any, str] = {}

    def start(self, step: Planned) -> bool:
        options = {"num_cpus": step.cpus, "num_gpus": step.gpus, "max_retries": RESTARTS, "name": step.name}
        task = self.ray.remote(run_process).options(**options)
        log = str(self.submission.log_file(step.name))
        self.running[task.remote(str(self.submission.folder), step.name, log, step.gpus)] = step.name
        return True

    def ended(self, seconds: float) -> list[str]:
        done, _ = self.ray.wait(list(self.running), num_returns=1, timeout=seconds)
        return [self.running.pop(task) for task in done]

    def close(self) -> None:
        for task in self.running:
            self.ray.cancel(task, force=True)
