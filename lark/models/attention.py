"""Which attention a model uses, and a check at start-up that packed trajectories do not see each other.

With `use_cache=False`, no attention mask and positions that restart, transformers 5.19 finds the
trajectories of a pack itself (`masking_utils.find_packed_sequence_indices`; with the default cache it does
not look for them, and they leak):

    eager              a [t, t] additive mask.
    sdpa               a [t, t] bool mask: correct, but a pack of 32,768 tokens costs the full t² and a mask
                       of 1 GB.
    sdpa_segments      ours (lark/models/varlen.py): one call of the causal kernel per trajectory. No mask,
                       Σ t_i² instead of (Σ t_i)². `separate_segments` makes it replace sdpa. Trajectories can
                       share their beginning.
    varlen             ours: one call of PyTorch's own variable-length kernel for all trajectories. GPU, half
                       precision; elsewhere it is sdpa_segments.
    flash_attention_2  the variable-length kernel of flash-attn (one row only). GPU, half precision.
    owner/name        a kernel from the Hugging Face hub, through transformers and the package `kernels`; GPU.
    flex_attention     a block mask; on CPU it has no backward pass.

A 4-D bool mask made by hand is wrong in eager attention, which adds it to the scores, so none is made here.
"""

import logging
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from lark.config import Student
from lark.errors import LarkError, first_line
from lark.models.varlen import SEGMENTS, VARLEN, Segments

log = logging.getLogger(__name__)

SINKS_KERNEL = "kernels-community/vllm-flash-attn3"
"""A kernel of the hub that computes attention sinks (gpt-oss), which flash_attention_2 does not."""


def automatic(device: str, half: bool) -> str:
    """The implementation that `student.attention=auto` chooses for computation in half precision, or else
    in float32.
    """
    return VARLEN if half and device != "cpu" else "sdpa"


def attention(student: Student, device: str, config: PreTrainedConfig) -> str:
    """The effective implementation for a model with this config.

    Attention that sdpa does not compute needs another one. transformers would ignore a soft cap with sdpa,
    without a word.
    """
    implementation = student.attention
    if implementation == "auto":
        implementation = automatic(device, half=student.dtype != "float32")
    reason = _why_not_sdpa(config)
    if reason is None or implementation not in ("sdpa", VARLEN):
        return implementation
    alternative = "flash_attention_2 or a kernel from the hub" if _softcap(config) else SINKS_KERNEL
    if student.attention != "auto":
        raise LarkError(
            f"{student.setting}.attention={student.attention} cannot be used: {reason}. Set it to eager, or"
            f" on a GPU to {alternative}."
        )
    log.warning(
        "Using eager attention, which needs memory for the square of the length: %s. On a GPU, consider "
        "student.attention=%s.",
        reason,
        alternative,
    )
    return "eager"


def _softcap(config: PreTrainedConfig) -> float | None:
    """The limit of a model's attention scores, or None."""
    return getattr(config.get_text_config(), "attn_logit_softcapping", None)


def _why_not_sdpa(config: PreTrainedConfig) -> str | None:
    """The part of a model's attention that sdpa and the variable-length kernel do not compute, or None."""
    softcap = _softcap(config)
    if softcap is not None:
        return f"{config.model_type} caps attention scores at {softcap:g}, which sdpa does not compute"
    model = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if not getattr(model, "_supports_sdpa", True):
        return f"{config.model_type} does more in attention than sdpa computes, such as attention sinks"
    return None


def half_only(model: PreTrainedModel) -> bool:
    """Whether the model's attention has no float32: flash attention, and kernels from the hub."""
    implementation = str(model.config._attn_implementation)
    return "flash" in implementation or "/" in implementation


def separates(model: PreTrainedModel) -> bool:
    """Whether the model's attention processes packs without a mask, so that packing saves work in scoring."""
    return model.config._attn_implementation in (VARLEN, SEGMENTS) or half_only(model)


def separate_segments(model: PreTrainedModel) -> None:
    """Make `sdpa` process each trajectory of a pack separately. The other implementations are unchanged."""
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(SEGMENTS)


def supports_packing(model: PreTrainedModel, half: bool = False, doing: str = "Training on") -> bool:
    """Whether trajectories can be packed for this model on this device. If not, the reason is logged;
    batches are padded.
    """
    try:
        assert_packing_separates(model, half)
    except (LarkError, RuntimeError, TypeError, ValueError) as error:
        log.warning("%s padded batches instead of packs: %s", doing, first_line(error))
        return False
    return True


@torch.no_grad()
def supports_prefixes(model: PreTrainedModel) -> bool:
    """Whether trajectories of a pack can share their beginning (`Segments.prefixes`), tried on a few tokens.

    Not every family passes the prefixes on to its attention. Call this after `supports_packing`.
    """
    if model.config._attn_implementation != SEGMENTS:
        return False
    prompt = 5
    first = prompt + 7  # a trajectory with the prompt
    second = 4  # another one after the same prompt, which the row holds once
    vocabulary = int(model.config.get_text_config().vocab_size)
    # A prime step, so that neighbouring tokens are unlike each other.
    ids = torch.arange(first + second, device=model.device)[None] * 7919 % vocabulary
    positions = torch.tensor([[*range(first), *range(prompt, prompt + second)]], device=model.device)
    segments = Segments.of([first, second], [torch.arange(0), torch.arange(prompt)]).to(model.device)

    def hidden(tokens: Tensor, **inputs: Any) -> Tensor:
        output: Tensor = model.base_model(input_ids=tokens, use_cache=False, **inputs).last_hidden_state
        return output[0, -second:].float()

    shared = hidden(ids, position_ids=positions, **segments.arguments(model.base_model))
    alone = hidden(torch.cat([ids[:, :prompt], ids[:, -second:]], dim=1))
    tolerance = 1e-4 if model.dtype in (torch.float32, torch.float64) else 5e-2
    return bool((shared - alone).abs().max() <= tolerance * alone.abs().max())


