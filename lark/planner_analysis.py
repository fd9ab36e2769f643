"""What the analyses cost that need a model: exact gradients, Jacobians, the decay rate along training (lark/analysis/worker.py).

Counted as the planner counts a run (lark/planner.py): operations from the student's shape and the pool's lengths, in float32,
which is all that the analyses work in.
"""

from dataclasses import dataclass
from math import ceil

from lark import costs
from lark.config import Config
from lark.costs import GIB
from lark.planner import LOAD_BYTES, START_SECONDS, Figures, figures
from lark.planner_pool import PoolLengths, pool_lengths
from lark.shapes import Shape, shape_of

FLOAT32 = {"cuda": 1 / 16, "cpu": 1.0}
"""Rate in float32 as a share of the peak that the planner knows: an A100's 19.5 TFLOP/s of 312. On CPU it is that peak."""
POWER_STEPS = 8
"""Of power iteration until it hardly moves: 4 to 16, on the demo's student."""
POWER_PASSES = 5
"""Forward passes that one of its steps is worth: a backward pass is two, one in forward mode three (W x, dW x and W dx)."""


@dataclass(frozen=True)
class AnalysisCost:
    """One task of the stage `analyse`."""

    work: str
    """What there is to do, in words."""
    flops: float
    device_hours: float


def analysis_costs(
    config: Config, lengths: PoolLengths | None = None, hardware: Figures | None = None
) -> dict[str, AnalysisCost]:
    """By task, of what `analysis.name` asks for. Nothing for audits and timings, which take seconds or minutes anywhere."""
    shape, name = shape_of(config.student), config.analysis.name
    if shape is None or name not in ("gradients", "theory", "kappa"):
        return {}
    hardware, lengths = hardware or figures(config), lengths or pool_lengths(config)
    if name == "kappa":
        return {"kappa": _decay_rates(config, shape, lengths, hardware)}
    found = {"gradients": _gradients(config, shape, lengths, hardware)}
    return found | ({"jacobians": _jacobians(config, shape, lengths, hardware)} if name == "theory" else {})


def gradient_passes(config: Config, shape: Shape, candidates: int) -> int:
    """Passes over a trajectory until every block of its gradient was in memory; a tied head's use is a block of its own."""
    numbers = shape.parameters + (shape.head if shape.tied else 0)
    return ceil(4.0 * numbers * candidates / (config.hardware.gradient_gib * GIB))


def _gradients(config: Config, shape: Shape, lengths: PoolLengths, hardware: Figures) -> AnalysisCost:
    """Every pass is a forward one and the gradients of activations; those of the weights are taken once in all."""
    questions = min(config.analysis.questions, lengths.questions)
    passes = gradient_passes(config, shape, lengths.candidates)
    forward = costs.forward_flops(shape, lengths.total, lengths.response)
    recomputed = int(hardware.machine.device == "cuda")
    each = forward.backbone * (passes * (2 + recomputed) + 1) + forward.head * (2 * passes + 1)
    work = f"{questions * lengths.candidates:,} trajectories x {passes} pass{'' if passes == 1 else 'es'}"
    return _cost(work, each * lengths.repeat * questions / lengths.questions, shape, hardware)


def _jacobians(config: Config, shape: Shape, lengths: PoolLengths, hardware: Figures) -> AnalysisCost:
    questions = min(config.analysis.jacobians, config.analysis.questions, lengths.questions)
    steps = min(POWER_STEPS, config.analysis.iterations)
    forward = costs.forward_flops(shape, lengths.total, lengths.response)
    flops = forward.backbone * (1 + POWER_PASSES * steps) * lengths.repeat * questions / lengths.questions
    return _cost(f"{questions * lengths.candidates:,} trajectories x {steps} steps", flops, shape, hardware)


def _decay_rates(config: Config, shape: Shape, lengths: PoolLengths, hardware: Figures) -> AnalysisCost:
    """A gradient of the whole training set at each snapshot, which is loaded first."""
    chosen = min(config.budget.size, lengths.candidates) * lengths.questions
    forward = costs.forward_flops(shape, lengths.total, lengths.response)
    each = forward.training(hardware.machine.device == "cuda", frozen=False) * chosen / len(lengths.total)
    snapshots = config.training.snapshots
    return _cost(f"{chosen:,} trajectories x {snapshots} snapshots", each * snapshots, shape, hardware, loads=snapshots)


def _cost(work: str, flops: float, shape: Shape, hardware: Figures, loads: int = 1) -> AnalysisCost:
    device, world = hardware.machine.device, hardware.machine.world
    computing = flops / (hardware.rate("train", shape, devices=1) * FLOAT32[device])
    loading = max(loads, world) * 4.0 * shape.parameters / LOAD_BYTES
    return AnalysisCost(work, flops, (computing + loading + world * START_SECONDS[device]) / 3600)
