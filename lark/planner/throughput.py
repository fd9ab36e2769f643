"""The hardware as the planner sees it: its peak throughput, and the fraction of the peak that is reached."""

import time
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from lark import processors
from lark.config import Config, EngineSettings
from lark.models.shapes import Shape
from lark.planner.measured import Measured, measured
from lark.work.machine import Machine, job_nodes, memory_gib, query_gpus, resolve

PEAK_SHARE = {
    ("cuda", "forward"): 0.45, ("cuda", "training"): 0.45, ("cuda", "decoding"): 0.7,
    ("cpu", "forward"): 0.79, ("cpu", "training"): 0.92, ("cpu", "decoding"): 0.5,
}  # fmt: skip
"""Fraction of the peak that is reached. GPU: of bf16 peak, typical for 1.5-8 B students at these lengths;
of memory bandwidth when generating. CPU: of the rate of a large matrix product, measured on this machine,
for a wide student.
"""
NARROW = 1.5
"""On CPU a student of hidden size d reaches d / (d + 1.5 r) of that on a core of r GFLOP/s: the faster the
matrix products, the larger the share of the work between them, and a narrow student has more of it. Fitted
with experiments/bench/planner.py to the demo's student (d = 128) and SmolLM2 (d = 576) on cores of 85 and
165 GFLOP/s (AVX2, AVX-512): predicted times are 0.9 to 1.3 times the measured ones.
"""
HALF = {"forward": 1.6, "training": 1.7, "decoding": 1.3}
"""Speed in bfloat16 on a CPU with instructions for it, relative to float32. SmolLM2 on two cores with AVX-512
BF16: 1,000 and 1,600 tokens/s in scoring, 190 and 300 to 350 in training.
"""
SLOW_HALF = 0.3
"""The same without such instructions: products take three to four times as long."""
EAGER_STEP, GRAPH_STEP = 0.02, 0.005
"""Overhead in seconds of a decoding step on a GPU, without and with CUDA graphs (`engine.eager`)."""
CPU_STEP = 0.002
"""Overhead in seconds of each layer in a decoding step on CPU."""
CPU_BANDWIDTH = 12.0
"""GB/s of the memory of a process on CPU, unless hardware.bandwidth is set."""
LOAD_BYTES = 1.0e9
"""Bytes per second, from disk to device."""
START_SECONDS = {"cuda": 30.0, "cpu": 12.0}
"""Time to import torch and transformers and to start processes."""
ASSUMED_GPU = "assumed: an A100 (set hardware.tflops and hardware.bandwidth for another GPU)"


@dataclass(frozen=True)
class Throughput:
    """The hardware as the planner sees it."""

    machine: Machine
    tflops: float
    memory_gib: float
    bandwidth: float
    """GB/s of one device's memory."""
    notes: tuple[str, ...] = field(default=())
    measured: Measured | None = None
    """This machine's rates, if `make gpu-check` has measured them."""

    def rate(self, kind: str, shape: Shape, devices: int | None = None, half: bool = False) -> float:
        """Expected operations per second. `half`: in bfloat16, which GPUs are assumed to use anyway."""
        peak = (devices or self.machine.world) * self.tflops * 1e12
        if half and self.machine.device == "cpu":
            peak *= half_speed(kind)
        return peak * self._share(kind) * _breadth(self.machine.device, shape.hidden, self._core)

    @property
    def _core(self) -> float:
        return self.tflops / self.machine.threads

    def _share(self, kind: str) -> float:
        """Fraction of the peak that a wide student reaches: as measured, or else assumed."""
        device = self.machine.device
        rate = None if self.measured is None else self.measured.rates.get(kind)
        if rate is None:
            return PEAK_SHARE[device, kind]
        peak = self.tflops if device == "cuda" else self._core * rate.threads
        return rate.flops / (peak * 1e12 * _breadth(device, rate.hidden, self._core))

    @property
    def decoding_bandwidth(self) -> float:
        """Bytes per second that decoding reads from a device's memory."""
        return self.bandwidth * 1e9 * PEAK_SHARE["cuda", "decoding"]

    def decoding_step(self, engine: EngineSettings, layers: int, step_bytes: float) -> float:
        """Time of a decoding step that reads so many bytes, on one device: assumed, or in proportion to the
        step that was measured with this engine.
        """
        assumed = self._step_seconds(step_bytes, layers, engine.is_eager(self.machine.device))
        rate = None if self.measured is None else self.measured.decoding
        if rate is None or rate.engine != engine.name:
            return assumed
        return assumed * rate.step_seconds / self._step_seconds(rate.step_bytes, rate.layers, rate.eager)

    def _step_seconds(self, step_bytes: float, layers: int, eager: bool) -> float:
        overhead = CPU_STEP * layers
        if self.machine.device == "cuda":
            overhead = EAGER_STEP if eager else GRAPH_STEP
        return step_bytes / self.decoding_bandwidth + overhead


def half_speed(kind: str) -> float:
    """Speed of this machine's CPU in bfloat16, relative to float32."""
    return HALF[kind] if processors.cpu_multiplies_bfloat16() else SLOW_HALF


