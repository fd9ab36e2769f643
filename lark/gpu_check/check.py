"""A check: the claim that it tests, where it runs, and the function that tests it."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lark.errors import LarkError
from lark.work.launch import environment
from lark.work.machine import Machine, usable_cores

ON_CPU = {"TRITON_INTERPRET": "1"}
"""Makes Triton run kernels on the CPU, in its interpreter."""
STUDENTS = "students"
"""Folder of the students that checks have written (student.py), next to the checks' own folders."""


@dataclass(frozen=True)
class CheckPlace:
    """Where a check runs."""

    device: str
    """cuda or cpu."""
    processes: int
    """Processes, and on GPUs the number of them."""
    folder: Path
    """Folder for the files of the check."""

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    @property
    def machine(self) -> Machine:
        return Machine(self.device, self.processes, 1, max(1, usable_cores() // self.processes))


@dataclass(frozen=True)
class Measurements:
    """The result of a check that passed."""

    text: str
    """For the table."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """For the line of JSON."""
    rates: Sequence[Mapping[str, Any]] = ()
    """For the planner (lark/planner/measured.py)."""


@dataclass(frozen=True)
class Check:
    """One line of the table. It runs in a process of its own, so that a crash does not end the list."""

    name: str
    """Name for `--only`."""
    claim: str
    """What is expected of it."""
    run: str
    """"package.module:function", which takes a `CheckPlace` and returns its measurements (text, or
    `Measurements`), or raises."""
    gpus: int = 1
    """GPUs that it needs."""
    most: int = 1
    """GPUs that it uses if the machine has them."""
    cpu: int = 0
    """Processes on a machine without GPUs. 0: it needs GPUs."""
    limit: int = 300
    """Seconds. Includes the compilation of kernels."""
    cpu_environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables on the CPU."""

    def place(self, gpus: int, folder: Path) -> CheckPlace | None:
        """Where it runs on a machine with this many GPUs; None if it cannot run there."""
        if gpus >= self.gpus:
            return CheckPlace("cuda", min(gpus, self.most), folder)
        if self.cpu and not gpus:
            return CheckPlace("cpu", self.cpu, folder)
        return None

    @property
    def requirement(self) -> str:
        """The reason why a machine without it skips the check."""
        return "needs a GPU" if self.gpus == 1 else f"needs {self.gpus} GPUs"

    def environment(self, place: CheckPlace) -> dict[str, str]:
        """Environment variables of its process: those of a run's workers."""
        settings = {} if place.cuda else dict(self.cpu_environment)
        return {
            **environment(place.machine, gpus=0),
            **settings,
            "TQDM_DISABLE": "1",
            "COLUMNS": os.environ.get("COLUMNS", "200"),
        }


ARITHMETIC = "lark.gpu_check.arithmetic"
STAGE_CHECKS = "lark.gpu_check.stages"
TRAINING = "lark.gpu_check.short_training"
SPEED = "lark.gpu_check.speed"
ZERO2 = "lark.gpu_check.gradients:zero2"
CHECKS = (
    Check("gpus", "PyTorch computes on every GPU", f"{ARITHMETIC}:gpus", most=64, limit=120),
    Check("kernel", "scoring kernel = float64", f"{ARITHMETIC}:kernel", cpu=1, cpu_environment=ON_CPU),
    Check("loss", "weighted loss in bf16 = float64", f"{ARITHMETIC}:loss", cpu=1),
    Check("attention", "packed attention = float64, with gradients", f"{ARITHMETIC}:attention", cpu=1),
    Check("packs", "bf16 packs score like float32 batches", f"{STAGE_CHECKS}:packs", cpu=1, limit=600),
    Check("scoring", "2 processes score like 1", f"{STAGE_CHECKS}:scoring", gpus=2, most=2, cpu=2, limit=600),
    Check(
        "scoring-speed", "packs, with Liger on a GPU; memory ≤ 1.1 x planner's", f"{SPEED}:scoring",
        cpu=1, limit=600,
    ),
    Check("zero2", "ZeRO-2 with Liger gives the direct gradient", ZERO2, gpus=2, most=2, cpu=2, limit=600),
    Check(
        "memory", "full packs train; memory ≤ 1.1 x planner's", f"{TRAINING}:memory", cpu=1, limit=900,
    ),
    Check(
        "offload", "only the poisoned step is skipped", f"{TRAINING}:offload", cpu=1, limit=600,
    ),
    Check("qlora", "loss in 4 bits = loss in bf16", f"{TRAINING}:qlora", cpu=1, limit=600),
    Check(
        "sequence-parallel", "2 processes share a pack with the same loss", f"{TRAINING}:sequence_parallel",
        gpus=2, most=2, cpu=2, limit=900,
    ),
    Check(
        "waiting", "processes of training wait for at most 40% of the time", f"{TRAINING}:waiting",
        gpus=2, most=8, cpu=2, limit=900,
    ),
    Check(
        "resume", "a killed training resumes to the same weights", f"{STAGE_CHECKS}:resume",
        most=2, cpu=1, limit=900,
    ),
    Check(
        "vllm", "vLLM, one engine per GPU, answers like PyTorch", f"{STAGE_CHECKS}:vllm",
        most=2, cpu=1, limit=900,
    ),
    Check(
        "tensor-parallel", "vLLM on 2 GPUs together answers like PyTorch", f"{STAGE_CHECKS}:tensor_parallel",
        gpus=2, most=2, limit=900,
    ),
    Check(
        "generation", "vLLM, on a GPU with FlashAttention and a small cache", f"{SPEED}:generation",
        cpu=1, limit=900,
    ),
)  # fmt: skip
"""Cheapest first."""


def within(quantity: str, error: float, limit: float) -> str:
    """`error` as text. Raises LarkError if it exceeds the limit or is not a number."""
    if math.isnan(error) or error > limit:
        raise LarkError(f"{quantity}: error {error:.1e}, more than the limit {limit:.0e}.")
    return f"{quantity} {error:.1e} (limit {limit:.0e})"
