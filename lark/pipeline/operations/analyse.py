"""The operations of the stage `analyse`: the measurements that `analysis.name` selects.

Their cost is that of their own precision (`analysis.dtype`), from the student's shape and the pool's lengths.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from lark.analysis import parts
from lark.analysis.kinds import ESTIMATES_TABLE, GRADIENTS_TABLE, JACOBIANS_TABLE, KAPPA_TABLE, TEACHERS_TABLE
from lark.config import Config
from lark.errors import LarkError
from lark.models.shapes import Shape
from lark.models.students import check_context
from lark.pipeline.operations.evaluate import check_benchmarks, fetch_benchmarks
from lark.planner import costs, remedies
from lark.planner.costs import SketchShape
from lark.planner.estimates import Estimate, Planner, precision_bytes
from lark.planner.throughput import LOAD_BYTES, START_SECONDS
from lark.training.memory import TrainingSetup, activation_bytes
from lark.work.machine import GIB, Machine
from lark.work.operation import EXPANDABLE, Counts, Job, Operation, Settings, Step

GPU_FLOAT = 1 / 16
"""Share of a GPU's peak rate in float32: an A100 reaches 19.5 of its 312 TFLOP/s."""
POWER_STEPS = 8
"""Steps of power iteration until it converges: 4 to 16, on the demo's student."""
POWER_PASSES = 5
"""Forward passes that one step costs: a backward pass is two, a forward-mode pass three (W x, dW x, W dx)."""


def _merge(file: str, noun: str) -> Callable[[Job, Counts], Counts]:
    """Merge the shards of all processes into one table. `noun`: the count that is the number of shards."""

    def collect(job: Job, counts: Counts) -> Counts:
        return {**counts, **parts.merge(job.folder, file, int(counts[noun]))}

    return collect


def _audit(job: Job) -> Counts:
    from lark.analysis import contamination  # noqa: PLC0415  # imports scipy, which no other run needs

    return contamination.write_audit(job)


def _check_scratch(config: Config, machine: Machine) -> None:
    scratch = config.hardware.gradient_scratch
    if scratch and not config.dry_run and not Path(scratch).expanduser().is_dir():
        raise LarkError(f"hardware.gradient_scratch={scratch}: there is no such folder.")


def _check_timing(config: Config, machine: Machine) -> None:
    check_context(config.method.judge.model)


def gradient_numbers(shape: Shape) -> int:
    """Numbers in one trajectory's gradient; a tied head's use is kept separate from the embedding's."""
    return shape.parameters + (shape.head if shape.tied else 0)


def gradient_passes(config: Config, shape: Shape, candidates: int) -> int:
    """Passes over a trajectory until every block of its gradient has been in memory."""
    needed = precision_bytes(config.analysis.dtype) * gradient_numbers(shape) * candidates
    return ceil(needed / (config.hardware.gradient_gib * GIB))


def _gradients_cost(planner: Planner, step: Step) -> Estimate:
    """Every pass is a forward pass and the gradients of activations. Those of weights are computed once."""
    config = planner.config
    if config.analysis.quick:
        return _sketched_cost(planner, step)
    hardware = config.hardware
    shape = planner.shape
    lengths = planner.lengths
    K = lengths.candidates
    questions = min(config.analysis.questions, lengths.questions)
    passes = gradient_passes(config, shape, K)
    forward = costs.forward_flops(shape, lengths.total, lengths.response)
    backbone = forward.backbone * (passes * (2 + _recomputes(planner)) + 1)
    flops = (backbone + forward.head * (2 * passes + 1)) * lengths.repeat * questions / lengths.questions
    element = precision_bytes(config.analysis.dtype)
    gradient = element * gradient_numbers(shape)
    block = min(hardware.gradient_gib * GIB, gradient * K)
    # One gradient of the tensors that a block touches. Blocks cut tensors, at most by the head's size.
    tensors = gradient if passes == 1 else min(gradient, block / K + element * shape.head)
    buffer = 0.0 if hardware.gradient_scratch else block
    memory = tensors + buffer + _activations(planner, _longest(planner))
    plural = "" if passes == 1 else "es"
    work = f"{questions * K:,} trajectories x {passes} pass{plural}"
    estimate = _made(planner, step, work, flops, questions, 0.0, memory)
    if not hardware.gradient_scratch:
        return estimate
    # Gradients are written and read once; all processes share one disk.
    seconds = estimate.seconds + 2 * gradient * K * questions / LOAD_BYTES
    return replace(estimate, seconds=seconds, device_hours=seconds * planner.hardware.machine.world / 3600)