def efficiency(device: str, kind: str, shape: Shape, core_tflops: float) -> float:
    """Fraction of the peak that a student of this shape reaches, as assumed."""
    return PEAK_SHARE[device, kind] * _breadth(device, shape.hidden, core_tflops)


def _breadth(device: str, hidden: int, core_tflops: float) -> float:
    """Speed of a student of this width, relative to a wide one."""
    between = NARROW * 1000 * core_tflops if device == "cpu" else 0.0
    return hidden / (hidden + between)


def throughput(config: Config, machine: Machine | None = None) -> Throughput:
    """The configured throughput. Values that are not configured are measured (CPU), assumed or queried from
    the driver.
    """
    hardware = config.hardware
    machine = machine or resolve(hardware, here=False)
    rates = measured(config)
    notes = [] if rates is None else [rates.note]
    if hardware.cluster != "none" and _nodes_unknown(config, machine):
        notes.append(
            "planned for 1 node: set hardware.workers=<processes on all nodes> to plan"
            f" hardware={hardware.name} for more"
        )
    tflops = hardware.tflops
    bandwidth = hardware.bandwidth or CPU_BANDWIDTH
    if machine.device == "cpu" and rates is not None:
        tflops = rates.core_tflops * machine.threads
    elif machine.device == "cpu" and not tflops:
        tflops = core_tflops() * machine.threads
        notes.append(
            f"measured on this machine just now: {core_tflops() * 1000:,.0f} GFLOP/s per core in a matrix"
            " product"
        )
    if machine.device == "cpu" and config.student.dtype != "float32":
        speeds = ", ".join(f"{half_speed(kind):g} in {kind}" for kind in HALF)
        notes.append(f"assumed for {config.student.dtype} on this CPU, relative to float32: {speeds}")
    if machine.device == "cuda" and not (tflops and hardware.bandwidth):
        name, gpu = this_gpu()
        tflops = tflops or gpu.tflops
        bandwidth = hardware.bandwidth or gpu.bandwidth
        origin = f"this machine's {name}" if name else ASSUMED_GPU
        notes.append(f"{origin}: {tflops:,.0f} TFLOP/s in bf16, {bandwidth:,.0f} GB/s")
    return Throughput(machine, tflops, device_memory(config, machine), bandwidth, tuple(notes), rates)


def _nodes_unknown(config: Config, machine: Machine) -> bool:
    """True for a plan of a cluster whose size neither the settings nor a SLURM job give."""
    is_sized = machine.cluster or config.hardware.workers
    return not is_sized and job_nodes(planned=True) is None


@dataclass(frozen=True)
class GPU:
    """Peak rates of a GPU: dense bf16 with fp32 accumulation, and memory bandwidth."""

    tflops: float
    bandwidth: float
    """GB/s."""


A100 = GPU(312, 2039)
GPUS = {
    "B200": GPU(2250, 8000),
    "H200": GPU(989, 4800),
    "H100 PCIe": GPU(756, 2000),
    "H100 NVL": GPU(835, 3938),
    "H100": GPU(989, 3350),
    "A100-SXM4-40GB": GPU(312, 1555),
    "A100-PCIE-40GB": GPU(312, 1555),
    "A100 80GB PCIe": GPU(312, 1935),
    "A100": A100,
    "L40S": GPU(362, 864),
    "RTX 6000 Ada": GPU(364, 960),
    "RTX 5090": GPU(210, 1792),
    "RTX 4090": GPU(165, 1008),
    "A40": GPU(150, 696),
}
"""By a part of the name that nvidia-smi reports, the most specific first. Figures of the vendor's data
sheets.
"""


@cache
def this_gpu() -> tuple[str, GPU]:
    """Name and rates of this machine's GPU; the slowest if they differ. Without a known one: no name, and
    an A100's rates.
    """
    recognised = [_listed(name) for name in query_gpus("name")]
    listed = [pair for pair in recognised if pair is not None]
    return min(listed, key=lambda pair: pair[1].tflops, default=("", A100))


def _listed(name: str) -> tuple[str, GPU] | None:
    """The entry of `GPUS` for a GPU as nvidia-smi names it."""
    return next((pair for pair in GPUS.items() if pair[0] in name), None)


def device_memory(config: Config, machine: Machine) -> float:
    """Memory of one device in GiB; processes on CPU share the machine's."""
    shared = machine.processes if machine.device == "cpu" else 1
    return config.hardware.memory_gib or memory_gib(machine.device) / shared


@cache
def core_tflops(seconds: float = 0.2) -> float:
    """Float32 rate per core of this machine with all cores busy, from a matrix product of the size of a
    student's. By processor time, which is that of an idle machine also where other programs run.
    """
    a = np.random.default_rng(0).random((1024, 1024), dtype=np.float32)
    a @ a  # the first product also starts the threads
    best = np.inf
    deadline = time.process_time() + seconds
    while time.process_time() < deadline:
        started = time.process_time()
        a @ a
        best = min(best, time.process_time() - started)
    return 2 * 1024**3 / best / 1e12
