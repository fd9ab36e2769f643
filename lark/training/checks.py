"""Refusals of training: of settings, training sets, checkpoints, and of runs that fail. No model code."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from lark.config import Config, Lora, Student
from lark.errors import LarkError, refuse
from lark.models.shapes import Shape
from lark.printing import counted
from lark.work.machine import Machine, pinned

if TYPE_CHECKING:
    from lark.training.checkpoints import Sharding


NEEDS_MASK = ("eager", "flex_attention")
"""Attention implementations that need a mask of the whole sequence."""


def check_precision(config: Config) -> None:
    """Refuse training in float32 with attention that has none."""
    if config.student.half_only and not config.training.bf16:
        raise LarkError(
            f"student.attention={config.student.attention} has no float32, which training.bf16=false needs:"
            " set training.bf16=true or student.attention=auto."
        )


def check_sequence_parallel(config: Config, machine: Machine, shape: Shape | None) -> None:
    """Refuse processes that cannot share micro-batches as hardware.sequence_parallel asks."""
    parts = config.hardware.sequence_parallel
    setting = f"hardware.sequence_parallel={parts}"
    why = None
    if parts == 1:
        return
    if machine.world % parts:
        why = f": the number of processes ({machine.world}) is not a multiple of it; choose a divisor."
    elif shape is not None and not shares_heads(shape, parts):
        why = (
            f": the student's {shape.heads} attention heads and {shape.kv_heads} key-value heads cannot be"
            f" divided among {parts} processes; choose a divisor of {shape.heads}, and a divisor or a"
            f" multiple of {shape.kv_heads}."
        )
    elif needs_mask(config.student, shape):
        problem = f"student.attention={config.student.attention}: use sdpa or flash_attention_2"
        if shape is not None and shape.needs_eager:
            problem = f"eager attention, which {config.student.path} needs: set it to 1"
        why = f" does not support {problem}."
    elif machine.lacks("deepspeed"):
        why = f" needs DeepSpeed, which is not installed: pip install {pinned('deepspeed')}."
    if why is not None:
        raise LarkError(f"{setting}{why}")


def needs_mask(student: Student, shape: Shape | None) -> bool:
    """True if attention needs a mask of the whole sequence: by its setting, or as `auto` will be eager."""
    is_eager = student.attention == "auto" and shape is not None and shape.needs_eager
    return is_eager or student.attention in NEEDS_MASK


def shares_heads(shape: Shape, parts: int) -> bool:
    """True if attention heads can be divided among this many processes; fewer key-value heads repeat."""
    return shape.heads % parts == 0 and (shape.kv_heads % parts == 0 or parts % shape.kv_heads == 0)


def check_batch(config: Config, machine: Machine) -> None:
    """Refuse a global batch that cannot be divided evenly, or that is too small for the processes."""
    batch = config.training.global_batch
    micro_batch = config.hardware.micro_batch
    replicas = machine.world // config.hardware.sequence_parallel
    per_step = replicas * micro_batch
    unit = "processes" if replicas == machine.world else "groups of processes (hardware.sequence_parallel)"
    why = None
    if batch % per_step and batch > per_step:
        why = (
            f"training.global_batch={batch} cannot be divided among {replicas} {unit} x "
            f"hardware.micro_batch={micro_batch}: choose a multiple of {per_step}."
        )
    elif replicas > batch:
        why = (
            f"{replicas} {unit}, but only training.global_batch={batch} trajectories per"
            " step: use fewer processes or a larger batch."
        )
    refuse(why)


def check_elastic(config: Config, zero: int) -> None:
    """Refuse a changing number of processes for an optimizer that is sharded over them."""
    if config.hardware.elastic and zero:
        raise LarkError(
            f"hardware.elastic=true: the checkpoints of hardware.zero={zero} can only be resumed by as many"
            " processes as wrote them. Set hardware.zero=0, or hardware.elastic=false."
        )


def check_deepspeed(machine: Machine, zero: int) -> None:
    """Refuse sharding without DeepSpeed."""
    if zero and machine.lacks("deepspeed"):
        raise LarkError(
            f"hardware.zero={zero}, but DeepSpeed is not installed: pip install {pinned('deepspeed')}, or"
            " hardware.zero=0."
        )


def check_offload_sharded(zero: int) -> None:
    """Refuse to offload an optimizer that is not ZeRO's."""
    if not zero:
        raise LarkError(
            "hardware.offload=optimizer needs ZeRO: set hardware.zero=3, or hardware.offload=none."
        )


def refuse_offload(needed_gib: int, host_gib: float, rank: int) -> NoReturn:
    """Refuse to offload an optimizer that the host cannot hold."""
    raise LarkError(
        f"hardware.offload=optimizer needs about {needed_gib} GiB of the host's memory, and this machine has"
        f" {host_gib:.0f}: use more nodes, or training.lora.rank={rank}."
    )


def check_adapters(lora: Lora, machine: Machine) -> None:
    """Refuse adapters without their packages."""
    why = None
    if lora.rank and machine.lacks("peft"):
        why = (
            f"training.lora.rank is set, but PEFT is not installed: pip install {pinned('peft')}, or"
            " training.lora.rank=0."
        )
    elif lora.bits is not None and machine.lacks("bitsandbytes"):
        why = (
            f"training.lora.bits={lora.bits}, but bitsandbytes is not installed: pip install"
            f" {pinned('bitsandbytes')}, or training.lora.bits=null."
        )
    refuse(why)


