"""The hardware as the planner sees it: what it could do at its peak, and what share of that is reached."""

import time
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from lark.config import Config
from lark.hardware import Machine, job_nodes, memory_gib, resolve
from lark.shapes import Shape

EFFICIENCY = {
    ("cuda", "score"): 0.45, ("cuda", "train"): 0.45, ("cuda", "generate"): 0.7,
    ("cpu", "score"): 0.79, ("cpu", "train"): 0.92, ("cpu", "generate"): 0.5,
}  # fmt: skip
"""Share of the peak that is reached. GPU: of bf16 peak, common for 1.5-8 B students at these lengths; of memory bandwidth
when generating. CPU: of the rate of a large matrix product, measured on this machine, for a wide student."""
NARROW = 125
"""On CPU a student of hidden size d reaches d / (d + 125) of that: fitted with experiments/bench/planner.py to the demo's student
(d = 128) and SmolLM2 (d = 576), where predicted times are then 1.0 to 1.4 of those measured."""


@dataclass(frozen=True)
class Figures:
    """The hardware as the planner sees it."""

    machine: Machine
    tflops: float
    memory_gib: float
    bandwidth: float
    """GB/s of one device's memory."""
    notes: tuple[str, ...] = field(default=())

    def rate(self, kind: str, shape: Shape, devices: int | None = None) -> float:
        """Operations a second that can be hoped for."""
        reached = efficiency(self.machine.device, kind, shape)
        return (devices or self.machine.world) * self.tflops * 1e12 * reached


def efficiency(device: str, kind: str, shape: Shape) -> float:
    """Share of the peak that a student of this shape reaches."""
    return EFFICIENCY[device, kind] * (shape.hidden / (shape.hidden + NARROW) if device == "cpu" else 1.0)


def figures(config: Config, machine: Machine | None = None) -> Figures:
    """What the configuration says of the hardware; what it leaves open is measured (CPU) or asked of the driver."""
    hardware = config.hardware
    machine = machine or resolve(hardware, here=False)
    notes = []
    if not hardware.nodes and job_nodes(planned=True) is None:
        notes.append(
            "planned for 1 node: hardware.nodes=0 means those of a SLURM job, and this is none (say hardware.nodes=<n>)"
        )
    tflops = hardware.tflops
    if not tflops and machine.device == "cpu":
        tflops = matrix_tflops()
        notes.append(f"measured on this machine just now: {tflops * 1000:,.0f} GFLOP/s in a matrix product")
    elif not tflops:
        tflops = 312.0
        notes.append("assumed: an A100's 312 TFLOP/s (say hardware.tflops=<bf16 peak> for another GPU)")
    bandwidth = hardware.bandwidth or (2039.0 if machine.device == "cuda" else 12.0)
    return Figures(machine, tflops, hardware.memory_gib or memory_gib(machine.device), bandwidth, tuple(notes))


@cache
def matrix_tflops(seconds: float = 0.4) -> float:
    """Float32 rate of this machine, from a product of the size that students have."""
    a = np.random.default_rng(0).random((1024, 1024), dtype=np.float32)
    a @ a
    best, deadline = np.inf, time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        started = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - started)
    return 2 * 1024**3 / best / 1e12
