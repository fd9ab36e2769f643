"""How long a run will take and whether it fits, before anything runs: from the model's shape, the pool's lengths and the
hardware's figures. `dry_run=true` prints it, and refuses what cannot fit, naming the setting that would make it fit.

Operations are counted exactly (lark/costs.py); how fast a machine does them is assumed (EFFICIENCY) or, on CPU, measured.
Imports no model code.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np

from lark import costs
from lark.config import Config, Task
from lark.costs import GIB, Flops, TrainingSetup
from lark.errors import LarkError
from lark.hardware import Machine, memory_gib, resolve
from lark.planner_pool import PoolLengths, assumed, pool_lengths
from lark.report.tables import text_table
from lark.scoring.methods import METHODS
from lark.shapes import Shape, shape_of
from lark.training.zero import half_weights, zero_stage

EFFICIENCY = {
    ("cuda", "score"): 0.45, ("cuda", "train"): 0.45, ("cuda", "generate"): 0.7,
    ("cpu", "score"): 0.79, ("cpu", "train"): 0.92, ("cpu", "generate"): 0.5,
}  # fmt: skip
"""Share of the peak that is reached. GPU: of bf16 peak, common for 1.5-8 B students at these lengths; of memory bandwidth
when generating. CPU: of the rate of a large matrix product, measured on this machine, for a wide student."""
NARROW = 125
"""On CPU a student of hidden size d reaches d / (d + 125) of that: fitted with experiments/bench/planner.py to the demo's student
(d = 128) and SmolLM2 (d = 576), where predicted times are then 1.0 to 1.4 of those measured."""
START_SECONDS = {"cuda": 30.0, "cpu": 12.0}
"""Importing torch and transformers, and starting processes."""
ENGINE_SECONDS = {"vllm": 60.0, "sglang": 60.0, "hf": 5.0}
LOAD_BYTES = 1.0e9
"""A second, from disk to device."""
TOKENISE = 400_000
"""Tokens a second of one process."""
CONCURRENT = 256
"""Sequences that vLLM decodes at once, if its cache has room."""
STEP_SECONDS = {True: 0.02, False: 0.005}
"""Overhead of a decoding step on a GPU, without and with CUDA graphs (`engine.eager`)."""
JUDGE_TOKENS, JUDGE_ANSWER = 450, 120
"""Assumed of a judge: its prompt without the question and the response, and its JSON."""
ANSWER_TOKENS = 8000
"""Assumed length of an answer where it may be longer: reasoning of the paper's kind."""


@dataclass(frozen=True)
class Estimate:
    """One step of the plan."""

    stage: str
    task: str
    work: str
    """What there is to do, in words."""
    flops: float
    seconds: float
    device_hours: float
    """Of all devices together: seconds x devices / 3,600."""
    memory_gib: float
    """Peak on one device."""
    certain_gib: float
    """The part of it that no assumption enters: weights, gradients, optimizer."""
    limit_gib: float
    """What one device has."""
    remedy: str | None = None
    """If it does not fit: the setting that would make it fit."""
    paper: str = ""
    """The paper's own figure, where it gives one."""

    @property
    def fits(self) -> bool:
        return self.memory_gib <= self.limit_gib


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


def estimate(
    config: Config, machine: Machine | None = None, lengths: PoolLengths | None = None, hardware: Figures | None = None
) -> list[Estimate]:
    """The steps of a run with their cost. `lengths` comes from `planner_pool.pool_lengths`; left out, it is read or assumed."""
    shape = shape_of(config.student)
    if shape is None:
        raise LarkError(
            f"student.path={config.student.path}: its config.json is not here, so its cost cannot be planned. "
            "Download the model first, or give its folder."
        )
    hardware = hardware or figures(config, machine)
    lengths = lengths or pool_lengths(config)
    planner = _Planner(config, shape, hardware, lengths)
    steps = planner.evaluation("base") if config.weighting_name is None else planner.everything()
    return [step for step in steps if step.stage in config.stages]


