"""Steps as processes of this machine, as many as its GPUs and cores allow."""

import os
import subprocess
import sys
import time

from experiments.harness.sweep import ROOT
from experiments.submission.record import Planned, Submission
from lark.work.machine import gpu_ids, usable_cores
from lark.work.process import die_with_parent


def command(submission: Submission, name: str) -> list[str]:
    """The command that makes a step."""
    return [sys.executable, "-m", "experiments.submission.step_job", str(submission.folder), name]


def paths() -> str:
    """PYTHONPATH of that command."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


class LocalPlace:
    """This machine's GPUs and cores."""

    def __init__(self, submission: Submission) -> None:
        self.submission = submission
        self.gpus = list(gpu_ids())
        self.cores = self.free = usable_cores()
        self.running: dict[str, tuple[subprocess.Popen[bytes], list[str], int]] = {}

    def start(self, step: Planned) -> bool:
        cores = min(step.cpus, self.cores)
        if step.gpus > len(self.gpus) or cores > self.free:
            return False
        gpus, self.gpus = self.gpus[: step.gpus], self.gpus[step.gpus :]
        self.free -= cores
        env = {**os.environ, "PYTHONPATH": paths(), "CUDA_VISIBLE_DEVICES": ",".join(gpus)}
        with self.submission.log_file(step.name).open("ab") as output:
            process = subprocess.Popen(
                command(self.submission, step.name),
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509  # the child only calls prctl
            )
        self.running[step.name] = (process, gpus, cores)
        return True

    def ended(self, seconds: float) -> list[str]:
        deadline = time.monotonic() + seconds
        while not (found := [name for name, held in self.running.items() if held[0].poll() is not None]):
            if time.monotonic() > deadline:
                return []
            time.sleep(min(0.1, seconds))
        for name in found:
            _, gpus, cores = self.running.pop(name)
            self.gpus += gpus
            self.free += cores
        return found

    def close(self) -> None:
        """End what is running. Its workers end with it (`die_with_parent`)."""
        for process, _, _ in self.running.values():
            process.kill()
            process.wait()
