"""Attention of new tokens to the KV cache of the hf engine, in blocks of rows.

Rows of a batch are aligned on the right and have different ages, so about half of a cache is padding. On
CPU the time of a new token's attention is that of reading the cache: each block of rows reads only as many
columns as its longest row has.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from lark.models.varlen import takes_keywords

NAME = "sdpa_blocks"
ROWS = 64
"""Rows of a block."""
Blocks: TypeAlias = Sequence[tuple[int, int, int]]
"""First row, row after the last, and columns."""


def read_in_blocks(model: PreTrainedModel) -> bool:
    """Make `sdpa` on CPU read the cache in blocks. Whether the model passes `blocks_of` on to its
    attention.
    """
    if (
        model.device.type != "cpu"
        or model.config._attn_implementation != "sdpa"
        or not takes_keywords(type(model).forward)
    ):
        return False
    model.set_attn_implementation(NAME)
    return True


def blocks_of(lengths: Sequence[int]) -> Blocks:
    """Blocks of rows with this many tokens."""
    starts = range(0, len(lengths), ROWS)
    return [(start, min(start + ROWS, len(lengths)), max(lengths[start : start + ROWS])) for start in starts]


def block_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    blocks: Blocks | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """query [b, heads, t, head_dim] -> [b, t, heads, head_dim]. The signature is that of transformers'
    attention functions.
    """
    if blocks is None or attention_mask is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    parts = [
        sdpa_attention_forward(
            module,
            query[first:end],
            key[first:end, :, -columns:],
            value[first:end, :, -columns:],
            attention_mask[first:end, ..., -columns:],
            **kwargs,
        )[0]
        for first, end, columns in blocks
    ]
    return torch.cat(parts), None


AttentionInterface.register(NAME, block_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
