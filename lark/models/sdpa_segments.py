"""Causal attention within each segment of a pack, by one call of the sdpa kernel per segment.

The same function and arguments as `torch.nn.attention.varlen.varlen_attn`, on any device and in any
precision.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

CAUSAL = (-1, 0)
"""`window_size`, in tokens before and after the query: everything before it, nothing after it."""
SMALLEST_BLOCK = 256
"""Queries that share a call of the sdpa kernel if there is a sliding window."""


def sdpa_per_segment(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = CAUSAL,
    enable_gqa: bool = False,
    dropout: float = 0.0,
    prefixes: Sequence[Tensor] | None = None,
) -> Tensor:
    """`varlen_attn` on any device and in any precision: query [T, heads, d], key and value [T, kv_heads, d]
    -> [T, heads, d].

    The same arguments, for causal attention of segments that are the same in queries and keys. `max_q` and
    `max_k` are not needed. Costs Σ t_i² (with a window w: Σ t_i w) and holds no mask of a whole segment.

    `prefixes`: attention of a segment's prefix is computed again and left out, because the causal kernel
    needs as many queries as keys. That is cheap compared with the layers' matrix products, which run on a
    shared prefix once.
    """
    edges = list(pairwise(cu_seq_q.tolist()))
    if prefixes is None:
        prefixes = [torch.arange(0, device=query.device)] * len(edges)
    outputs = []
    for (start, stop), prefix in zip(edges, prefixes, strict=True):
        before = len(prefix)
        size = before + stop - start
        q, k, v = (_rows(x, prefix, start, stop).transpose(0, 1)[None] for x in (query, key, value))
        if 0 <= window_size[0] < size - 1:
            attended = _windowed_sdpa(q, k, v, window_size[0] + 1, scale, enable_gqa, dropout)
        else:
            attended = scaled_dot_product_attention(
                q, k, v, dropout_p=dropout, is_causal=size > 1, scale=scale, enable_gqa=enable_gqa
            )
        outputs.append(attended[0].transpose(0, 1)[before:])
    return torch.cat(outputs)


def _rows(x: Tensor, prefix: Tensor, start: int, stop: int) -> Tensor:
    """A segment after its prefix. Without a prefix it is a view, not a copy."""
    return torch.cat([x[prefix], x[start:stop]]) if len(prefix) else x[start:stop]


def _windowed_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: int,
    scale: float | None,
    enable_gqa: bool,
    dropout: float,
) -> Tensor:
    """Causal attention of [1, heads, n, d] to the last `window` tokens, in blocks of queries with the keys
    that they see.
    """
    if enable_gqa:  # with a mask, kernels need as many keys as queries
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    length = query.shape[2]
    # A block also needs the keys of one window before it, so smaller blocks would read most keys repeatedly.
    block = max(window, SMALLEST_BLOCK)
    outputs = []
    for start in range(0, length, block):
        stop = min(length, start + block)
        first = max(0, start - window + 1)
        queries = torch.arange(start, stop, device=query.device)[:, None]
        keys = torch.arange(first, stop, device=query.device)
        mask = (keys <= queries) & (keys > queries - window)
        q = query[:, :, start:stop]
        k = key[:, :, first:stop]
        v = value[:, :, first:stop]
        outputs.append(scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale))
    return torch.cat(outputs, dim=2)