def _sketched_cost(planner: Planner, step: Step, forward: bool = False) -> Estimate:
    """Sketches of exact gradients for a sample of questions; with `forward` also those of a forward pass."""
    lengths = planner.lengths
    shape = planner.shape
    sketch = planner.config.sketch
    questions = min(planner.config.analysis.questions, lengths.questions)
    exact = SketchShape.of(shape, sketch.exact, sketch.words, sketch.states)
    flops = costs.exact_flops(shape, lengths.total, lengths.response, exact, bool(_recomputes(planner)))
    if forward:
        gram = SketchShape.of(shape, sketch.gram, sketch.words, sketch.states)
        flops += costs.gram_flops(shape, lengths.total, lengths.response, gram)
    flops = flops * lengths.repeat * questions / lengths.questions
    tokens = max(planner.config.hardware.train_tokens, _longest(planner))
    sketches = 4.0 * exact.numbers(shape) * lengths.candidates
    work = f"{questions * lengths.candidates:,} trajectories, sketched"
    return _made(planner, step, work, flops, questions, 0.0, _activations(planner, tokens) + sketches)


def _jacobians_cost(planner: Planner, step: Step) -> Estimate:
    """A direction in the parameters, as large as the parameters, is pulled back and pushed forward."""
    analysis = planner.config.analysis
    lengths = planner.lengths
    questions = min(analysis.jacobians, analysis.questions, lengths.questions)
    steps = min(POWER_STEPS, analysis.iterations)
    forward = costs.forward_flops(planner.shape, lengths.total, lengths.response)
    flops = forward.backbone * (1 + POWER_PASSES * steps) * lengths.repeat * questions / lengths.questions
    work = f"{questions * lengths.candidates:,} trajectories x {steps} steps"
    direction = precision_bytes(analysis.dtype) * planner.shape.parameters
    return _made(planner, step, work, flops, questions, direction, _activations(planner, _longest(planner)))


def _kappa_cost(planner: Planner, step: Step) -> Estimate:
    """A gradient of the whole training set, summed in float32, at each snapshot, which is loaded first."""
    lengths = planner.lengths
    shape = planner.shape
    training = planner.config.training
    snapshots = max(1, training.snapshots + training.early_snapshots)  # the plan refuses a run without any
    forward = costs.forward_flops(shape, lengths.total, lengths.response)
    flops = forward.training(bool(_recomputes(planner)), frozen=False)
    flops = flops * planner.selected / len(lengths.total) * snapshots
    tokens = max(planner.config.hardware.train_tokens, _longest(planner))
    memory = _activations(planner, tokens) + precision_bytes(planner.config.analysis.dtype) * shape.head
    work = f"{planner.selected:,} trajectories x {snapshots} snapshots"
    sums = 4.0 * shape.parameters
    return _made(planner, step, work, flops, snapshots, sums, memory, loads=snapshots)


def _made(
    planner: Planner,
    step: Step,
    work: str,
    flops: float,
    parts: int,
    certain: float,
    assumed: float,
    loads: int = 1,
) -> Estimate:
    """`parts` are dealt to processes, not split; `certain` and `assumed` are bytes added to the weights."""
    machine = planner.hardware.machine
    dtype = planner.config.analysis.dtype
    weights = precision_bytes(dtype) * planner.shape.parameters
    half = dtype == "bfloat16"
    rate = planner.hardware.rate("training", planner.shape, devices=1, half=half)
    if machine.device == "cuda" and not half:
        rate *= GPU_FLOAT
    computing = flops / rate * ceil(parts / machine.world) / parts
    loading = ceil(loads / machine.world) * weights / LOAD_BYTES
    seconds = computing + loading + START_SECONDS[machine.device]
    least = (weights + certain) / GIB
    return planner.made(step, work, flops, seconds, least + assumed / GIB, least)


