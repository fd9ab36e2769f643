"""The operation that fine-tunes the student."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from lark.config import Config, HeldOut
from lark.errors import LarkError
from lark.planner import costs, remedies
from lark.planner.costs import GIB, TrainingSetup
from lark.planner.estimates import Estimate, Planner, precision_bytes
from lark.runtime.machine import Machine, pinned
from lark.runtime.operation import Operation, Settings, Step
from lark.training.checkpoints import CURVE
from lark.training.training_set import read_rows
from lark.training.zero import half_weights, zero_stage

log = logging.getLogger(__name__)

DEMO_RECIPE = (
    "training=demo is the recipe of the demo's student (1M parameters), with a learning rate of %g: for student.name=%s choose "
    "student=own (the paper's recipe), training=lora or your own settings"
)
LORA_RANK, LORA_RATE = 16, 1e-4
"""Adapters start at zero and need larger steps (conf/training/lora.yaml)."""
PAPER_TRAIN_HOURS = (3, 5)
"""Hours for 5,000 trajectories on 8 A100 (App. C.3)."""


def _check(config: Config, machine: Machine) -> None:
    training, zero = config.training, zero_stage(config, machine.device, machine.world)
    if config.student.half_only and not training.bf16:
        raise LarkError(
            f"student.attention={config.student.attention} has no float32, which training.bf16=false needs: set "
            "training.bf16=true or student.attention=auto."
        )
    _check_batch(config, machine)
    if zero and machine.lacks("deepspeed"):
        raise LarkError(
            f"hardware.zero={zero}, but DeepSpeed is not installed: pip install {pinned('deepspeed')}, or hardware.zero=0."
        )
    if training.lora.rank and machine.lacks("peft"):
        raise LarkError(
            f"training.lora.rank is set, but PEFT is not installed: pip install {pinned('peft')}, or training.lora.rank=0."
        )
    _check_held_out(training.held_out)
    if training.name == "demo" and config.student.path != "demo":
        log.warning(DEMO_RECIPE, training.learning_rate, config.student.name)


def _check_batch(config: Config, machine: Machine) -> None:
    training, per_step = config.training, machine.world * config.hardware.micro_batch
    if training.global_batch % per_step and training.global_batch > per_step:
        raise LarkError(
            f"training.global_batch={training.global_batch} cannot be divided among {machine.world} processes x "
            f"hardware.micro_batch={config.hardware.micro_batch}: choose a multiple of {per_step}."
        )
    if machine.world > training.global_batch:
        raise LarkError(
            f"{machine.world} processes, but only training.global_batch={training.global_batch} trajectories per step: "
            "use fewer processes or a larger batch."
        )


def _check_held_out(held_out: HeldOut) -> None:
    """Read the user's own file now, so that errors in it are not reported by the worker after hours of scoring."""
    if held_out.path not in (None, "selection"):
        for _ in read_rows(Path(str(held_out.path)).expanduser()):
            pass


def _cost(planner: Planner, step: Step) -> Estimate:
    config, training, shape, lengths = planner.config, planner.config.training, planner.shape, planner.lengths
    chosen = min(config.budget.size, lengths.candidates) * lengths.questions
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
    kept = costs.kept_bytes(shape, precision_bytes(config.student.dtype), training.snapshots)
    made = planner.made(step, work, flops, seconds, memory, state, paper)
    return replace(made, kept_gib=kept / GIB, resume_gib=costs.resume_bytes(shape, setup) / GIB)


def training_setup(config: Config, machine: Machine, longest: int) -> TrainingSetup:
    """Settings that determine the memory of training on one device."""
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


def _remedies(config: Config, machine: Machine, longest: int) -> Iterator[Settings]:
    hardware, context = config.hardware, config.student.max_length
    now = zero_stage(config, machine.device, machine.world)
    stages = [stage for stage in (2, 3) if machine.world > 1 and stage > now]  # one process has nothing to shard
    sharded: list[Settings] = [{}, *({"hardware.zero": stage} for stage in stages)]
    packs: list[Settings] = [{"hardware.train_tokens": context}] if hardware.train_tokens > context else []
    lengths = [{}, *packs, *remedies.shorter(context, "hardware.train_tokens", hardware.train_tokens)]
    adapters: list[Settings] = [{}]
    if not config.training.lora.rank:
        adapters.append({"training.lora.rank": LORA_RANK, "training.learning_rate": LORA_RATE})
    recomputed: list[Settings] = [{}]
    if not config.training.gradient_checkpointing:
        recomputed.append({"training.gradient_checkpointing": True})
    return remedies.combined(adapters, lengths, sharded, recomputed)


def _together(config: Config) -> int:
    """0: training processes see each other's GPUs (`Job.gpus`)."""
    return 0


TRAIN = Operation(
    "train", "train", "lark.training.worker:train", processes="sharing", gpus=_together, check=_check, curve=CURVE,
    cost=_cost, remedies=_remedies,
)  # fmt: skip

OPERATIONS = (TRAIN,)
