"""Causal attention within each trajectory of a pack, without a mask.

On a GPU the kernel is `torch.nn.attention.varlen.varlen_attn`, the FlashAttention that PyTorch contains:
nothing has to be built or installed. It needs half precision, an Ampere GPU or newer, and has no dropout.
Everywhere else `sdpa_per_segment` computes the same function from the same arguments with one call of the
causal sdpa kernel per trajectory.

The functions here are registered with transformers under two names (`student.attention` in parentheses):

    varlen         (varlen)  the GPU kernel where it applies, else `sdpa_per_segment`.
    sdpa_segments  (sdpa)    `sdpa_per_segment` on every device.

In a pack for sdpa_segments, trajectories that begin alike can share their beginning: the row holds it once,
and a later trajectory is a segment with a prefix (`Segments.prefixes`).
"""

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate, pairwise
from operator import add
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from lark.errors import LarkError
from lark.models.sdpa_segments import CAUSAL, sdpa_per_segment

log = logging.getLogger(__name__)

VARLEN = "varlen"
SEGMENTS = "sdpa_segments"
LARGEST_HEAD = 256
"""Largest head dimension of the GPU kernel. It also has to be a multiple of 8."""

_passes_window: set[type] = set()
"""Configs of model families whose layers pass their sliding window to the attention function."""


@dataclass(frozen=True)
class Segments:
    """Where the trajectories of a pack begin and end.

    Made once per micro-batch, from lengths that are known on the host. Kernels need the boundaries on the
    device and the longest length as a number; to derive either from position ids, every layer would have to
    wait for the device.
    """

    boundaries: Tensor
    """[S + 1] int32: 0, t_1, t_1 + t_2, …"""
    longest: int
    """Tokens of the longest segment, with its prefix."""
    prefixes: tuple[Tensor, ...] | None = None
    """For each segment, where in the row the tokens before its first are: [0 … length of its prefix] int64.
    None: no segment has a prefix. Only sdpa_segments computes them.
    """

    @classmethod
    def of(cls, lengths: Sequence[int], prefixes: Sequence[Tensor] | None = None) -> "Segments":
        """Segments of `lengths` tokens, one after the other."""
        boundaries = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        if prefixes is None:
            return cls(boundaries, max(lengths))
        return cls(boundaries, max(map(add, lengths, map(len, prefixes))), tuple(prefixes))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Segments":
        boundaries = self.boundaries.to(device, non_blocking=non_blocking)
        if self.prefixes is None:
            return Segments(boundaries, self.longest)
        prefixes = tuple(prefix.to(device, non_blocking=non_blocking) for prefix in self.prefixes)
        return Segments(boundaries, self.longest, prefixes)

    def arguments(self, model: nn.Module) -> dict[str, Any]:
        """Arguments for a model or its backbone, under the names that flash attention in transformers reads
        too.

        Empty if the model does not pass unknown arguments on to its layers. Attention then uses the
        position ids.
        """
        if not takes_keywords(type(model).forward):
            return {}
        arguments: dict[str, Any] = {}
        for side in ("q", "k"):
            arguments[f"cu_seq_lens_{side}"] = self.boundaries
            arguments[f"max_length_{side}"] = self.longest
        if self.prefixes is not None:
            arguments["prefixes"] = self.prefixes
        return arguments


@cache
def takes_keywords(forward: Callable[..., Any]) -> bool:
    """Whether a model's `forward` passes arguments that it does not know on to its layers."""
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(forward).parameters.values())


