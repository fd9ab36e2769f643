"""LoRA (`training.lora`): adapters next to frozen weights, for when full fine-tuning is too expensive.
Merged on export.
"""

import logging
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BitsAndBytesConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from lark.config import Lora
from lark.models.load import text_part
from lark.training.checks import check_blocks, check_targets

log = logging.getLogger(__name__)

ADAPTER_NAME = "default"
PEFT_PREFIX = "base_model.model."
"""Prefix that PEFT adds to the student's names."""
ALL_LINEAR = "all-linear"
NF4_BLOCK = 64
"""Weights that share a scale."""


def quantization(lora: Lora, compute: torch.dtype) -> BitsAndBytesConfig | None:
    """The quantization of frozen layers: 4-bit NF4 with quantised constants (QLoRA). None without one.

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
            if quantized.weight.device.type == "cpu":
                check_blocks(name, quantized.in_features, NF4_BLOCK)


def with_unquantised_base(state: Mapping[str, Tensor], student: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The adapters of `state` next to the weights of `student`, under the names that `merged` expects."""
    adapters = {name.removeprefix(PEFT_PREFIX): value for name, value in state.items() if ".lora_" in name}
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

    # Full names. PEFT's own "all-linear" would also adapt the 3-D experts of some mixtures, which `merged`
    # does not support, and any short name would adapt a vision tower, which text does not reach.
    targets = sorted(_targets(model, lora))
    settings = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    wrapped: nn.Module = get_peft_model(model, settings, adapter_name=ADAPTER_NAME)
    wrapped.forward = model.forward
    trained = 0
    total = 0
    for parameter in wrapped.parameters():
        size = getattr(parameter, "ds_numel", parameter.numel())  # ZeRO-3 leaves an empty tensor in its place
        total += size
        trained += size * parameter.requires_grad
    log.info("LoRA: %s of %s weights are trained", f"{trained:,}", f"{total:,}")
    without = _without_adapters(model)
    if without:
        log.info("LoRA: these matrices have no adapters: %s", ", ".join(without))
    return wrapped


def _without_adapters(model: PreTrainedModel) -> list[str]:
    """Matrices without adapters, except embeddings and the head; `*` stands for the number of a layer. PEFT
    adapts linear layers only, so the experts of a mixture are among them.
    """
    outside = [model.get_input_embeddings(), model.get_output_embeddings()]
    names = set()
    for layer, module in model.named_modules():
        is_adapted = layer.endswith(".base_layer") or ".lora_" in layer
        if is_adapted or any(module is part for part in outside):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if len(getattr(parameter, "ds_shape", parameter.shape)) > 1:  # of a part that ZeRO-3 shards, too
                names.add(re.sub(r"\.\d+\.", ".*.", f"{layer}.{name}"))
    return sorted(names)


def _targets(model: PreTrainedModel, lora: Lora) -> set[str]:
    """Names of the layers to adapt: linear ones, which `merged` supports, but not the head."""
    head = model.get_output_embeddings()
    used = {head, *text_part(model).modules()}
    layers = {name: layer for name, layer in model.named_modules() if layer in used}
    heads = {name for name, layer in layers.items() if layer is head}
    linear = {name for name, layer in layers.items() if isinstance(layer, nn.Linear | Conv1D)} - heads
    if list(lora.targets) == [ALL_LINEAR]:
        return linear
    check_targets(lora.targets, layers, linear, heads)
    endings = tuple(f".{target}" for target in lora.targets)
    return {name for name in linear if f".{name}".endswith(endings)}


def merged(state: Mapping[str, Tensor], transposed: frozenset[str], lora: Lora) -> dict[str, Tensor]:
    """The student's own state dict: W + alpha/rank · B A for each adapted layer (LoRA, eq. 3), without the
    adapters.

    Works out of place and from names alone: a snapshot does not change the model in training, and ZeRO-3's
    gathered state is enough. `transposed`: layers whose weight is [in, out] (GPT-2's).
    """
    student = {name.removeprefix(PEFT_PREFIX): value for name, value in state.items()}
    result = {}
    for name, value in student.items():
        if ".lora_" in name:
            continue
        layer, base, kind = name.rpartition(".base_layer.")
        weight = value
        if base and kind == "weight":
            a = student[f"{layer}.lora_A.{ADAPTER_NAME}.weight"].to(value.device, torch.float32)
            b = student[f"{layer}.lora_B.{ADAPTER_NAME}.weight"].to(value.device, torch.float32)
            product = lora.alpha / lora.rank * (b @ a)
            if layer in transposed:
                product = product.T
            weight = (value.float() + product).to(value.dtype)
        result[f"{layer}.{kind}" if base else name] = weight
    return result


def transposed_layers(model: nn.Module) -> frozenset[str]:
    """The adapted layers that keep their weight as [in, out]."""
    layers = {name.removeprefix(PEFT_PREFIX): module for name, module in model.named_modules()}
    return frozenset(name for name, module in layers.items() if getattr(module, "fan_in_fan_out", False))
