"""Checks of training as runs do it: the worker's own code, in processes that are started like a run's, on
students of real width (student.py). `measure` is what these processes run.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from transformers import TrainerCallback
from transformers.trainer_utils import SaveStrategy

from lark.config import Config
from lark.gpu_check import expectations, settings
from lark.gpu_check.check import CheckPlace, Measurements
from lark.gpu_check.peak_memory import Peak
from lark.gpu_check.planned import memory_compared, planner_for, rate_of
from lark.gpu_check.student import Sample, narrow, wide, write_trajectories, written
from lark.pipeline.operations.train import TRAIN
from lark.planner.costs import forward_flops
from lark.selection.write import TRAINING_SET
from lark.training.worker import prepare
from lark.work.launch import run_worker
from lark.work.operation import EXPANDABLE, Job, Step

PACK = {"cuda": 32_768, "cpu": 512}
"""Tokens of a pack; the paper's on GPUs."""
SHORT = {"cuda": 2_048, "cpu": 256}
"""Tokens of a pack where only the code path matters."""
POISON = 3e38
"""A weight that fits into float32, but its product with a loss does not."""
POISONED = 5
"""The trajectory that has this weight."""
TARGET = "lark.gpu_check.short_training:measure"


@dataclass(frozen=True)
class ShortTraining:
    """A short training."""

    sample: Sample
    tokens: int
    """Of a pack, and of the longest trajectory."""
    lengths: Sequence[int]
    """Of the trajectories."""
    batch: int
    """Trajectories of a step."""
    settings: Sequence[str] = ()
    processes: int = 1
    poisoned: bool = False

    def overrides(self, place: CheckPlace, student: Path) -> list[str]:
        """The settings, as they could be given to run.py."""
        return [
            "student=own", f"student.path='{student}'", f"student.max_length={self.tokens}",
            f"student.dtype={settings.dtype(place)}", f"hardware.train_tokens={self.tokens}",
            f"training.global_batch={self.batch}", "training.epochs=1", "training.warmup=0",
            *settings.machine(place, self.processes), *settings.training(place), *self.settings,
        ]  # fmt: skip


