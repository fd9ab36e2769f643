"""Tiles of tokens × vocabulary: their sizes, and the reductions that add a tile to the state of a sweep
(statistics.py).

The reduction has three implementations behind one signature, `Absorb`: plain PyTorch, the same compiled, and
a CUDA kernel. They differ in speed only.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal

import torch
from torch import Tensor

from lark.errors import first_line
from lark.models.head import Head
from lark.scoring.distribution import Weigh, weigh_tile

log = logging.getLogger(__name__)

Backend = Literal["auto", "torch", "eager", "triton"]
Absorb = Callable[[Tensor, Tensor, Tensor, Tensor], None]
"""(logits [R, C], targets [R], gold [R], state [6, R]): add a tile to the state in place.

`targets` count from the tile's first word and may be outside the tile. `gold` is the logit that the rank
compares with. The state is (m, s1, s2, #{v != y: z_v > gold}, #{v != y: z_v = gold}, z_y), in fp64 so that
rounding does not add up over tiles.
"""

CPU_TILE = 1024
"""Tokens and words of a tile on a CPU: 4 MiB of logits, which stay in cache, and a matrix product as fast
as the whole one. The fastest of nine shapes from 256 × 1,024 to 2,048 × 1,024, within noise, compiled and
not compiled.
"""

KERNEL_TILE = (4096, 8192)
"""Tokens and words of a tile of the CUDA kernel: 128 MiB of logits."""

GPU_TILE = (2048, 4096)
"""Tokens and words of a tile on a GPU without the kernel: 32 MiB of logits."""

COMPILE_FROM = 16_384
"""Smallest vocabulary for which "auto" compiles: below it, the head is so cheap that compiling (up to 20 s
once) costs more. A call with fewer tokens than one tile is not compiled either: a compiled tile has a fixed
shape, and the padding would cost more.
"""


@dataclass(frozen=True)
class Tiling:
    """The size of tiles and their reductions. `fixed`: the reductions were compiled for just this shape."""

    rows: int
    columns: int
    absorb: Absorb
    fixed: bool = False
    weigh: Weigh = weigh_tile

    def fitted(self, n_tokens: int, vocabulary: int) -> "Tiling":
        """Tiles of nearly equal size, no larger than these, so that little of the last ones is padding."""
        if self.fixed:
            return self
        return replace(self, rows=_even(max(1, n_tokens), self.rows), columns=_even(vocabulary, self.columns))


def _even(n: int, limit: int) -> int:
    """The size of the fewest nearly equal parts of n, each at most `limit`; if several, multiples of 64."""
    parts = -(-n // limit)
    size = -(-n // parts)
    return size if parts == 1 else min(limit, -(-size // 64) * 64)


def absorb_tile(logits: Tensor, targets: Tensor, gold: Tensor, state: Tensor) -> None:
    """`Absorb` in plain PyTorch. Gold logits are moved from the tile to the state, so that only wrong ones
    are reduced.
    """
    _absorb(_reduce, logits, targets, gold, state)


def _absorb(
    reduce: Callable[..., Tensor], logits: Tensor, targets: Tensor, gold: Tensor, state: Tensor
) -> None:
    here = (targets >= 0) & (targets < logits.shape[1])
    column = targets.clamp(0, logits.shape[1] - 1)[:, None]
    value = logits.gather(1, column)[:, 0]
    logits.scatter_(1, column, torch.where(here, -torch.inf, value)[:, None])
    state[5] = torch.where(here, value, state[5])
    state[:5] = reduce(logits, gold, state[:5])


def _reduce(logits: Tensor, gold: Tensor, state: Tensor) -> Tensor:
    """The first five numbers of the state with a tile of wrong tokens' logits added.

    Comparisons go to fp32 directly: in eager mode a sum over bool is four times as slow. All temporaries
    are local, so that the compiler fuses them away.
    """
    m, s1, s2, above, ties = state.unbind()
    new_m = torch.maximum(m.float(), logits.amax(1))
    shrink = torch.exp(m - new_m)
    e = (logits - new_m[:, None]).exp_()
    scratch = torch.empty_like(logits)
    return torch.stack(
        [
            new_m,
            s1 * shrink + e.sum(1),
            s2 * shrink * shrink + torch.mul(e, e, out=scratch).sum(1),
            above + torch.gt(logits, gold[:, None], out=scratch).sum(1),
            ties + torch.eq(logits, gold[:, None], out=scratch).sum(1),
        ]
    )


def new_states(n_blocks: int, rows: int, device: torch.device) -> Tensor:
    """[n_blocks, 6, rows]. m starts at the lowest finite number: with masked logits, -inf - -inf would be
    NaN.
    """
    states = torch.zeros(n_blocks, 6, rows, device=device, dtype=torch.float64)
    states[:, 0] = torch.finfo(torch.float32).min
    states[:, 5] = torch.nan
    return states


def choose_tiling(backend: Backend, hidden: Tensor, head: Head) -> Tiling:
    """The tiles of a backend. On a GPU they are large, for few launches: 128 MiB, after 64 MiB for the gold
    logits.
    """
    if backend == "auto":
        backend = _fastest(hidden, head)
    if backend == "triton":
        from lark.scoring import triton_kernel  # noqa: PLC0415 (Triton may be absent where there is no GPU)

        return Tiling(*KERNEL_TILE, triton_kernel.absorb_tile)
    if hidden.is_cuda:
        return Tiling(*GPU_TILE, absorb_tile)
    compiled = _compiled() if backend == "torch" else None
    return compiled or Tiling(CPU_TILE, CPU_TILE, absorb_tile)


def _fastest(hidden: Tensor, head: Head) -> Backend:
    if hidden.is_cuda:
        return "triton" if _kernel_runs(hidden.device) else "eager"
    is_worthwhile = head.vocabulary >= COMPILE_FROM and len(hidden) >= CPU_TILE
    return "torch" if is_worthwhile else "eager"


@cache
def _kernel_runs(device: torch.device) -> bool:
    """True if the CUDA kernel can be compiled and run on this device, tried once on one row. Triton needs a
    C compiler.
    """
    logits = torch.zeros(1, KERNEL_TILE[1], device=device)
    target = torch.zeros(1, dtype=torch.int64, device=device)
    try:
        from lark.scoring import triton_kernel  # noqa: PLC0415

        triton_kernel.absorb_tile(logits, target, logits[:, 0].clone(), new_states(1, 1, device)[0])
    except Exception as error:  # the compiler's failures have no common type
        log.warning(
            "Scoring runs without its Triton kernel, on PyTorch alone, which is slower: %s",
            first_line(error)[:200],
        )
        return False
    return True


@cache
def _compiled() -> Tiling | None:
    """The CPU tiling with a compiled reduction, tried once; None where it cannot be compiled."""
    state = new_states(1, CPU_TILE, torch.device("cpu"))[0]
    reduce = compiled_for(_reduce, torch.zeros(CPU_TILE, CPU_TILE), torch.zeros(CPU_TILE), state[:5])
    if reduce is None:
        return None
    weigh = torch.compile(weigh_tile, fullgraph=True, dynamic=False)  # compiled when it is first used
    return Tiling(CPU_TILE, CPU_TILE, partial(_absorb, reduce), fixed=True, weigh=weigh)


def compiled_for(function: Callable[..., Any], *example: Tensor) -> Callable[..., Any] | None:
    """A function compiled for the shapes of an example. None where it cannot be compiled."""
    compiled = torch.compile(function, fullgraph=True, dynamic=False)
    try:
        compiled(*example)
    except Exception as error:  # the compiler's failures have no common type
        log.warning("Scoring runs uncompiled, a little slower: %s", str(error).strip().split("\n")[0][:200])
        return None
    return compiled
