"""LoRA (`training.lora`): adapters next to frozen weights, for when full fine-tuning is too expensive.
Merged on export.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BitsAndBytesConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from lark.config import Lora
from lark.errors import LarkError

log = logging.getLogger(__name__)

ADAPTER = "default"
PREFIX = "base_model.model."
"""Prefix that PEFT adds to the student's names."""
ALL_LINEAR = "all-linear"
NF4_BLOCK = 64
"""Weights that share a scale."""


def quantization(lora: Lora, compute: torch.dtype) -> Any:
    """The quantization of frozen layers: 4-bit NF4 with quantised constants (QLoRA). None if they are not
    quantised.

    Embeddings, norms and the head keep their precision. Products are computed in `compute`.
    """
    if lora.bits is None:
        return None
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute,
    )


def keep_exact(model: nn.Module) -> None:
    """Make 4-bit layers compute with exactly their quantised weights, also on CPU.

    There, bitsandbytes (0.50) would round the scales to bf16 for the rest of the run as soon as a model is
    evaluated, and it dequantises matrices wrongly if their rows are not whole blocks.
    """
    for name, layer in model.named_modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            quantized: Any = layer
            quantized.support_avx512bf16_for_cpu = False
            if quantized.weight.device.type == "cpu" and quantized.in_features % NF4_BLOCK:
                raise LarkError(
                    f"training.lora.bits=4 on CPU needs layers whose input is a multiple of {NF4_BLOCK}, and"
                    f" {name} has {quantized.in_features}. Set training.lora.bits=null, or use a GPU."
                )


def with_unquantised_base(state: Mapping[str, Tensor], student: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The adapters of `state` next to the weights of `student`, under the names that `merged` expects."""
    adapters = {name.removeprefix(PREFIX): value for name, value in state.items() if ".lora_" in name}
    adapted = {name.split(".lora_")[0] for name in adapters}
    base = {}
    for name, value in student.items():
        layer, _, kind = name.rpartition(".")
        base[f"{layer}.base_layer.{kind}" if layer in adapted else name] = value
    return base | adapters


def add_adapters(model: PreTrainedModel, lora: Lora) -> nn.Module:
    """The student in PEFT's wrapper, with adapters as the only trainable weights. Calls go to the student's
    own forward.
    """
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415  # not needed elsewhere, and takes a second

    targets = ALL_LINEAR if lora.targets == [ALL_LINEAR] else list(lora.targets)
    if targets != ALL_LINEAR:
        _check_targets(model, lora.targets)
    settings = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    wrapped: nn.Module = get_peft_model(model, settings, adapter_name=ADAPTER)
    wrapped.forward = model.forward
    sizes = [
        (getattr(p, "ds_numel", p.numel()), p.requires_grad) for p in wrapped.parameters()
    ]  # ZeRO-3 keeps weights elsewhere
    trained = sum(size for size, trains in sizes if trains)
    log.info("LoRA: %s of %s weights are trained", f"{trained:,}", f"{sum(size for size, _ in sizes):,}")
    return wrapped


def _check_targets(model: PreTrainedModel, targets: Sequence[str]) -> None:
    """Check that each target names linear layers, the only ones `merged` supports; PEFT would ignore a name
    without a layer.
    """
    head = model.get_output_embeddings()
    layers = dict(model.named_modules())
    linear = {
        name for name, layer in layers.items() if isinstance(layer, nn.Linear | Conv1D) and layer is not head
    }
    choices = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
    for target in targets:
        named = [name for name in layers if name == target or name.endswith(f".{target}")]
        if any(layers[name] is head for name in named):
            raise LarkError(
                f"training.lora.targets={target} names the head, whose weight the loss uses directly: leave"
                " it out."
            )
        if not named:
            raise LarkError(
                f"training.lora.targets={target}: the student has no such layer; choose from {choices}."
            )
        if not linear.issuperset(named):
            raise LarkError(f"training.lora.targets={target} is not a linear layer: choose from {choices}.")


def merged(state: Mapping[str, Tensor], transposed: frozenset[str], lora: Lora) -> dict[str, Tensor]:
    """The student's own state dict: W + alpha/rank · B A for each adapted layer (LoRA, eq. 3), without the
    adapters.

    Works out of place and from names alone: a snapshot does not change the model in training, and ZeRO-3's
    gathered state is enough. `transposed`: layers whose weight is [in, out] (GPT-2's).
    """
    student = {name.removeprefix(PREFIX): value for name, value in state.items()}
    result = {}
    for name, value in student.items():
        if ".lora_" in name:
            continue
        layer, base, kind = name.rpartition(".base_layer.")
        weight = value
        if base and kind == "weight":
            a, b = (
                student[f"{layer}.lora_{which}.{ADAPTER}.weight"].to(value.device, torch.float32)
                for which in "AB"
            )
            product = lora.alpha / lora.rank * (b @ a)
            weight = (value.float() + (product.T if layer in transposed else product)).to(value.dtype)
        result[f"{layer}.{kind}" if base else name] = weight
    return result


def transposed_layers(model: nn.Module) -> frozenset[str]:
    """The adapted layers that keep their weight as [in, out]."""
    layers = {name.removeprefix(PREFIX): module for name, module in model.named_modules()}
    return frozenset(name for name, module in layers.items() if getattr(module, "fan_in_fan_out", False))
