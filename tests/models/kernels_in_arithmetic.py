"""FlashAttention's two operators of PyTorch, which exist on GPUs only, as plain arithmetic for the CPU.

With these, `torch.nn.attention.varlen.varlen_attn` runs on the CPU: its own arguments, dispatch and
autograd formula are real, only the arithmetic below them is this file's. It is written from the operators'
definition, in float64, with one mask for the whole pack; the backward pass is FlashAttention's, from the
saved log-sum-exp, and does not use autograd.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def _scores(
    query: Tensor,
    key: Tensor,
    cum: Tensor,
    causal: bool,
    scale: float | None,
    left: int | None,
    right: int | None,
) -> Tensor:
    """[heads, T, T] in float64; -inf where a query does not see a key."""
    position = torch.arange(len(query))
    owner = torch.bucketize(position, cum[1:].long(), right=True)
    distance = position[:, None] - position[None, :]
    seen = owner[:, None] == owner[None, :]
    if causal or (right is not None and right >= 0):
        seen &= distance >= -(0 if causal else right)  # type: ignore[operator]
    if left is not None and left >= 0:
        seen &= distance <= left
    wide = key.double().repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scores = torch.einsum("qhd,khd->hqk", query.double(), wide) * (scale or query.shape[-1] ** -0.5)
    return scores.masked_fill(~seen, -torch.inf)


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_q: Tensor,
    cum_k: Tensor,
    max_q: int,
    max_k: int,
    dropout: float,
    causal: bool,
    debug: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    check(query, key, value, cum_q, cum_k, max_q, max_k)
    scores = _scores(query, key, cum_q, causal, scale, window_size_left, window_size_right)
    lse = scores.logsumexp(-1)
    wide = value.double().repeat_interleave(query.shape[1] // value.shape[1], dim=1)
    output = torch.einsum("hqk,khd->qhd", (scores - lse[..., None]).exp(), wide)
    nothing = torch.empty(0)
    return output.to(query.dtype), lse.float(), nothing, nothing, nothing


def backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    lse: Tensor,
    cum_q: Tensor,
    cum_k: Tensor,
    max_q: int,
    max_k: int,
    dropout: float,
    causal: bool,
    rng: Tensor,
    unused: Tensor,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    check(query, key, value, cum_q, cum_k, max_q, max_k)
    groups = query.shape[1] // key.shape[1]
    scores = _scores(query, key, cum_q, causal, scale, window_size_left, window_size_right)
    p = (scores - lse.double()[..., None]).exp()
    wide_k, wide_v = (x.double().repeat_interleave(groups, dim=1) for x in (key, value))
    g = grad.double()
    delta = torch.einsum("qhd,qhd->hq", g, output.double())
    ds = p * (torch.einsum("qhd,khd->hqk", g, wide_v) - delta[..., None]) * (scale or query.shape[-1] ** -0.5)
    dq = torch.einsum("hqk,khd->qhd", ds, wide_k)
    dk = torch.einsum("hqk,qhd->khd", ds, query.double())
    dv = torch.einsum("hqk,qhd->khd", p, g)
    dk, dv = (x.unflatten(1, (key.shape[1], groups)).sum(2) for x in (dk, dv))
    return dq.to(query.dtype), dk.to(key.dtype), dv.to(value.dtype)


def check(
    query: Tensor, key: Tensor, value: Tensor, cum_q: Tensor, cum_k: Tensor, max_q: int, max_k: int
) -> None:
    """What the GPU operators require (ATen's flash_api.cpp)."""
    assert query.dtype == key.dtype == value.dtype and query.dtype in (torch.bfloat16, torch.float16)
    assert query.ndim == 3 and query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
    assert query.shape[-1] == value.shape[-1] <= 256 and query.shape[-1] % 8 == 0
    assert cum_q.dtype == cum_k.dtype == torch.int32 and cum_q.is_contiguous()
    assert int(cum_q[-1]) == len(query) == len(key) == len(value)
    assert isinstance(max_q, int) and max_q == max_k == int(cum_q.diff().max())


@contextmanager
def on_cpu() -> Iterator[None]:
    """Make `varlen_attn` work on the CPU."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("_flash_attention_forward", forward, "CPU")
        library.impl("_flash_attention_backward", backward, "CPU")
        yield