def _segments(arguments: dict[str, Any], position_ids: Tensor | None, length: int) -> Segments:
    """The segments of one row: those in `arguments`, or else each run of positions that rise by 1 ([0 1 2 0
    1]: 3 and 2).
    """
    boundaries = arguments.get("cu_seq_lens_q")
    longest = arguments.get("max_length_q")
    if boundaries is not None and longest is not None:
        return Segments(boundaries, longest, arguments.get("prefixes"))
    if position_ids is None:
        return Segments.of([length])
    starts = (position_ids[0].diff() != 1).nonzero().squeeze(1).add(1).tolist()
    lengths = [stop - start for start, stop in pairwise([0, *starts, length])]
    return Segments.of(lengths).to(position_ids.device)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_ids: Tensor | None = None,
    *,
    gpu_kernel: bool = True,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """query [1, heads, t, head_dim] -> [1, t, heads, head_dim]. The signature is that of transformers'
    attention functions.

    Everything that is not a whole pack (a mask, several rows, a cache) uses ordinary sdpa.
    """
    _refuse_unknown(module, kwargs)
    if "sliding_window" in kwargs:
        _passes_window.add(type(getattr(module, "config", None)))
    # An argument that is None leaves the choice to the module, as in transformers.
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    length = query.shape[2]
    is_pack = attention_mask is None and causal and len(query) == 1 and length == key.shape[2]
    segments = _segments(kwargs, position_ids, length) if is_pack else None
    window = None if segments is None else _window(kwargs.get("sliding_window"), segments)
    # One segment without a window is what sdpa computes by itself.
    if segments is None or (len(segments.boundaries) == 2 and window is None):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask,
            dropout=dropout, scaling=scaling, is_causal=is_causal, **kwargs,
        )  # fmt: skip
    # Both kernels take the tokens first: [t, heads, head_dim].
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    # Queries and keys are cut at the same places, so every bound is given twice.
    bounds = (segments.boundaries, segments.boundaries, segments.longest, segments.longest)
    settings: dict[str, Any] = {
        "scale": scaling,
        "window_size": CAUSAL if window is None else (window - 1, 0),
        "enable_gqa": q.shape[1] != k.shape[1],
    }
    dtype = _precision(value)
    gpu_kernel = gpu_kernel and segments.prefixes is None  # a prefix is not next to its segment in the row
    reason = why_not_kernel(q, v, dtype, dropout) if gpu_kernel else "student.attention=sdpa"
    if reason is None:
        output = varlen_attn(q.to(dtype), k.to(dtype), v.to(dtype), *bounds, **settings)
        assert isinstance(output, Tensor)  # a pair only if the log-sum-exp is requested
    else:
        if gpu_kernel and query.is_cuda:
            _report(reason)
        output = sdpa_per_segment(q, k, v, *bounds, **settings, dropout=dropout, prefixes=segments.prefixes)
    return output[None], None


def _window(sliding_window: int | None, segments: Segments) -> int | None:
    """The sliding window, if any segment is longer. Otherwise it hides nothing, and the causal kernel is
    faster.
    """
    hides = sliding_window is not None and sliding_window < segments.longest
    return sliding_window if hides else None


def _precision(value: Tensor) -> torch.dtype:
    """The precision that attention runs in. Custom kernels are not part of autocast, and rotary embeddings
    return float32.
    """
    kind = value.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else value.dtype


def why_not_kernel(query: Tensor, value: Tensor, dtype: torch.dtype, dropout: float) -> str | None:
    """The reason why PyTorch's variable-length kernel cannot be used in this call; None if it can."""
    if not _has_kernel(query.device):
        return f"the device {query.device} does not support it (it needs an Ampere GPU or newer)"
    if dtype not in (torch.bfloat16, torch.float16):
        return f"the precision is {str(dtype).removeprefix('torch.')}, not bfloat16 or float16"
    if dropout:
        return f"attention dropout is {dropout:g}"
    size = query.shape[-1]
    if size != value.shape[-1] or size % 8 or size > LARGEST_HEAD:
        return f"the head dimensions of queries and values are {size} and {value.shape[-1]}"
    return None


@cache
def _has_kernel(device: torch.device) -> bool:
    return (
        device.type == "cuda"
        and torch.backends.cuda.is_flash_attention_available()
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )


@cache
def _report(reason: str) -> None:
    """Log a reason once."""
    log.warning(
        "PyTorch's variable-length attention is not used: %s. Using one sdpa call per trajectory.", reason
    )


def _refuse_unknown(module: nn.Module, kwargs: dict[str, Any]) -> None:
    """Attention with a soft cap, sinks or position biases is a different function, which sdpa would
    silently not compute.
    """
    extras = {
        "softcap": "a soft cap on attention scores",
        "s_aux": "attention sinks",
        "position_bias": "position biases",
    }
    for name, feature in extras.items():
        if kwargs.get(name) is not None:
            raise LarkError(
                f"{type(module).__name__} has {feature}, which sdpa and varlen attention do not compute: set "
                "student.attention=eager, or on a GPU an implementation that does."
            )


def packed_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    **kwargs: Any,
) -> Tensor | None:
    """None if `packed_attention` needs no mask. Padding, a cache or another pattern need sdpa's, which also
    separates packs.

    A sliding window needs no mask if the model's layers pass it to the attention function. Not all families
    do: whether this one does is known after its first forward pass.
    """
    config = kwargs.get("config")
    is_models = local_size == getattr(config, "sliding_window", None)
    applies_window = batch_size == 1 and is_models and type(config) in _passes_window
    is_causal = attention_mask is None and q_length == kv_length and not use_vmap
    if is_causal and (local_size is None or applies_window):
        return None
    return sdpa_mask(
        batch_size=batch_size, q_length=q_length, kv_length=kv_length,
        attention_mask=attention_mask, local_size=local_size, use_vmap=use_vmap, **kwargs,
    )  # fmt: skip


AttentionInterface.register(VARLEN, packed_attention)
AttentionInterface.register(SEGMENTS, partial(packed_attention, gpu_kernel=False))
for _name in (VARLEN, SEGMENTS):
    AttentionMaskInterface.register(_name, packed_mask)
