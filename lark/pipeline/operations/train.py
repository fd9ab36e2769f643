"""The operation that fine-tunes the student."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from pathlib import Path

from lark.config import Config, HeldOut, Lora
from lark.models.shapes import config_of, is_mixture, shape_of
from lark.names import is_demo
from lark.output.cards import model_card
from lark.planner import costs, remedies
from lark.planner.estimates import Estimate, Planner, precision_bytes
from lark.planner.host_memory import offloaded_bytes
from lark.training import checks
from lark.training.checkpoints import CURVE
from lark.training.memory import activation_bytes, state_bytes, training_setup
from lark.training.training_set import read_rows, read_token_weights
from lark.training.zero import zero_stage
from lark.work.machine import GIB, Machine, memory_gib
from lark.work.operation import EXPANDABLE, Counts, Operation, Settings, Step

log = logging.getLogger(__name__)

DEMO_RECIPE = (
    "training=demo is the recipe of the demo's student (1M parameters), with a learning rate of %g: for"
    " student.name=%s choose student=own (the paper's recipe), training=lora or your own settings"
)
LORA_RANK = 16
LORA_RATE = 1e-4
"""Adapters start at zero and need larger steps (conf/training/lora.yaml)."""
PAPER_TRAIN_HOURS = (3, 5)
"""Hours for 5,000 trajectories on 8 A100 (App. C.3)."""


def _check(config: Config, machine: Machine) -> None:
    training = config.training
    zero = zero_stage(config, machine.device, machine.world)
    checks.check_precision(config)
    checks.check_sequence_parallel(config, machine, shape_of(config.student))
    checks.check_batch(config, machine)
    checks.check_elastic(config, zero)
    checks.check_deepspeed(machine, zero)
    _check_offload(config, machine, zero)
    checks.check_adapters(training.lora, machine)
    checks.check_quantized_shards(config, zero)
    checks.check_quantized_experts(training.lora, _is_mixture(config))
    _check_held_out(training.held_out)
    if training.token_weights is not None:
        read_token_weights(Path(training.token_weights).expanduser())
    if is_demo(training.name) and not config.student.is_bundled:
        log.warning(DEMO_RECIPE, training.learning_rate, config.student.name)


def _check_offload(config: Config, machine: Machine, zero: int) -> None:
    if config.hardware.offload == "none":
        return
    checks.check_offload_sharded(zero)
    if machine.device == "cuda" and not _fits_host(config, machine):
        checks.refuse_offload(ceil(_host_gib(config, machine)), memory_gib("cpu"), LORA_RANK)


def _is_mixture(config: Config) -> bool:
    """True if the student is known to be a mixture of experts."""
    return is_mixture(config_of(config.student) or {})


def _host_gib(config: Config, machine: Machine) -> float:
    """Memory of an offloaded optimizer on each node; 0 if the student's shape is unknown."""
    shape = shape_of(config.student)
    if shape is None:
        return 0.0
    return offloaded_bytes(shape, config.training.lora.rank, machine.world) / machine.nodes / GIB


def _fits_host(config: Config, machine: Machine) -> bool:
    """True if the host can hold an offloaded optimizer. The memory of another machine is unknown."""
    return machine.elsewhere or _host_gib(config, machine) <= memory_gib("cpu")


def _check_held_out(held_out: HeldOut) -> None:
    """Read the user's own file now: the worker would report its errors only after hours of scoring."""
    if held_out.path not in (None, "selection"):
        for _ in read_rows(Path(str(held_out.path)).expanduser()):
            pass


def _cost(planner: Planner, step: Step) -> Estimate:
    config = planner.config
    training = config.training
    shape = planner.shape
    lengths = planner.lengths
    hardware = planner.hardware
    setup = training_setup(config, shape, hardware.machine, int(lengths.total.max()), hardware.memory_gib)
    forward = costs.forward_flops(shape, lengths.total, lengths.response)
    share = planner.selected / len(lengths.total)
    recomputed = setup.recomputed(shape)
    flops = forward.training(recomputed / shape.layers, bool(setup.lora)) * share * training.epochs
    seconds = planner.seconds("training", flops, 4.0 * shape.parameters, bool(training.bf16))
    state = state_bytes(shape, setup) / GIB
    memory = state + activation_bytes(shape, setup) / GIB
    work = f"{planner.selected:,} trajectories x {training.epochs} epochs"
    if 0 < recomputed < shape.layers:
        work += f", {recomputed} of {shape.layers} layers recomputed"
    estimate = planner.made(step, work, flops, seconds, memory, state, _paper_hours(planner))
    steps = training.epochs * ceil(planner.selected / training.global_batch)
    snapshots = min(training.snapshots + training.early_snapshots, steps + 1)
    files = costs.kept_bytes(shape, precision_bytes(config.student.dtype), snapshots)
    return replace(estimate, kept_gib=files / GIB, resume_gib=costs.resume_bytes(shape, setup) / GIB)


