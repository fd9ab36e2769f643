"""The reduction of one tile of logits as a CUDA kernel.

Why the matrix product is left to cuBLAS and not fused into this kernel. Per logit an A100 spends 2d FLOP in
the product: at 250 TFLOP/s 12 ps for d = 1,536, 25 ps for 3,072 and 29 ps for 3,584. Compared with a
forward pass that writes bf16 logits, writing them in fp32 and reading them here takes 6 more bytes, 3-4 ps
at 1.6-2 TB/s. A fused kernel saves that, but only if its own product reaches 80-90% of cuBLAS while its
accumulators share the registers with the exponentials, and that must be tuned on the machine. With separate
kernels the worst case is known: by calculation 1% of the backbone for the 7B student, 2% for the 3B, 5% for
the 1.5B; and the head (bias, scale, soft cap), the tiling and the gold logit use the same code that runs,
and is tested, on a CPU. The tile is fp32, not bf16: bf16 would halve the traffic and create false ties (see
`Head.logits`).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _absorb(logits, targets, gold, state, row_stride, n_rows, n_columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program per token: its row of the tile stays in registers, so every logit is read once."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < n_columns
    z = tl.load(logits + row * row_stride + column, mask=inside, other=-float("inf"))
    target = tl.load(targets + row)
    z_y = tl.sum(tl.where(column == target, z, 0.0), axis=0)
    tl.store(state + 5 * n_rows + row, z_y, mask=(target >= 0) & (target < n_columns))

    z = tl.where(column == target, -float("inf"), z)
    reference = tl.load(gold + row)
    old_max = tl.load(state + row).to(tl.float32)
    new_max = tl.maximum(old_max, tl.max(z, axis=0))
    shrink = tl.exp(old_max - new_max)
    e = tl.exp(z - new_max)
    s1 = tl.load(state + n_rows + row) * shrink + tl.sum(e, axis=0)
    s2 = tl.load(state + 2 * n_rows + row) * shrink * shrink + tl.sum(e * e, axis=0)
    above = tl.load(state + 3 * n_rows + row) + tl.sum((z > reference).to(tl.float32), axis=0)
    ties = tl.load(state + 4 * n_rows + row) + tl.sum(((z == reference) & inside).to(tl.float32), axis=0)
    tl.store(state + row, new_max)
    tl.store(state + n_rows + row, s1)
    tl.store(state + 2 * n_rows + row, s2)
    tl.store(state + 3 * n_rows + row, above)
    tl.store(state + 4 * n_rows + row, ties)


def absorb_tile(logits: Tensor, targets: Tensor, gold: Tensor, state: Tensor) -> None:
    """`lark.scoring.tiles.Absorb` in one launch. Unlike the PyTorch version, it does not modify the
    tile.
    """
    n_rows, n_columns = logits.shape
    assert (
        logits.stride(1) == 1 and targets.is_contiguous() and gold.is_contiguous() and state.is_contiguous()
    )
    block = triton.next_power_of_2(n_columns)
    # 16 to 32 logits per thread: enough loads in flight, no spilled registers.
    warps = min(16, max(4, block // 512))
    with torch.cuda.device_of(logits):  # Triton launches on the current device, wherever the tensors are
        _absorb[(n_rows,)](
            logits, targets, gold, state, logits.stride(0), n_rows, n_columns, BLOCK=block, num_warps=warps
        )
