"""The reduction of one tile of logits as a CUDA kernel.

Why the matrix product is left to cuBLAS and not fused into this kernel. Per logit an A100 spends 2d FLOP in the product, at
about 250 TFLOP/s 12 ps for d = 1,536 and 29 ps for d = 3,584. Writing the logit in fp32 and reading it once is 8 bytes, 4-5 ps
from main memory at 1.6-2 TB/s and less where the 40 MB L2 cache helps. A fused kernel saves that, but its accumulator tile and
the exponentials compete for registers, and a hand-written product at 75% of cuBLAS loses 4 ps at d = 1,536 and 10 ps at 3,584.
So the two are equal for the smallest student and the split is faster for larger ones; it also shares the head (bias, scale,
soft cap), the tiling and the gold logit with the CPU code, so what the tests check here is what runs there. The head is 6-14%
of the backbone for the paper's students, and this reduction reads each logit once: about 1% of the backbone or less.

The tile is fp32, not bf16: bf16 would halve the traffic and make false ties (see `Head.logits`).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _absorb(logits, gold, state, new_state, row_stride, n_rows, n_columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program per token: its row of the tile stays in registers, so every logit is read once."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    z = tl.load(logits + row * row_stride + column, mask=column < n_columns, other=-float("inf"))
    z_gold = tl.load(gold + row)
    old_max = tl.load(state + row).to(tl.float32)
    new_max = tl.maximum(old_max, tl.max(z, axis=0))
    shrink = tl.exp(old_max - new_max)
    e = tl.exp(z - new_max)
    s1 = tl.load(state + n_rows + row) * shrink + tl.sum(e, axis=0)
    s2 = tl.load(state + 2 * n_rows + row) * shrink * shrink + tl.sum(e * e, axis=0)
    above = tl.load(state + 3 * n_rows + row) + tl.sum((z > z_gold).to(tl.float32), axis=0)
    ties = tl.load(state + 4 * n_rows + row) + tl.sum(((z == z_gold) & (column < n_columns)).to(tl.float32), axis=0)
    tl.store(new_state + row, new_max)
    tl.store(new_state + n_rows + row, s1)
    tl.store(new_state + 2 * n_rows + row, s2)
    tl.store(new_state + 3 * n_rows + row, above)
    tl.store(new_state + 4 * n_rows + row, ties)


def absorb_tile(logits: Tensor, gold: Tensor, state: Tensor) -> Tensor:
    """`lark.scoring.statistics.absorb_tile` on a GPU: the same arguments, the same result."""
    n_rows, n_columns = logits.shape
    assert logits.stride(1) == 1 and gold.is_contiguous() and state.is_contiguous()
    new_state = torch.empty_like(state)
    block = triton.next_power_of_2(n_columns)
    _absorb[(n_rows,)](
        logits,
        gold,
        state,
        new_state,
        logits.stride(0),
        n_rows,
        n_columns,
        BLOCK=block,
        num_warps=8 if block >= 2048 else 4,
    )
    return new_state
