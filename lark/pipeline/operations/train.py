"""The operation that fine-tunes the student."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from pathlib import Path

from lark.config import Config, HeldOut, Lora
from lark.errors import LarkError
from lark.models.shapes import Shape, shape_of
from lark.names import is_demo
from lark.output.cards import model_card
from lark.planner import costs, remedies
from lark.planner.costs import GIB, TrainingSetup
from lark.planner.estimates import Estimate, Planner, precision_bytes
from lark.training.checkpoints import CURVE
from lark.training.training_set import read_rows, read_token_weights
from lark.training.zero import half_weights, zero_stage
from lark.work.machine import Machine, memory_gib, pinned
from lark.work.operation import EXPANDABLE, Operation, Settings, Step

log = logging.getLogger(__name__)

DEMO_RECIPE = (
    "training=demo is the recipe of the demo's student (1M parameters), with a learning rate of %g: for"
    " student.name=%s choose student=own (the paper's recipe), training=lora or your own settings"
)
UNSHARED = ("eager", "flex_attention")
"""Attention implementations that need a mask of the whole sequence."""
LORA_RANK, LORA_RATE = 16, 1e-4
"""Adapters start at zero and need larger steps (conf/training/lora.yaml)."""
PAPER_TRAIN_HOURS = (3, 5)
"""Hours for 5,000 trajectories on 8 A100 (App. C.3)."""


def _check(config: Config, machine: Machine) -> None:
    training, zero = config.training, zero_stage(config, machine.device, machine.world)
    if config.student.half_only and not training.bf16:
        raise LarkError(
            f"student.attention={config.student.attention} has no float32, which training.bf16=false needs:"
            " set training.bf16=true or student.attention=auto."
        )
    _check_sharing(config, machine)
    _check_batch(config, machine)
    if config.hardware.elastic and zero:
        raise LarkError(
            f"hardware.elastic=true: the checkpoints of hardware.zero={zero} can only be resumed by as many"
            " processes as wrote them. Set hardware.zero=0, or hardware.elastic=false."
        )
    if zero and machine.lacks("deepspeed"):
        raise LarkError(
            f"hardware.zero={zero}, but DeepSpeed is not installed: pip install {pinned('deepspeed')}, or"
            " hardware.zero=0."
        )
    _check_offload(config, machine, zero)
    if training.lora.rank and machine.lacks("peft"):
        raise LarkError(
            f"training.lora.rank is set, but PEFT is not installed: pip install {pinned('peft')}, or"
            " training.lora.rank=0."
        )
    if training.lora.bits is not None and machine.lacks("bitsandbytes"):
        raise LarkError(
            f"training.lora.bits={training.lora.bits}, but bitsandbytes is not installed: pip install"
            f" {pinned('bitsandbytes')}, or training.lora.bits=null."
        )
    if training.lora.bits is not None and zero == 3:
        raise LarkError(
            f"training.lora.bits={training.lora.bits}: ZeRO-3 cannot shard 4-bit weights. Set"
            " hardware.zero=2, which replicates them, or training.lora.bits=null."
        )
    _check_held_out(training.held_out)
    if training.token_weights is not None:
        read_token_weights(Path(training.token_weights).expanduser())
    if is_demo(training.name) and not is_demo(config.student.path):
        log.warning(DEMO_RECIPE, training.learning_rate, config.student.name)


def _check_batch(config: Config, machine: Machine) -> None:
    training, replicas = config.training, machine.world // config.hardware.sequence_parallel
    per_step = replicas * config.hardware.micro_batch
    what = "processes" if replicas == machine.world else "groups of processes (hardware.sequence_parallel)"
    if training.global_batch % per_step and training.global_batch > per_step:
        raise LarkError(
            f"training.global_batch={training.global_batch} cannot be divided among {replicas} {what} x "
            f"hardware.micro_batch={config.hardware.micro_batch}: choose a multiple of {per_step}."
        )
    if replicas > training.global_batch:
        raise LarkError(
            f"{replicas} {what}, but only training.global_batch={training.global_batch} trajectories per"
            " step: use fewer processes or a larger batch."
        )


def _check_offload(config: Config, machine: Machine, zero: int) -> None:
    if config.hardware.offload == "none":
        return
    if not zero:
        raise LarkError(
            "hardware.offload=optimizer needs ZeRO: set hardware.zero=2 or 3, or hardware.offload=none."
        )
    if machine.device == "cuda" and not _fits_host(config, machine):
        raise LarkError(
            f"hardware.offload=optimizer needs about {ceil(_host_gib(config, machine))} GiB of the host's"
            f" memory, and this machine has {memory_gib('cpu'):.0f}: use more nodes, or"
            f" training.lora.rank={LORA_RANK}."
        )


def _host_gib(config: Config, machine: Machine) -> float:
    """Memory of an offloaded optimizer on each node; 0 if the student's shape is unknown."""
    shape = shape_of(config.student)
    return (
        0.0 if shape is None else costs.offloaded_bytes(shape, config.training.lora.rank, machine.nodes) / GIB
    )