def _recomputes(planner: Planner) -> int:
    """How many times activations are recomputed: once on a GPU."""
    return int(planner.hardware.machine.device == "cuda")


def _longest(planner: Planner) -> int:
    return int(np.max(planner.lengths.total))


def _activations(planner: Planner, tokens: int) -> float:
    bf16 = planner.config.analysis.dtype == "bfloat16"
    setup = TrainingSetup(1, 0, tokens, bool(_recomputes(planner)), bf16)
    return activation_bytes(planner.shape, setup)


def _gradients_remedies(config: Config, machine: Machine, longest: int) -> Iterator[Settings]:
    """Less room for gradients, which costs passes; then settings that cost precision or text."""
    room: list[Settings] = [{}]
    if not config.hardware.gradient_scratch:
        room += [{"hardware.gradient_gib": config.hardware.gradient_gib / 2**n} for n in range(1, 6)]
    return remedies.combined(*_precision_or_text(config, longest), room)


def _jacobians_remedies(config: Config, machine: Machine, longest: int) -> Iterator[Settings]:
    return remedies.combined(*_precision_or_text(config, longest))


def _kappa_remedies(config: Config, machine: Machine, longest: int) -> Iterator[Settings]:
    """Smaller batches first."""
    tokens = config.hardware.train_tokens
    batches: list[Settings] = [{}]
    if tokens > longest:
        batches.append({"hardware.train_tokens": longest})
    return remedies.combined(*_precision_or_text(config, longest, "hardware.train_tokens", tokens), batches)


def _precision_or_text(
    config: Config, longest: int, batch: str = "", tokens: int = 0
) -> list[list[Settings]]:
    shorter = remedies.shorter(min(longest, config.student.max_length), batch, tokens)
    return [[{}, *shorter], remedies.half("analysis.dtype", config.analysis.dtype)]


SKETCHED: dict[str, Any] = {"allocator": EXPANDABLE, "settings": ("sketch",)}

GRADIENTS = Operation(
    "gradients", "analyse", "lark.analysis.worker:gradients", **SKETCHED,
    collect=_merge(GRADIENTS_TABLE.file, "questions"), check=_check_scratch,
    cost=_gradients_cost, remedies=_gradients_remedies,
)  # fmt: skip
ESTIMATES = Operation(
    "estimates", "analyse", "lark.analysis.worker:estimates", **SKETCHED,
    collect=_merge(ESTIMATES_TABLE.file, "questions"), cost=partial(_sketched_cost, forward=True),
    remedies=_kappa_remedies,
)  # fmt: skip
TEACHERS = Operation(
    "teacher_gradients", "analyse", "lark.analysis.worker:teacher_gradients", **SKETCHED,
    collect=_merge(TEACHERS_TABLE.file, "questions"), cost=_sketched_cost, remedies=_kappa_remedies,
)  # fmt: skip
JACOBIANS = Operation(
    "jacobians", "analyse", "lark.analysis.worker:jacobians", allocator=EXPANDABLE,
    collect=_merge(JACOBIANS_TABLE.file, "questions"), cost=_jacobians_cost, remedies=_jacobians_remedies,
)  # fmt: skip
KAPPA = Operation(
    "kappa", "analyse", "lark.analysis.worker:kappa", allocator=EXPANDABLE,
    collect=_merge(KAPPA_TABLE.file, "snapshots"), cost=_kappa_cost, remedies=_kappa_remedies,
)  # fmt: skip
CONTAMINATION = Operation("contamination", "analyse", _audit, fetch=fetch_benchmarks, check=check_benchmarks)
TIMING = Operation(
    "cost",
    "analyse",
    "lark.analysis.timing:measure",
    processes="one",
    check=_check_timing,
    settings=(
        "method.judge",
        "scoring.rank_clip",
        "scoring.local_context",
        "scoring.local_steps",
        "scoring.liger",
    ),
)

OPERATIONS = (GRADIENTS, ESTIMATES, TEACHERS, JACOBIANS, KAPPA, CONTAMINATION, TIMING)
