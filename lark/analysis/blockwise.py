"""Causal attention over blocks of queries, for forward-mode derivatives: no fused kernel supports them, and
the plain formula's [heads, T, T] scores take 60 GiB per layer at T = 20,000. A block's scores are [heads,
BLOCK, T].
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AttentionInterface

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BLOCKWISE = "lark_blockwise"
"""Name of this implementation in transformers."""
BLOCK = 256
"""Queries per block."""


def blockwise_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """softmax(scale · q kᵀ) v for q [b, heads, T, d] and k, v with as many heads or fewer; [b, T, heads, d].

    Transformers creates no mask for an attention function that it does not know: causality and the window
    are applied here.
    """
    T = query.shape[2]
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    queries_per_key = query.shape[1] // key.shape[1]
    key = key.repeat_interleave(queries_per_key, dim=1)
    value = value.repeat_interleave(queries_per_key, dim=1)
    position = torch.arange(T, device=query.device)
    outputs = []
    for start in range(0, T, BLOCK):
        stop = min(T, start + BLOCK)
        scores = query[:, :, start:stop] @ key[:, :, :stop].transpose(2, 3) * scale
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        distance = position[start:stop, None] - position[None, :stop]
        visible = distance >= 0
        if sliding_window is not None:
            visible &= distance < sliding_window
        scores = scores.masked_fill(~visible, float("-inf"))
        # Half precision would lose the small weights of long rows.
        weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
        outputs.append(weights.to(value.dtype) @ value[:, :, :stop])
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous(), None


AttentionInterface.register(BLOCKWISE, blockwise_attention)


@contextmanager
def forward_mode(model: "PreTrainedModel") -> Iterator[None]:
    """The model with this attention and without recomputed activations, which forward mode does not need."""
    attention = model.config._attn_implementation
    training = model.training
    model.set_attn_implementation(BLOCKWISE)
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.set_attn_implementation(attention)
        model.train(training)
