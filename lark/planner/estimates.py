"""How long each step of a run will take and whether it fits: from the model's shape, the pool's lengths and the hardware's
figures."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lark.config import Config, Task
from lark.errors import LarkError
from lark.models.shapes import Shape, shape_of
from lark.planner import costs, remedies
from lark.planner.costs import GIB, TrainingSetup
from lark.planner.lengths import PoolLengths, pool_lengths
from lark.planner.throughput import EFFICIENCY, Figures, figures
from lark.runtime.machine import Machine, zero_stage
from lark.runtime.plan import Step
from lark.scoring.methods import METHODS
from lark.training.zero import half_weights

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
PAPER_STUDENTS = ("qwen7b", "qwen1.5b", "llama3b")
PAPER_SCORE_SECONDS = 1.32
"""A sample, on 8 A100 (App. D.1)."""
PAPER_TRAIN_HOURS = (3, 5)
"""For 5,000 trajectories on 8 A100 (App. C.3)."""
PAPER_BENCHMARK_MINUTES = 15
"""For a student and a benchmark, on 8 A100 (App. C.3)."""


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
    which: str = ""
    """Of two steps with the same task: `base` or `trained`, the student that is evaluated."""
    kept_gib: float = 0.0
    """On disk, of what is worth counting: a trained student and its snapshots."""
    resume_gib: float = 0.0
    """On disk besides, until it is finished."""
    reused: bool = False
    """Finished before: it costs nothing."""

    @property
    def fits(self) -> bool:
        return self.memory_gib <= self.limit_gib

    @property
    def key(self) -> str:
        return f"{self.task}:{self.which}" if self.which else self.task


def estimate(
    config: Config,
    machine: Machine | None = None,
    lengths: PoolLengths | None = None,
    hardware: Figures | None = None,
    reused: Collection[str] = (),
) -> list[Estimate]:
    """The steps that a run takes, with their cost: those of its stages, and those that these depend on.

    `lengths` comes from `lengths.pool_lengths`; left out, it is read or assumed. `reused`: keys of finished steps.
    """
    shape = shape_of(config.student)
    if shape is None:
        raise LarkError(
            f"student.path={config.student.path}: its config.json is not here, so its cost cannot be planned. "
            "Download the model first, or give its folder."
        )
    hardware = hardware or figures(config, machine)
    lengths = lengths or pool_lengths(config)
    planner = Planner(config, shape, hardware, lengths)
    steps = planner.evaluation("base") if config.weighting_name is None else planner.everything()
    depended = _depended_on(config)
    taken = [step for step in steps if step.stage in config.stages or step.key in depended]
    return [finished(step) if step.key in reused else planner.with_remedy(step) for step in taken]


def key_of(step: Step) -> str:
    """`Estimate.key` of a step of the plan."""
    if step.task != "generate":
        return step.task
    return "generate:trained" if "checkpoint" in step.artifacts[0].inputs else "generate:base"


def _depended_on(config: Config) -> set[str]:
    """Keys of the steps that run for what they make, whatever stages were asked for (as `plan.wanted` finds)."""
    asked = set(config.stages)
    analysis = config.analysis.name if "analyse" in asked else None
    if config.weighting_name is None:
        return set()
    needed = {"lengths"} if analysis == "cost" else set()
    if "evaluate" in asked or analysis == "kappa":
        needed.add("train")
    if {"select", "train"} & (asked | needed):
        needed |= _scoring_tasks(METHODS[config.method.name].needs)
    return needed


def _scoring_tasks(needs: Collection[str]) -> set[str]:
    """What a method's selection is made from."""
    tasks = {"statistics": "score", "local": "local", "judge": "judge"}
    lengths = {"lengths"} if {"lengths", "statistics", "local"} & set(needs) else set()
    return lengths | {task for need, task in tasks.items() if need in needs}


def finished(step: Estimate) -> Estimate:
    """The step, if it was carried out before."""
    nothing = 0.0, 0.0, 0.0, 0.0, 0.0
    return Estimate(step.stage, step.task, step.work, *nothing, step.limit_gib, which=step.which, reused=True)


