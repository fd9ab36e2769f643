"""What the analyses cost that need a model: exact gradients, Jacobians, the decay rate along training (lark/analysis/worker.py).

Counted as estimates.py counts a run: operations and bytes from the student's shape and the pool's lengths, in the analyses' own
precision (`analysis.dtype`).
"""

from collections.abc import Collection
from dataclasses import replace
from math import ceil

import numpy as np

from lark.config import Config
from lark.models.shapes import Shape, shape_of
from lark.planner import costs
from lark.planner.costs import GIB, TrainingSetup
from lark.planner.estimates import LOAD_BYTES, START_SECONDS, Estimate, Planner, finished, precision_bytes
from lark.planner.lengths import PoolLengths, pool_lengths
from lark.planner.throughput import Figures, figures

RATE = {("cuda", "float32"): 1 / 16, ("cuda", "bfloat16"): 1.0, ("cpu", "float32"): 1.0, ("cpu", "bfloat16"): 0.3}
"""Of the peak that the planner knows, by precision: an A100 does 19.5 TFLOP/s of its 312 in float32. On CPU float32 is that peak,
and products in bfloat16 take three to four times as long where the processor has no instructions for them."""
POWER_STEPS = 8
"""Of power iteration until it hardly moves: 4 to 16, on the demo's student."""
POWER_PASSES = 5
"""Forward passes that one of its steps is worth: a backward pass is two, one in forward mode three (W x, dW x and W dx)."""


def analysis_estimates(
    config: Config, lengths: PoolLengths | None = None, hardware: Figures | None = None, reused: Collection[str] = ()
) -> list[Estimate]:
    """What `analysis.name` asks for, a step each. Nothing for audits and timings, which take seconds or minutes anywhere."""
    shape, name = shape_of(config.student), config.analysis.name
    if shape is None or name not in ("gradients", "theory", "kappa") or "analyse" not in config.stages:
        return []
    planner = AnalysisPlanner(config, shape, hardware or figures(config), lengths or pool_lengths(config))
    tasks = {"gradients": ["gradients"], "theory": ["gradients", "jacobians"], "kappa": ["kappa"]}[name]
    steps = (planner.task(task) for task in tasks)
    return [finished(step) if step.key in reused else planner.with_remedy(step) for step in steps]


def gradient_numbers(shape: Shape) -> int:
    """Numbers of one trajectory's gradient; a tied head's use is kept apart from the embedding's."""
    return shape.parameters + (shape.head if shape.tied else 0)


def gradient_passes(config: Config, shape: Shape, candidates: int) -> int:
    """Passes over a trajectory until every block of its gradient was in memory."""
    whole = precision_bytes(config.analysis.dtype) * gradient_numbers(shape) * candidates
    return ceil(whole / (config.hardware.gradient_gib * GIB))


class AnalysisPlanner(Planner):
    """Estimates the tasks of the stage `analyse`."""

    def task(self, name: str) -> Estimate:
        return {"gradients": self._gradients, "jacobians": self._jacobians, "kappa": self._kappa}[name]()

    def again(self, step: Estimate) -> Estimate:
        return self.task(step.task)

    def _gradients(self) -> Estimate:
        """Every pass is a forward one and the gradients of activations; those of the weights are taken once in all."""
        hardware, K = self.config.hardware, self.lengths.candidates
        questions = min(self.config.analysis.questions, self.lengths.questions)
        passes = gradient_passes(self.config, self.shape, K)
        forward = costs.forward_flops(self.shape, self.lengths.total, self.lengths.response)
        each = forward.backbone * (passes * (2 + self._recomputes) + 1) + forward.head * (2 * passes + 1)
        whole = self._element * gradient_numbers(self.shape)
        block = min(hardware.gradient_gib * GIB, whole * K)
        held = whole if passes == 1 else min(whole, block / K + self._element * self.shape.head)
        memory = held + (0.0 if hardware.gradient_scratch else block)
        work = f"{questions * K:,} trajectories x {passes} pass{'' if passes == 1 else 'es'}"
        flops = each * self.lengths.repeat * questions / self.lengths.questions
        step = self._analysis("gradients", work, flops, questions, 0.0, memory + self._activations(self._longest))
        if not hardware.gradient_scratch:
            return step
        seconds = step.seconds + 2 * whole * K * questions / LOAD_BYTES  # written, read, and all processes have one disk
        return replace(step, seconds=seconds, device_hours=seconds * self.hardware.machine.world / 3600)

    def _jacobians(self) -> Estimate:
        """A direction in the parameters, as large as they are, is pulled back and pushed forward."""
        asked = self.config.analysis
        questions = min(asked.jacobians, asked.questions, self.lengths.questions)
        steps = min(POWER_STEPS, asked.iterations)
        forward = costs.forward_flops(self.shape, self.lengths.total, self.lengths.response)
        flops = forward.backbone * (1 + POWER_PASSES * steps) * self.lengths.repeat * questions / self.lengths.questions
        work = f"{questions * self.lengths.candidates:,} trajectories x {steps} steps"
        direction = self._element * self.shape.parameters
        return self._analysis("jacobians", work, flops, questions, direction, self._activations(self._longest))

    def _kappa(self) -> Estimate:
        """A gradient of the whole training set, summed in float32, at each snapshot, which is loaded first."""
        snapshots = max(1, self.config.training.snapshots)  # none are refused by the plan
        chosen = min(self.config.budget.size, self.lengths.candidates) * self.lengths.questions
        forward = costs.forward_flops(self.shape, self.lengths.total, self.lengths.response)
        each = forward.training(bool(self._recomputes), frozen=False) * chosen / len(self.lengths.total)
        tokens = max(self.config.hardware.train_tokens, self._longest)
        work = f"{chosen:,} trajectories x {snapshots} snapshots"
        sums, memory = 4.0 * self.shape.parameters, self._activations(tokens) + self._element * self.shape.head
        return self._analysis("kappa", work, each * snapshots, snapshots, sums, memory, loads=snapshots)

    @property
    def _element(self) -> int:
        return precision_bytes(self.config.analysis.dtype)

    @property
    def _recomputes(self) -> int:
        """How often activations are computed again: on a GPU once."""
        return int(self.hardware.machine.device == "cuda")

    @property
    def _longest(self) -> int:
        return int(np.max(self.lengths.total))

    def _activations(self, tokens: int) -> float:
        half = self.config.analysis.dtype == "bfloat16"
        setup = TrainingSetup(1, 0, tokens, checkpointing=bool(self._recomputes), bf16=half)
        return costs.activation_bytes(self.shape, setup)

    def _analysis(
        self, task: str, work: str, flops: float, shards: int, certain: float, assumed: float, loads: int = 1
    ) -> Estimate:
        """`shards` are dealt to the processes whole; `certain` and `assumed` are bytes beside the weights."""
        machine, dtype = self.hardware.machine, self.config.analysis.dtype
        weights = self._element * self.shape.parameters
        computing = flops / (self.hardware.rate("train", self.shape, devices=1) * RATE[machine.device, dtype])
        loading = ceil(loads / machine.world) * weights / LOAD_BYTES
        seconds = computing * ceil(shards / machine.world) / shards + loading + START_SECONDS[machine.device]
        known = (weights + certain) / GIB
        return self.step("analyse", task, work, flops, seconds, known + assumed / GIB, known)