def check_quantized_shards(config: Config, zero: int) -> None:
    """Refuse 4-bit weights that would be sharded."""
    bits = config.training.lora.bits
    if bits is None or zero != 3:
        return
    remedy = "hardware.zero=2, which replicates them"
    if config.hardware.offload != "none":  # which always shards them
        remedy = "hardware.offload=none (the optimizer of adapters is small)"
    raise LarkError(
        f"training.lora.bits={bits}: ZeRO-3 cannot shard 4-bit weights. Set {remedy}, or"
        " training.lora.bits=null."
    )


def check_quantized_experts(lora: Lora, is_mixture: bool) -> None:
    """Refuse QLoRA for a mixture of experts."""
    if lora.bits is not None and is_mixture:
        raise LarkError(
            f"training.lora.bits={lora.bits}: the student is a mixture of experts, and bitsandbytes quantises"
            " linear layers only. The experts, which are most of its weights, would keep 16 bits and have no"
            " adapters. Set training.lora.bits=null, or train all weights."
        )


def check_single(single: bool, name: str, where: str) -> None:
    """Refuse a trajectory that an earlier line has too."""
    if not single:
        raise LarkError(f"{where}: duplicate trajectory {name}; merge its lines into one.")


def check_not_empty(trajectories: int, path: Path, remedy: str) -> None:
    """Refuse a file without a line."""
    if not trajectories:
        raise LarkError(f"{path} is empty: {remedy}.")


def check_roles(roles: Sequence[str], trained: bool, where: str) -> None:
    """Refuse messages without a question, or that do not end with an answer. `trained`: a turn has loss."""
    if "user" not in roles or roles[-1] != "assistant" or not trained:
        raise LarkError(
            f"{where}: `messages` must have a user turn and end with an assistant turn that is trained on"
            f" (with a weight other than 0); it has {', '.join(roles) or 'no messages'}."
        )


def check_sharding(checkpoint: Path, written: "Sharding", current: "Sharding") -> None:
    """Refuse to resume a checkpoint whose optimizer is sharded differently."""
    same_shards = not current.zero or written.world == current.world
    if written.zero != current.zero or not same_shards:
        raise LarkError(
            f"{checkpoint} was written by {written.world} processes with hardware.zero={written.zero};"
            f" {current.world} with hardware.zero={current.zero} cannot resume it. Use the same hardware"
            " again, or start over with force=[train]."
        )


def check_response(tokens: int, path: Path, name: str, max_length: int) -> None:
    """Refuse a trajectory of which no response token is left to train on."""
    if tokens < 1:
        raise LarkError(
            f"{path}: the response of {name} is cut off completely at student.max_length={max_length}. Raise"
            " it, or remove this trajectory."
        )


def check_targets(
    targets: Sequence[str], layers: Collection[str], linear: Collection[str], heads: Collection[str]
) -> None:
    """Refuse targets of adapters that do not name linear layers. PEFT would ignore a name without a layer."""
    choices = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
    for target in targets:
        named = {name for name in layers if name == target or name.endswith(f".{target}")}
        why = None
        if not named.isdisjoint(heads):
            why = " names the head, whose weight the loss uses directly: leave it out."
        elif not named:
            why = f": the student has no such layer; choose from {choices}."
        elif not named.issubset(linear):
            why = f" is not a linear layer: choose from {choices}."
        if why is not None:
            raise LarkError(f"training.lora.targets={target}{why}")


def check_blocks(layer: str, inputs: int, block: int) -> None:
    """Refuse a layer that cannot be dequantised exactly on CPU."""
    if inputs % block:
        raise LarkError(
            f"training.lora.bits=4 on CPU needs layers whose input is a multiple of {block}, and"
            f" {layer} has {inputs}. Set training.lora.bits=null, or use a GPU."
        )


def refuse_diverged(step: int, harm: str, rate: float) -> NoReturn:
    """Stop a run whose student is useless after a step."""
    raise LarkError(
        f"Training stopped: after step {step} the student's {harm}. Lower training.learning_rate={rate:g}, or"
        " lengthen training.warmup. Checkpoints of earlier steps are kept."
    )


def refuse_skips(step: int, steps: int, skipped: int, suspects: str, rate: float) -> NoReturn:
    """Stop a run that skips too many steps. `suspects`: possible causes of the last skip."""
    advice = (
        f". Look at {suspects}, or lower training.learning_rate={rate:g}. Checkpoints of earlier steps are"
        " kept."
    )
    if skipped == step:  # the student has not changed, so its learning rate is not the cause
        advice = (
            f" and no step was taken. Look at {suspects} and their weights, or lower training.lora.alpha if"
            " adapters are trained."
        )
    gradients = f"the gradients of {counted(skipped, 'step')} were not finite"
    raise LarkError(f"Training stopped at step {step} of {steps}: {gradients}{advice}")


def refuse_mask(parts: int, model: str, attention: str) -> NoReturn:
    """Refuse attention that needs a mask: it would be made from the positions of one process alone."""
    raise LarkError(
        f"hardware.sequence_parallel={parts}: the attention of {model} with {attention} needs a mask, which"
        " sequence parallelism does not support. Set hardware.sequence_parallel=1."
    )


def refuse_sharing(parts: int, model: str, attention: str, reason: str) -> NoReturn:
    """Refuse attention that fails when processes share a sequence."""
    raise LarkError(
        f"hardware.sequence_parallel={parts} does not work with {model} and {attention} attention"
        f" ({reason}). Set hardware.sequence_parallel=1."
    )


def refuse_other_states(parts: int, model: str, attention: str, error: float) -> NoReturn:
    """Refuse attention that gives other hidden states when processes share a sequence."""
    raise LarkError(
        f"hardware.sequence_parallel={parts} changes the hidden states of {model} with {attention} attention"
        f" by {error:.1e}. Set hardware.sequence_parallel=1."
    )