@dataclass(frozen=True)
class Planner:
    """Estimates the steps of a run."""

    config: Config
    shape: Shape
    hardware: Figures
    lengths: PoolLengths

    def everything(self) -> list[Estimate]:
        tasks = _scoring_tasks(METHODS[self.config.method.name].needs)
        steps = [self._lengths()] if "lengths" in tasks else []
        if "score" in tasks or self.config.scoring.tokens:
            steps.append(self._score("score"))
        if "local" in tasks:
            steps.append(self._score("local"))
        if "judge" in tasks:
            steps += self._judge()
        return [*steps, self._train(), *self.evaluation("base"), *self.evaluation("trained")]

    def with_remedy(self, step: Estimate) -> Estimate:
        """The step, and if it does not fit what would make it: tried out, not guessed."""
        if step.fits:
            return step
        machine, longest = self.hardware.machine, int(self.lengths.total.max())
        shape = (shape_of(self.config.method.judge.model) or self.shape) if step.task == "judge" else self.shape
        options = remedies.candidates(step.task, self.config, machine, shape, longest)
        advice = remedies.remedy(
            options, lambda settings: self._with(settings).again(step).fits,
            otherwise=remedies.last_resort(step.task, machine, step.memory_gib),
        )  # fmt: skip
        return replace(step, remedy=advice)

    def _with(self, settings: remedies.Settings) -> "Planner":
        config = remedies.applied(self.config, settings)
        return replace(self, config=config, lengths=self.lengths.cut(config.student.max_length))

    def again(self, step: Estimate) -> Estimate:
        """The same step under this planner's configuration."""
        if step.task in ("score", "local"):
            return self._score(step.task)
        made = (
            [self._train()] if step.task == "train" else self._judge() if step.task == "judge" else self.evaluation(step.which)
        )
        return made[0]

    def _lengths(self) -> Estimate:
        seconds = START_SECONDS["cpu"] + self.lengths.tokens / TOKENISE
        return self.step("score", "lengths", f"{self.lengths.tokens:,.0f} tokens", 0.0, seconds, 1.0, 1.0, devices=1)

    def _score(self, task: str) -> Estimate:
        student, n = self.config.student, self.lengths.total
        operations = (
            costs.forward_flops(self.shape, n, self.lengths.response) if task == "score"
            else costs.local_flops(self.shape, n, self.lengths.response, self.config.scoring.local_context)
        )  # fmt: skip
        flops = operations.forward * self.lengths.repeat
        element = precision_bytes(student.dtype)
        weights = self.shape.parameters * element
        batch = max(self.config.hardware.score_tokens, int(n.max()))
        memory = (weights + costs.forward_bytes(self.shape, batch, element)) / GIB
        work = f"{self.lengths.trajectories:,} trajectories, {self.lengths.tokens:,.0f} tokens"
        own = flops / self.lengths.trajectories / self.hardware.rate("score", self.shape, 1)
        paper = f"{PAPER_SCORE_SECONDS} s a sample (ours {own:.2f} s of one GPU)" if self._is_paper and task == "score" else ""
        seconds = self._seconds("score", flops, weights)
        return self.step("score", task, work, flops, seconds, memory, weights / GIB, paper)

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
        element = precision_bytes(judge.dtype)
        weights = shape.parameters * element / judge.tensor_parallel
        kv = costs.kv_bytes_per_token(shape, element) / judge.tensor_parallel
        engine = replace(self.config.engine, tensor_parallel=judge.tensor_parallel)
        own = replace(self, config=replace(self.config, engine=engine), shape=shape)
        written = min(JUDGE_ANSWER, judge.max_new_tokens)
        answering = own._generation_seconds(lengths.trajectories * written, weights, kv, int(read.mean()), 0.0)
        memory = (weights + kv * judge.max_length) / GIB
        work = f"{lengths.trajectories:,} verdicts of {Path(judge.path).name}"
        seconds = flops / self.hardware.rate("score", shape) + answering
        return [self.step("score", "judge", work, flops, seconds, memory, weights / GIB)]

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
        low, high = (f"{hours * chosen / 5000:g}" for hours in PAPER_TRAIN_HOURS)
        paper = f"{low}-{high} h" if self._is_paper else ""
        step = self.step("train", "train", work, flops, seconds, memory, state, paper)
        kept = costs.kept_bytes(self.shape, precision_bytes(self.config.student.dtype), training.snapshots)
        return replace(step, kept_gib=kept / GIB, resume_gib=costs.resume_bytes(self.shape, setup) / GIB)

    def evaluation(self, which: str) -> list[Estimate]:
        """Generation for every benchmark. Grading is seconds."""
        config, decoding = self.config, self.config.benchmark.decoding
        problems = sum(problem_count(task) for task in config.benchmark.tasks.values())
        answers = problems * decoding.samples * len(decoding.seeds)
        longest = min(decoding.max_new_tokens, config.student.max_length)
        tokens = answers * min(longest, ANSWER_TOKENS)
        element = precision_bytes(config.student.dtype)
        weights = self.shape.parameters * element / config.engine.tensor_parallel
        kv = costs.kv_bytes_per_token(self.shape, element) / config.engine.tensor_parallel
        needed = (weights + kv * config.student.max_length) / GIB
        flops = costs.forward_flops(self.shape, np.array([1.0]), np.array([1.0])).forward * tokens
        seconds = self._generation_seconds(tokens, weights, kv, min(longest, ANSWER_TOKENS), flops)
        paper = f"~{PAPER_BENCHMARK_MINUTES * len(config.benchmark.tasks)} min" if self._is_paper and which == "trained" else ""
        work = f"{which}: {answers:,} answers, up to {tokens:,} tokens"
        return [self.step("evaluate", "generate", work, flops, seconds, needed, weights / GIB, paper, which)]

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

    def step(
        self, stage: str, task: str, work: str, flops: float, seconds: float, memory: float, certain: float,
        paper: str = "", which: str = "", devices: int | None = None,
    ) -> Estimate:  # fmt: skip
        hours = seconds * (devices or self.hardware.machine.world) / 3600
        limit = self.hardware.memory_gib
        return Estimate(stage, task, work, flops, seconds, hours, memory, certain, limit, paper=paper, which=which)

    @property
    def _is_paper(self) -> bool:
        return is_papers(self.config, self.hardware)


def is_papers(config: Config, hardware: Figures) -> bool:
    """One of the paper's students and its pool, on its node: 8 A100."""
    machine = hardware.machine
    papers = config.student.name in PAPER_STUDENTS and config.pool.format == "rsr"
    return papers and (machine.device, machine.world, hardware.tflops) == ("cuda", 8, 312.0)


def training_setup(config: Config, machine: Machine, longest: int) -> TrainingSetup:
    training, hardware = config.training, config.hardware
    capacity = max(hardware.train_tokens, config.student.max_length)
    tokens = min(capacity, -(-training.global_batch // machine.world) * longest)  # a pack holds no more than the step's share
    zero = zero_stage(config, machine.device, machine.world)
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


def precision_bytes(dtype: str) -> int:
    """Of one number."""
    return 4 if dtype == "float32" else 2