def _fits_host(config: Config, machine: Machine) -> bool:
    """Whether the host can hold an offloaded optimizer. The memory of another machine is unknown."""
    return machine.elsewhere or _host_gib(config, machine) <= memory_gib("cpu")


def _check_sharing(config: Config, machine: Machine) -> None:
    """Check that micro-batches can be shared as hardware.sequence_parallel asks."""
    parts, shape = config.hardware.sequence_parallel, shape_of(config.student)
    asked = f"hardware.sequence_parallel={parts}"
    if parts == 1:
        return
    if machine.world % parts:
        raise LarkError(
            f"{asked}: the number of processes ({machine.world}) is not a multiple of it; choose a divisor."
        )
    if shape is not None and not shares_heads(shape, parts):
        raise LarkError(
            f"{asked}: the student's {shape.heads} attention heads and {shape.kv_heads} key-value heads"
            f" cannot be divided among {parts} processes; choose a divisor of {shape.heads}, and a divisor or"
            f" a multiple of {shape.kv_heads}."
        )
    if config.student.attention in UNSHARED:
        raise LarkError(
            f"{asked} does not support student.attention={config.student.attention}: use sdpa or"
            " flash_attention_2."
        )
    if machine.lacks("deepspeed"):
        raise LarkError(
            f"{asked} needs DeepSpeed, which is not installed: pip install {pinned('deepspeed')}."
        )


def shares_heads(shape: Shape, parts: int) -> bool:
    """Whether attention heads can be divided among this many processes. Fewer key-value heads are repeated."""
    return shape.heads % parts == 0 and (shape.kv_heads % parts == 0 or parts % shape.kv_heads == 0)


def _check_held_out(held_out: HeldOut) -> None:
    """Read the user's own file now, so that errors in it are not reported by the worker after hours of
    scoring.
    """
    if held_out.path not in (None, "selection"):
        for _ in read_rows(Path(str(held_out.path)).expanduser()):
            pass


def _cost(planner: Planner, step: Step) -> Estimate:
    config, training, shape, lengths = planner.config, planner.config.training, planner.shape, planner.lengths
    chosen = planner.selected
    share = chosen / len(lengths.total)
    setup = training_setup(config, planner.hardware.machine, int(lengths.total.max()))
    forward = costs.forward_flops(shape, lengths.total, lengths.response)
    flops = forward.training(training.gradient_checkpointing, bool(setup.lora)) * share * training.epochs
    state = costs.state_bytes(shape, setup) / GIB
    memory = state + costs.activation_bytes(shape, setup) / GIB
    seconds = planner.seconds("training", flops, 4.0 * shape.parameters)
    work = f"{chosen:,} trajectories x {training.epochs} epochs"
    low, high = (f"{hours * chosen / 5000:g}" for hours in PAPER_TRAIN_HOURS)
    paper = f"{low}-{high} h" if planner.is_papers else ""
    steps = training.epochs * ceil(chosen / training.global_batch)
    snapshots = min(training.snapshots + training.early_snapshots, steps + 1)
    kept = costs.kept_bytes(shape, precision_bytes(config.student.dtype), snapshots)
    made = planner.made(step, work, flops, seconds, memory, state, paper)
    return replace(made, kept_gib=kept / GIB, resume_gib=costs.resume_bytes(shape, setup) / GIB)


