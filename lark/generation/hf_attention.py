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

BLOCKS = "sdpa_blocks"
"""Name of this attention in transformers."""
BLOCK_ROWS = 64
Blocks: TypeAlias = Sequence[tuple[int, int, int]]
"""First row, row after the last, and columns."""


def read_in_blocks(model: PreTrainedModel) -> bool:
    """Make `sdpa` on CPU read the cache in blocks. False if the model cannot: it must then not be given
    `blocks`.
    """
    is_sdpa = model.device.type == "cpu" and model.config._attn_implementation == "sdpa"
    if not is_sdpa or not takes_keywords(type(model).forward):
        return False
    model.set_attn_implementation(BLOCKS)
    return True


def blocks_of(lengths: Sequence[int]) -> Blocks:
    """Blocks of rows with this many tokens."""
    blocks = []
    for start in range(0, len(lengths), BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, len(lengths))
        blocks.append((start, stop, max(lengths[start:stop])))
    return blocks


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
    parts = []
    for start, stop, columns in blocks:
        rows = slice(start, stop)
        k = key[rows, :, -columns:]
        v = value[rows, :, -columns:]
        mask = attention_mask[rows, ..., -columns:]
        parts.append(sdpa_attention_forward(module, query[rows], k, v, mask, **kwargs)[0])
    return torch.cat(parts), None


AttentionInterface.register(BLOCKS, block_attention)
AttentionMaskInterface.register(BLOCKS, sdpa_mask)