@dataclass(frozen=True)
class _Planner:
    config: Config
    shape: Shape
    hardware: Figures
    lengths: PoolLengths

    def everything(self) -> list[Estimate]:
        needs = METHODS[self.config.method.name].needs
        steps = []
        if needs & {"lengths", "statistics", "local"}:
            steps.append(self._lengths())
        if "statistics" in needs:
            steps.append(self._score("score", costs.forward_flops(self.shape, self.lengths.total, self.lengths.response)))
        if "local" in needs:
            context = self.config.scoring.local_context
            steps.append(
                self._score("local", costs.local_flops(self.shape, self.lengths.total, self.lengths.response, context))
            )
        if "judge" in needs:
            steps += self._judge()
        return [*steps, self._train(), *self.evaluation("base"), *self.evaluation("trained")]

    def _lengths(self) -> Estimate:
        seconds = START_SECONDS["cpu"] + self.lengths.tokens / TOKENISE
        return self._step("score", "lengths", f"{self.lengths.tokens:,.0f} tokens", 0.0, seconds, 1.0, 1.0, devices=1)

    def _score(self, task: str, operations: Flops) -> Estimate:
        student, n = self.config.student, self.lengths.total
        flops = operations.forward * self.lengths.repeat
        element = _bytes(student.dtype)
        weights = self.shape.parameters * element
        batch = max(self.config.hardware.score_tokens, int(n.max()))
        memory = (weights + costs.forward_bytes(self.shape, batch, element)) / GIB
        work = f"{self.lengths.trajectories:,} trajectories, {self.lengths.tokens:,.0f} tokens"
        remedy = None
        if memory > self.hardware.memory_gib:
            smaller = (weights + costs.forward_bytes(self.shape, int(n.max()), element)) / GIB
            remedy = (
                f"hardware.score_tokens={int(n.max())}" if smaller <= self.hardware.memory_gib
                else "student.dtype=bfloat16" if element > 2 and weights / 2 / GIB < self.hardware.memory_gib
                else "a device with more memory"
            )  # fmt: skip
        paper = self._paper("score", flops) if task == "score" else ""
        return self._step(
            "score", task, work, flops, self._seconds("score", flops, weights), memory, weights / GIB, remedy, paper
        )

    def _judge(self) -> list[Estimate]:
        """The judge reads every trajectory behind its prompt, and answers in a few lines. Nothing, if its shape is not known."""
        judge, lengths = self.config.method.judge, self.lengths
        if self.config.engine.name == "hf":
            judge = replace(judge, tensor_parallel=1)
        shape = shape_of(judge.model)
        if shape is None:
            return []
        read = np.minimum(lengths.total + JUDGE_TOKENS, judge.max_length)
        flops = costs.forward_flops(shape, read, np.ones_like(read)).forward * lengths.repeat
        element = _bytes(judge.dtype)
        weights = shape.parameters * element / judge.tensor_parallel
        kv = costs.kv_bytes_per_token(shape, element) / judge.tensor_parallel
        engine = replace(self.config.engine, tensor_parallel=judge.tensor_parallel)
        own = replace(self, config=replace(self.config, engine=engine), shape=shape)
        written = min(JUDGE_ANSWER, judge.max_new_tokens)
        answering = own._generation_seconds(lengths.trajectories * written, weights, kv, int(read.mean()), 0.0)
        memory = (weights + kv * judge.max_length) / GIB
        remedy = None
        if memory > self.hardware.memory_gib:
            more = f"method.judge.tensor_parallel={2 * judge.tensor_parallel}"
            remedy = more if self.config.engine.name != "hf" else f"engine=vllm {more}"
        work = f"{lengths.trajectories:,} verdicts of {Path(judge.path).name}"
        seconds = flops / self.hardware.rate("score", shape) + answering
        return [self._step("score", "judge", work, flops, seconds, memory, weights / GIB, remedy)]

    def _train(self) -> Estimate:
        training = self.config.training
        chosen = min(self.config.budget.size, self.lengths.candidates) * self.lengths.questions
        share = chosen / len(self.lengths.total)
        setup = training_setup(self.config, self.hardware.machine, int(self.lengths.total.max()))
        forward = costs.forward_flops(self.shape, self.lengths.total, self.lengths.response)
        flops = forward.training(training.gradient_checkpointing, bool(setup.lora)) * share * training.epochs
        state = costs.state_bytes(self.shape, setup) / GIB
        memory = state + costs.activation_bytes(self.shape, setup) / GIB
        seconds = self._seconds("train", flops, 4.0 * self.shape.parameters)
        work = f"{chosen:,} trajectories x {training.epochs} epochs"
        remedy = None if memory <= self.hardware.memory_gib else self._training_remedy(setup)
        return self._step("train", "train", work, flops, seconds, memory, state, remedy, self._paper("train", flops, chosen))

    def _training_remedy(self, setup: TrainingSetup) -> str:
        """The first change that would make training fit, the least intrusive first."""
        shorter = [(f"student.max_length={n}", replace(setup, tokens=n)) for n in (16384, 8192, 4096) if n < setup.tokens]
        options = [
            ("training.gradient_checkpointing=true", replace(setup, checkpointing=True)),
            ("hardware.zero=2", replace(setup, zero=max(2, setup.zero))),
            ("hardware.zero=3", replace(setup, zero=3)),
            *shorter,
            ("hardware.zero=3 with 8 GPUs (hardware=a100x8)", replace(setup, zero=3, world=max(8, setup.world))),
            ("LoRA (training.lora.rank=16) with hardware.zero=3", replace(setup, zero=3, lora=16)),
            ("LoRA (training.lora.rank=16) and student.max_length=4096", replace(setup, zero=3, lora=16, tokens=4096)),
        ]
        for label, option in options:
            needed = (costs.state_bytes(self.shape, option) + costs.activation_bytes(self.shape, option)) / GIB
            if option != setup and needed <= self.hardware.memory_gib:
                return label
        return "more GPUs (hardware.processes, hardware.nodes) with hardware.zero=3"

    def evaluation(self, which: str) -> list[Estimate]:
        """Generation for every benchmark. Grading is seconds."""
        config, decoding = self.config, self.config.benchmark.decoding
        problems = sum(problem_count(task) for task in config.benchmark.tasks.values())
        answers = problems * decoding.samples * len(decoding.seeds)
        longest = min(decoding.max_new_tokens, config.student.max_length)
        tokens = answers * min(longest, ANSWER_TOKENS)
        element = _bytes(config.student.dtype)
        weights = self.shape.parameters * element / config.engine.tensor_parallel
        kv = costs.kv_bytes_per_token(self.shape, element) / config.engine.tensor_parallel
        needed = (weights + kv * config.student.max_length) / GIB
        flops = costs.forward_flops(self.shape, np.array([1.0]), np.array([1.0])).forward * tokens
        seconds = self._generation_seconds(tokens, weights, kv, min(longest, ANSWER_TOKENS), flops)
        remedy = None
        if needed > self.hardware.memory_gib:
            shared = "engine.tensor_parallel=2" if config.engine.name != "hf" else "engine=vllm engine.tensor_parallel=2"
            remedy = shared if self.hardware.machine.device == "cuda" else "a smaller student"
        paper = f"~{15 * len(config.benchmark.tasks)} min" if self._is_paper and which == "trained" else ""
        work = f"{which}: {answers:,} answers, up to {tokens:,} tokens"
        return [self._step("evaluate", "generate", work, flops, seconds, needed, weights / GIB, remedy, paper)]

    def _generation_seconds(self, tokens: float, weights: float, kv: float, length: int, flops: float) -> float:
        """Decoding reads all weights and every sequence's cache at each step, and is slower than its operations."""
        config, machine = self.config, self.hardware.machine
        engines = max(1, machine.world // config.engine.tensor_parallel)
        room = self.hardware.memory_gib * GIB * config.engine.memory - weights
        room = config.engine.kv_cache_gib * GIB if machine.device == "cpu" and config.engine.name == "vllm" else room
        most = config.engine.batch if config.engine.name == "hf" else CONCURRENT
        together = max(1.0, min(most, tokens / length / engines, room / (kv * length / 2)))
        bandwidth = self.hardware.bandwidth * 1e9 * EFFICIENCY["cuda", "generate"]
        overhead = STEP_SECONDS[config.engine.is_eager("cuda")] if machine.device == "cuda" else 0.002 * self.shape.layers
        step = (weights + together * kv * length / 2) / bandwidth + overhead
        compute = flops / self.hardware.rate("generate", self.shape)
        start = START_SECONDS[machine.device] + ENGINE_SECONDS[config.engine.name] + weights / LOAD_BYTES
        return start + max(compute, 0.0) + tokens / engines / together * step

    def _seconds(self, kind: str, flops: float, load: float) -> float:
        return START_SECONDS[self.hardware.machine.device] + load / LOAD_BYTES + flops / self.hardware.rate(kind, self.shape)

    def _step(
        self, stage: str, task: str, work: str, flops: float, seconds: float, memory: float, certain: float,
        remedy: str | None = None, paper: str = "", devices: int | None = None,
    ) -> Estimate:  # fmt: skip
        devices = devices or self.hardware.machine.world
        hours = seconds * devices / 3600
        return Estimate(stage, task, work, flops, seconds, hours, memory, certain, self.hardware.memory_gib, remedy, paper)

    @property
    def _is_paper(self) -> bool:
        """The paper's students on the paper's GPUs."""
        return self.config.student.name in PAPER_STUDENTS and self.config.hardware.name.startswith("a100")

    def _paper(self, kind: str, flops: float, trajectories: int = 0) -> str:
        if not self._is_paper:
            return ""
        if kind == "score":
            ours = flops / self.lengths.trajectories / self.hardware.rate("score", self.shape, 1)
            return f"1.32 s a sample (ours {ours:.2f})"
        low, high = 3 * trajectories / 5000, 5 * trajectories / 5000
        return f"{low:g}-{high:g} h (3-5 h for 5,000)"


PAPER_STUDENTS = ("qwen7b", "qwen1.5b", "llama3b")
PAPER = {
    "score": "1.32 s a sample (App. D.1)",
    "train": "3-5 h for 5,000 trajectories on 8 A100 (App. C.3)",
    "generate": "about 15 min for a student and a benchmark on 8 A100 (App. C.3)",
    "total": "about 1,600 A100-hours of training in all (App. C.3)",
}
"""What the paper says of its own cost."""


def training_setup(config: Config, machine: Machine, longest: int) -> TrainingSetup:
    training, hardware = config.training, config.hardware
    capacity = max(hardware.train_tokens, config.student.max_length)
    tokens = min(capacity, -(-training.global_batch // machine.world) * longest)  # a pack holds no more than the step's share
    zero = zero_stage(config, machine.world)
    return TrainingSetup(
        machine.world,
        zero,
        tokens,
        training.gradient_checkpointing,
        training.bf16,
        training.lora.rank,
        half_weights(config, zero),
    )


def problem_count(task: Task) -> int:
    """Problems of a benchmark, without reading it where its size is known."""
    if task.count is None and task.path and Path(task.path).expanduser().is_file():
        with Path(task.path).expanduser().open("rb") as handle:
            known = sum(1 for line in handle if line.strip())
    else:
        known = task.count or 100
    return known if task.limit is None else min(known, task.limit)


def table(estimates: Sequence[Estimate]) -> str:
    """For the terminal."""
    paper = any(e.paper for e in estimates)
    header = ["stage", "task", "work", "FLOPs", "time", "device-hours", "GiB a device", *(["paper"] if paper else [])]
    rows = [
        [e.stage, e.task, e.work, f"{e.flops:.1e}", duration(e.seconds), f"{e.device_hours:.2f}",
         f"{e.memory_gib:.1f}{'' if e.fits else ' !'}", *([e.paper] if paper else [])]
        for e in estimates
    ]  # fmt: skip
    total = ["all", "", "", f"{sum(e.flops for e in estimates):.1e}", duration(sum(e.seconds for e in estimates)),
             f"{sum(e.device_hours for e in estimates):.2f}", "", *([""] if paper else [])]  # fmt: skip
    return text_table(header, [*rows, total], right=3)


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def describe(config: Config, lengths: PoolLengths | None = None) -> str:
    """What `dry_run=true` says of the cost: the table, and what it rests on."""
    lengths = lengths or pool_lengths(config)
    hardware = figures(config)
    machine, paper = hardware.machine, config.student.name in PAPER_STUDENTS
    unit = "GPU" if machine.device == "cuda" else "process" if machine.world == 1 else "processes"
    devices = f"{machine.world} {unit}{'s' * (machine.device == 'cuda' and machine.world > 1)} ({machine.device})"
    said = [
        f"lengths   {lengths.source}",
        f"hardware  {devices}, {hardware.tflops:,.2f} TFLOP/s and {hardware.memory_gib:.0f} GiB each",
        *(f"          {note}" for note in hardware.notes),
        *(f"paper     {task}: {figure}" for task, figure in PAPER.items() if paper),
    ]
    return "\n".join([table(estimate(config, lengths=lengths, hardware=hardware)), "", *said])


def check_memory(config: Config, machine: Machine) -> None:
    """Stop a run whose weights and optimizer alone are more than a device holds. No pool is read, and nothing is measured."""
    if shape_of(config.student) is not None:
        memory = config.hardware.memory_gib or memory_gib(machine.device)
        lengths = assumed(1, config.student.max_length)
        refuse(estimate(config, machine, lengths, Figures(machine, 1.0, memory, 1.0)), certain=True)


def refuse(estimates: Sequence[Estimate], certain: bool = False) -> None:
    """Stop what does not fit. `certain`: only if the weights and the optimizer alone do not, whatever was assumed."""
    for e in estimates:
        if (e.certain_gib if certain else e.memory_gib) > e.limit_gib:
            raise LarkError(
                f"{e.stage} ({e.task}) needs about {e.memory_gib:.0f} GiB on a device that has {e.limit_gib:.0f}: "
                f"use {e.remedy or 'a device with more memory'}."
            )


def _bytes(dtype: str) -> int:
    return 4 if dtype == "float32" else 2