def training_setup(config: Config, machine: Machine, longest: int) -> TrainingSetup:
    """Settings that determine the memory of training on one device."""
    training, hardware = config.training, config.hardware
    capacity, parts = max(hardware.train_tokens, config.student.max_length), hardware.sequence_parallel
    share = ceil(
        training.global_batch * parts / machine.world
    )  # trajectories; a pack holds no more than the step's share
    tokens = ceil(min(capacity, share * longest) / parts)
    zero = zero_stage(config, machine.device, machine.world)
    return TrainingSetup(
        machine.world,
        zero,
        tokens,
        training.gradient_checkpointing,
        training.bf16,
        training.lora.rank,
        half_weights(config, zero),
        machine.device == "cuda",
        hardware.offload != "none",
        training.lora.bits,
    )


def _remedies(config: Config, machine: Machine, longest: int) -> Iterator[Settings]:
    hardware, context = config.hardware, config.student.max_length
    now = zero_stage(config, machine.device, machine.world)
    stages = [
        stage for stage in (2, 3) if machine.world > 1 and stage > now
    ]  # one process has nothing to shard
    sharded: list[Settings] = [{}, *({"hardware.zero": stage} for stage in stages)]
    packs: list[Settings] = [{"hardware.train_tokens": context}] if hardware.train_tokens > context else []
    lengths = [{}, *packs, *remedies.shorter(context, "hardware.train_tokens", hardware.train_tokens)]
    lora = config.training.lora
    adapters: list[Settings] = [{}]
    if not lora.rank:
        adapters.append({"training.lora.rank": LORA_RANK, "training.learning_rate": LORA_RATE})
    # Before shorter contexts: rounding frozen weights changes less than cutting the end of a trajectory, with
    # its answer.
    quantized: list[Settings] = [{}]
    if machine.device == "cuda" and lora.bits is None and now != 3:
        quantized.append({"training.lora.bits": 4})
    recomputed: list[Settings] = [{}]
    if not config.training.gradient_checkpointing:
        recomputed.append({"training.gradient_checkpointing": True})
    shared, offloaded = _shared(config, machine), _offloaded(config, machine)
    found = remedies.combined(adapters, lengths, quantized, shared, offloaded, sharded, recomputed)
    return (s for s in found if _possible(s, lora))


def _possible(settings: Settings, lora: Lora) -> bool:
    """Whether settings go together: 4-bit weights need adapters, and ZeRO-3 cannot shard them."""
    bits, rank = settings.get("training.lora.bits", lora.bits), settings.get("training.lora.rank", lora.rank)
    return bits is None or (bool(rank) and settings.get("hardware.zero") != 3)


def _offloaded(config: Config, machine: Machine) -> list[Settings]:
    """Offloading of the optimizer to the host's memory, which only GPUs have in addition to their own."""
    possible = machine.device == "cuda" and config.hardware.offload == "none" and _fits_host(config, machine)
    return [{}, {"hardware.offload": "optimizer"}] if possible else [{}]


def _shared(config: Config, machine: Machine) -> list[Settings]:
    """Settings that share micro-batches among more processes of a node than now."""
    now, shape = config.hardware.sequence_parallel, shape_of(config.student)
    if shape is None or config.student.attention in UNSHARED:
        return [{}]
    counts = [
        n
        for n in range(now + 1, machine.processes + 1)
        if machine.processes % n == 0 and shares_heads(shape, n)
    ]
    return [{}, *({"hardware.sequence_parallel": n} for n in counts)]


def _together(config: Config) -> int:
    """0: training processes see each other's GPUs (`Job.gpus`)."""
    return 0


TRAIN = Operation(
    "train",
    "train",
    "lark.training.worker:train",
    processes="sharing",
    gpus=_together,
    allocator=EXPANDABLE,
    check=_check,
    curve=CURVE,
    cost=_cost,
    remedies=_remedies,
    card=model_card,
)

OPERATIONS = (TRAIN,)