def _paper_hours(planner: Planner) -> str:
    """The paper's own time for this many trajectories; empty for another student or hardware."""
    if not planner.is_papers:
        return ""
    low, high = (f"{hours * planner.selected / 5000:g}" for hours in PAPER_TRAIN_HOURS)
    return f"{low}-{high} h"


def _remedies(config: Config, machine: Machine, longest: int) -> Iterator[Settings]:
    lora = config.training.lora
    settings = remedies.combined(
        _adapters(lora),
        _lengths(config),
        # Before shorter contexts: rounding frozen weights changes less than cutting the end of a trajectory,
        # with its answer. The last axis varies fastest.
        _quantized(config, machine),
        _shared(config, machine),
        _offloaded(config, machine),
        _sharded(config, machine),
        _recomputed(config),
    )
    return (candidate for candidate in settings if _possible(candidate, config))


def _possible(settings: Settings, config: Config) -> bool:
    """True if settings go together: 4-bit weights need adapters, and ZeRO-3 cannot shard them; an optimizer
    is only offloaded with ZeRO-3.
    """
    lora = config.training.lora
    bits = settings.get("training.lora.bits", lora.bits)
    rank = settings.get("training.lora.rank", lora.rank)
    offloads = settings.get("hardware.offload", config.hardware.offload) != "none"
    stage = settings.get("hardware.zero", 3 if offloads else config.hardware.zero)
    return (bits is None or (bool(rank) and stage != 3)) and not (offloads and stage != 3)


def _adapters(lora: Lora) -> list[Settings]:
    """Train adapters instead of all weights."""
    if lora.rank:
        return [{}]
    return [{}, {"training.lora.rank": LORA_RANK, "training.learning_rate": LORA_RATE}]


def _lengths(config: Config) -> list[Settings]:
    """Smaller packs, then shorter trajectories."""
    tokens = config.hardware.train_tokens
    context = config.student.max_length
    packs: list[Settings] = [{}]
    if tokens > context:
        packs.append({"hardware.train_tokens": context})
    return packs + remedies.shorter(context, "hardware.train_tokens", tokens)


def _quantized(config: Config, machine: Machine) -> list[Settings]:
    """Quantise the frozen weights (GPUs only)."""
    now = zero_stage(config, machine.device, machine.world)
    possible = machine.device == "cuda" and config.training.lora.bits is None and now != 3
    return [{}, {"training.lora.bits": 4}] if possible and not _is_mixture(config) else [{}]


def _shared(config: Config, machine: Machine) -> list[Settings]:
    """Share micro-batches among more processes of a node than now."""
    shape = shape_of(config.student)
    settings: list[Settings] = [{}]
    if shape is None or checks.needs_mask(config.student, shape):
        return settings
    for count in range(config.hardware.sequence_parallel + 1, machine.processes + 1):
        if machine.processes % count == 0 and checks.shares_heads(shape, count):
            settings.append({"hardware.sequence_parallel": count})
    return settings


def _offloaded(config: Config, machine: Machine) -> list[Settings]:
    """Move the optimizer to host memory (GPUs only)."""
    possible = machine.device == "cuda" and config.hardware.offload == "none" and _fits_host(config, machine)
    return [{}, {"hardware.offload": "optimizer"}] if possible else [{}]


def _sharded(config: Config, machine: Machine) -> list[Settings]:
    """Shard the optimizer, then also the weights, if there are several processes."""
    now = zero_stage(config, machine.device, machine.world)
    stages = [stage for stage in (2, 3) if machine.world > 1 and stage > now]
    return [{}, *({"hardware.zero": stage} for stage in stages)]


def _recomputed(config: Config) -> list[Settings]:
    """Recompute activations in the backward pass: of all layers, if their number is not chosen by memory."""
    shape = shape_of(config.student)
    if not config.training.gradient_checkpointing:
        return [{}, {"training.gradient_checkpointing": True}]
    if shape is None or config.hardware.recomputed_layers == shape.layers:
        return [{}]
    return [{}, {"hardware.recomputed_layers": shape.layers}]


def _all_gpus(config: Config) -> int:
    """0: training processes see each other's GPUs (`Job.gpus`)."""
    return 0


def _result(config: Config, folder: Path, counts: Counts) -> dict[str, str]:
    trained = f"{counts['trajectories']:,} trajectories, {counts['steps']:,} steps"
    return {"trained on": trained}


TRAIN = Operation(
    "train",
    "train",
    "lark.training.worker:train",
    processes="sharing",
    gpus=_all_gpus,
    allocator=EXPANDABLE,
    check=_check,
    curve=CURVE,
    cost=_cost,
    remedies=_remedies,
    card=model_card,
    result=_result,
)

OPERATIONS = (TRAIN,)