def memory(place: CheckPlace) -> Measurements:
    """Steps of full packs with a vocabulary of 152,064: peak memory and speed beside the planner's."""
    tokens = PACK[place.device]
    # Packs of one, two and four trajectories. The first step compiles kernels, the others are measured.
    step = [tokens, *[tokens // 2] * 2, *[tokens // 4] * 4]
    request = ShortTraining(wide(place), tokens, step * 3, len(step))
    config, ranks = trained(place, request)
    run = ranks[0]
    expectations.expect_finite(run["losses"])
    planner = planner_for(config, step)
    estimate = TRAIN.cost(planner, Step(TRAIN, ()))  # type: ignore[misc]
    compared, figures = memory_compared(place, run["peak_gib"], estimate)
    seconds = sum(run["steps"][1:]) / len(run["steps"][1:])
    lengths = np.array(step, dtype=np.float64)
    flops = forward_flops(planner.shape, lengths, lengths).training(
        config.training.gradient_checkpointing, frozen=False
    )
    rate = rate_of("training", sum(step) / seconds, flops / sum(step), planner)
    speed = f"{rate['tokens_per_second']:,.0f} tokens/s, {flops / seconds / 1e12:.2f} TFLOP/s"
    text = f"{request.sample.name}, pack of {tokens:,}: {compared}, {speed}"
    return Measurements(text, {**figures, "step_seconds": run["steps"]}, [rate])


def offload(place: CheckPlace) -> Measurements:
    """Steps with the optimizer in the host's memory; one of them has a gradient that is not finite."""
    tokens = SHORT[place.device]
    offloaded = ["hardware.offload=optimizer", "training.bf16=true"]
    request = ShortTraining(narrow(place), tokens, [tokens] * 16, 4, offloaded, poisoned=True)
    config, ranks = trained(place, request)
    run = ranks[0]
    expectations.expect_one_skipped(run["skipped"], f"q{POISONED:02d}/c", run["losses"])
    estimate = TRAIN.cost(planner_for(config, request.lengths), Step(TRAIN, ()))  # type: ignore[misc]
    compared, figures = memory_compared(place, run["peak_gib"], estimate)
    taken = len(run["losses"]) - len(run["skipped"])
    return Measurements(f"1 poisoned step skipped, {taken} steps taken; {compared}", figures)


def qlora(place: CheckPlace) -> Measurements:
    """A loss with the layers in 4 bits, compared with the same in bfloat16."""
    tokens = SHORT[place.device]
    adapters = ["training.lora.rank=16", "training.lora.alpha=32"]
    request = ShortTraining(narrow(place), tokens, [tokens] * 8, 4, adapters)
    quantized = replace(request, settings=[*adapters, "training.lora.bits=4"])
    _, plain = trained(place, request, "bf16")
    _, ranks = trained(place, quantized, "4-bit")
    run = ranks[0]
    expectations.expect_quantized(run["quantized"], 7 * request.sample.layers)
    expectations.expect_finite(run["losses"])
    compared = expectations.losses_within(run["losses"], plain[0]["losses"], QLORA_LIMIT)
    figures = {"peak_gib": run["peak_gib"], "unquantized_gib": plain[0]["peak_gib"]}
    saved = f"{run['peak_gib']:.2f} GiB ({plain[0]['peak_gib']:.2f} without)"
    return Measurements(f"{run['quantized']} layers in 4 bits, {compared}, {saved}", figures)


QLORA_LIMIT = 3e-2
"""Relative difference of losses with weights in 4 bits."""
SHARED_LIMIT = 1e-2
"""Relative difference of losses, computed by one process or by two together."""


def sequence_parallel(place: CheckPlace) -> Measurements:
    """Losses of packs that two processes share, compared with those of whole packs."""
    tokens = PACK[place.device]
    zero = ["hardware.zero=2"]
    request = ShortTraining(narrow(place), tokens, [tokens, tokens // 2] * 4, 4, zero, processes=2)
    shared = replace(request, settings=[*zero, "hardware.sequence_parallel=2"])
    _, alone = trained(place, request, "alone")
    config, ranks = trained(place, shared, "shared")
    expectations.expect_finite(ranks[0]["losses"])
    compared = expectations.losses_within(ranks[0]["losses"], alone[0]["losses"], SHARED_LIMIT)
    estimate = TRAIN.cost(planner_for(config, request.lengths), Step(TRAIN, ()))  # type: ignore[misc]
    peak = max(run["peak_gib"] for run in ranks)
    memory_text, figures = memory_compared(place, peak, estimate)
    return Measurements(f"pack of {tokens:,} on 2: {compared}, {memory_text}", figures)


def waiting(place: CheckPlace) -> Measurements:
    """Seconds of each process in each micro-step of ZeRO-2, on trajectories of unequal lengths."""
    tokens = PACK[place.device]
    request = ShortTraining(
        narrow(place), tokens, unequal(tokens, 3 * 8 * place.processes), 8 * place.processes,
        ["hardware.zero=2"], place.processes,
    )  # fmt: skip
    _, ranks = trained(place, request)
    forwards = [run["forwards"] for run in ranks]
    expectations.expect_same_counts([len(seconds) for seconds in forwards])
    first = len(forwards[0]) // 3  # the first of three steps compiles kernels
    share = waiting_share([seconds[first:] for seconds in forwards])
    expectations.expect_little_waiting(share if place.cuda else 0.0)
    means = [f"{sum(run['micro_steps'][first:]) / len(run['micro_steps'][first:]):.3f}" for run in ranks]
    text = f"{share:.0%} of the time waiting; seconds per micro-step by rank: {' '.join(means)}"
    return Measurements(text, {"waiting": share, "micro_step_seconds": [run["micro_steps"] for run in ranks]})


def waiting_share(forwards: Sequence[Sequence[float]]) -> float:
    """The share of their time that processes wait for the slowest of each micro-step. `forwards`: seconds of
    each process's forward passes, which have no collectives and are in proportion to the cost of a pack.
    """
    seconds = np.array(forwards)
    return 1 - float(seconds.mean(axis=0).sum() / seconds.max(axis=0).sum())


def unequal(longest: int, count: int) -> list[int]:
    """Lengths of trajectories like the planner's assumed pool: log-normal, median 6,000 of 32,768 tokens."""
    draws = np.random.default_rng(0).lognormal(np.log(6000), 0.73, count)
    return [max(8, min(longest, round(draw * longest / 32_768))) for draw in draws]


def trained(
    place: CheckPlace, request: ShortTraining, name: str = "run"
) -> tuple[Config, list[dict[str, Any]]]:
    """Train in processes of their own; the configuration, and the measurements of each process."""
    student = written(place, request.sample)
    config = settings.composed(request.overrides(place, student))
    folder = place.folder / name
    folder.mkdir(parents=True, exist_ok=True)
    weights = [1.0] * len(request.lengths)
    if request.poisoned:
        weights[POISONED] = POISON
    write_trajectories(folder / TRAINING_SET, list(request.lengths), weights)
    machine = replace(place, processes=request.processes).machine
    job = Job("train", folder, {}, {"selection": folder}, str(student), config, machine, 0, False, EXPANDABLE)
    ranks: list[dict[str, Any]] = run_worker(job, TARGET)["ranks"]
    return config, ranks


def measure(job: Job) -> dict[str, Any]:
    """Train, and measure this process; the measurements of all processes."""
    peak = Peak(job.device)
    run = prepare(job)
    trainer = run.trainer
    trainer.args.save_strategy = SaveStrategy.NO
    clock = Clock(job.device)
    model = trainer.model
    assert isinstance(model, nn.Module)
    clock.attach(model, trainer)
    trainer.train()
    trainer.require_usable()
    measured = {
        "peak_gib": peak.gib(),
        "steps": _rounded(clock.steps),
        "forwards": _rounded(clock.forwards),
        "micro_steps": _rounded(clock.micro_steps),
        "losses": [line["loss"] for line in trainer.state.log_history if "loss" in line],
        "skipped": {str(step): names for step, names in trainer.skipped.items()},
        "quantized": sum(type(part).__module__.startswith("bitsandbytes") for part in model.modules()),
    }
    ranks = [measured]
    if job.world > 1:
        ranks = [{} for _ in range(job.world)]
        distributed.all_gather_object(ranks, measured)
    return {"ranks": ranks}


def _rounded(seconds: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in seconds]


@dataclass
class Clock:
    """Seconds of a process's steps, micro-steps and forward passes, each after the device has finished."""

    device: str
    steps: list[float] = field(default_factory=list)
    forwards: list[float] = field(default_factory=list)
    micro_steps: list[float] = field(default_factory=list)
    _ticks: list[float] = field(default_factory=list)

    def attach(self, model: nn.Module, trainer: Any) -> None:
        """Measure a trainer's passes. A forward pass with a head and a loss is one call of its model."""
        model.register_forward_pre_hook(lambda *_: self._tick(start=True))
        model.register_forward_hook(lambda *_: self._tick())
        trainer.accelerator.backward = partial(self._backward, trainer.accelerator.backward)
        trainer.add_callback(_Steps(self))

    def now(self) -> float:
        if self.device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter()

    def _tick(self, start: bool = False) -> None:
        if start:
            self._ticks = []
        self._ticks.append(self.now())

    def _backward(self, backward: Callable[..., None], *arguments: Any, **options: Any) -> None:
        backward(*arguments, **options)
        self._tick()
        forward, _ = (after - before for before, after in pairwise(self._ticks))
        self.forwards.append(forward)
        self.micro_steps.append(self._ticks[-1] - self._ticks[0])


class _Steps(TrainerCallback):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.start = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.start = self.clock.now()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.clock.steps.append(self.clock.now() - self.start)
