"""The process that does a stage's heavy work. Started by lark/runtime/launch.py, once a stage, with a job file.

Run as: python -m lark.runtime.worker <folder>/job.json   (or the same under torchrun)
"""

import importlib
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lark.config import Config, from_dict
from lark.errors import LarkError
from lark.runtime.devices import narrow
from lark.runtime.launch import DISK_FULL, ERROR, RESULT, die_with_parent
from lark.runtime.machine import Machine
from lark.runtime.store import is_disk_full, no_space, write_text

TASKS = {
    "student": "lark.models.gguf:convert",
    "lengths": "lark.scoring.worker:lengths",
    "score": "lark.scoring.worker:score",
    "local": "lark.scoring.worker:local",
    "judge": "lark.scoring.judge_worker:judge_pool",
    "train": "lark.training.worker:train",
    "generate": "lark.evaluation.generate:generate",
    "grade": "lark.evaluation.grade:grade_all",
    "gradients": "lark.analysis.worker:gradients",
    "jacobians": "lark.analysis.worker:jacobians",
    "kappa": "lark.analysis.worker:kappa",
    "cost": "lark.analysis.timing:measure",
}
"""Task -> module:function(job) -> counts."""


@dataclass(frozen=True)
class Job:
    """What a worker is asked to do."""

    task: str
    folder: Path
    """Of the artifact to make; a resumed job finds there what an earlier one finished."""
    inputs: Mapping[str, Path]
    config: Config
    machine: Machine
    extra: Mapping[str, Any]
    rank: int
    world: int
    gpus: int = 1
    """GPUs of this process alone. 0: all processes see each other's, and each uses the one of its local rank."""

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def device(self) -> str:
        """Where this process's model goes."""
        if self.machine.device == "cpu":
            return "cpu"
        return "cuda:0" if self.gpus else f"cuda:{os.environ.get('LOCAL_RANK', '0')}"


def read_job(path: Path) -> Job:
    job = json.loads(path.read_text(encoding="utf-8"))
    return Job(
        task=job["task"],
        folder=Path(job["folder"]),
        inputs={name: Path(folder) for name, folder in job["inputs"].items()},
        config=from_dict(job["config"]),
        machine=Machine(**job["machine"]),
        extra=job["extra"],
        rank=int(os.environ.get("RANK", "0")),
        world=int(os.environ.get("WORLD_SIZE", "1")),
        gpus=job["gpus"],
    )


def main(path: Path) -> int:
    die_with_parent()
    job = read_job(path)
    logging.basicConfig(level=logging.INFO if job.is_main else logging.WARNING, format="%(message)s", force=True)
    if job.machine.device == "cuda" and job.gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = narrow(os.environ, job.gpus)  # before the import below, which may ask CUDA
    try:
        module, function = TASKS[job.task].split(":")
        task: Callable[[Job], Mapping[str, Any]] = getattr(importlib.import_module(module), function)
        counts = task(job)
    except Exception as error:
        full = is_disk_full(error)
        expected = full or isinstance(error, LarkError)
        message = no_space(job.folder) if full else str(error) if expected else f"{type(error).__name__}: {error}"
        try:
            write_text(job.folder / ERROR, json.dumps({"message": message, "expected": expected, "rank": job.rank}))
        except OSError:  # the disk is full: not even this fits, and launch.py will find the same
            return DISK_FULL
        traceback.print_exc()  # for the log only: launch.py shows no more once the error is written
        return 1
    if job.is_main:
        write_text(job.folder / RESULT, json.dumps(dict(counts), default=str))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