@dataclass(frozen=True)
class _Errors:
    """Largest differences between packed trajectories and the same ones alone, or next to others."""

    alone: float
    """Difference of logits, packed and alone, in units of the largest logit, at least 1."""
    leak: float
    """Difference of logits next to one neighbour and another, in the same units."""
    gradient: float = 0.0
    """Difference of gradients, packed and alone, in units of their norm."""
    gradient_leak: float = 0.0
    """The largest gradient that reaches a neighbour, in the same units."""


def assert_packing_separates(model: PreTrainedModel, half: bool = False) -> None:
    """Raise unless three packed trajectories have the same logits as alone, and none depends on another's
    tokens.

    The same is required of gradients, if they are enabled: so the kernel's backward pass has run before
    training starts. Comparisons with a trajectory alone are subject to rounding in the model's dtype. Leaks
    are not: the shapes are the same, so in any dtype a trajectory's logits either change with its neighbour
    or do not. Call this when the model is on the device where it will train, because GPU kernels only exist
    there. `half`: the GPU runs it under autocast.
    """
    training = model.training
    autocast = half_only(model) or (half and model.device.type == "cuda")
    model.eval()
    try:
        with torch.autocast(model.device.type, torch.bfloat16, enabled=autocast):
            errors = _packing_errors(model)
    finally:
        model.train(training)
    exact = model.dtype in (torch.float32, torch.float64) and not autocast
    limits = _Errors(1e-4, 1e-4, 1e-3, 1e-4) if exact else _Errors(5e-2, 1e-4, 0.25, 1e-4)
    if any(error > limit for error, limit in zip(astuple(errors), astuple(limits), strict=True)):
        alternative = "student.attention to another implementation, such as sdpa, or "
        if _why_not_sdpa(model.config) is not None:
            alternative = ""
        raise LarkError(
            f"Packed trajectories are not kept apart by {model.config._attn_implementation} attention in"
            f" {type(model).__name__}: logits differ by {errors.alone:.1e} from those of the trajectory"
            f" alone, and by {errors.leak:.1e} when a neighbour changes (gradients: {errors.gradient:.1e} and"
            f" {errors.gradient_leak:.1e}). Set {alternative}training.packing to false."
        )


def _packing_errors(model: PreTrainedModel) -> _Errors:
    """Measure the errors on random tokens. An implementation that has no backward pass on this device
    raises an error.
    """
    # Different lengths, so that a boundary in the wrong place shows.
    sizes = [7, 12, 5]
    generator = torch.Generator().manual_seed(0)
    vocabulary = int(model.config.get_text_config().vocab_size)
    ids = torch.randint(vocabulary, (1, sum(sizes)), generator=generator).to(model.device)
    positions = torch.cat([torch.arange(size) for size in sizes]).unsqueeze(0).to(model.device)
    middle = slice(sizes[0], sizes[0] + sizes[1])
    segments = Segments.of(sizes).to(model.device)
    packed: dict[str, Any] = {"position_ids": positions, **segments.arguments(model)}

    def logits(tokens: Tensor, **inputs: Any) -> Tensor:
        output: Tensor = model(input_ids=tokens, use_cache=False, **inputs).logits
        return output.float()

    def alone() -> Tensor:
        pieces = zip(ids.split(sizes, dim=1), positions.split(sizes, dim=1), strict=True)
        return torch.cat([logits(piece, position_ids=at) for piece, at in pieces], dim=1)

    # After one pass, our attention knows whether the model needs a mask for a sliding window.
    logits(ids, **packed)
    together, gradient = _with_gradient(model, lambda: logits(ids, **packed), middle)
    apart, expected = _with_gradient(model, alone, middle)
    changed = ids.clone()
    changed[:, middle] = (changed[:, middle] + 1) % vocabulary
    difference = (together - logits(changed, **packed).detach()).abs()
    difference[:, middle] = 0.0
    unit = max(1.0, float(apart.abs().max()))
    errors = _Errors(float((together - apart).abs().max()) / unit, float(difference.max()) / unit)
    if gradient is None or expected is None:
        return errors
    norm = max(float(expected.norm()), 1e-12)
    leak = float(gradient[:, middle].abs().max()) / norm
    return _Errors(errors.alone, errors.leak, float((gradient - expected).norm()) / norm, leak)


def _with_gradient(
    model: PreTrainedModel, run: Callable[[], Tensor], left_out: slice
) -> tuple[Tensor, Tensor | None]:
    """The result of `run`, and the gradient at the embedded tokens of its log-normalisers, except `left_out`.

    Not at the parameters: those gradients would be as large as the model. None if gradients are disabled.
    """
    embedded: list[Tensor] = []

    def cut(_module: torch.nn.Module, _inputs: object, output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_(torch.is_grad_enabled()))
        return embedded[-1]

    handle = model.get_input_embeddings().register_forward_hook(cut)
    try:
        result = run()
    finally:
        handle.remove()
    if not torch.is_grad_enabled():
        return result, None
    # Log-normalisers depend on all logits, so every path through attention has a gradient.
    normalisers = result.logsumexp(-1)
    objective = normalisers.sum() - normalisers[:, left_out].sum()
    parts = torch.autograd.grad(objective, embedded, allow_unused=True, materialize_grads=True)
    return result.detach(), torch.cat(parts, dim=1).float()
