"""Per-token statistics of the student's predictions, exact over the whole vocabulary, without ever holding all logits.

With z the logits at a position, y the token of the trajectory there (the gold token) and π = softmax(z), one sweep over the
vocabulary gives everything that any forward-pass method needs: surprisal, residual ||π - e_y||², rank, and their relatives.

Tiles. Tokens × vocabulary is visited in tiles of a size that stays in cache, vocabulary outside and tokens inside, so that each
part of the head is read from memory once. A tile is one matrix product followed by one reduction, which keeps five numbers for
each token. The reduction has three implementations behind one signature, `absorb_tile`: plain PyTorch, the same compiled, and
a CUDA kernel.

No cancellation. The sums run over the wrong tokens v != y only, relative to *their* running maximum m:
s1 = Σ exp(z_v - m), s2 = Σ exp(2(z_v - m)). Then ω = m - z_y + log s1 is the log odds of "wrong" against "gold", and
surprisal = log(1 + e^ω), π_y = 1/(1 + e^ω), 1 - π_y = 1/(1 + e^-ω), Σ_{v != y} π_v² = (1 - π_y)² s2/s1² hold to full precision
whether π_y is 1 - 1e-7 or 1e-30. A sum over all v would lose 1 - π_y, on which the residual of a well-known token depends.

The gold logit. The rank compares z_y with logits in tiles that may come before y's own, so z_y is needed first; but a dot product
h·w_y rounds differently from the tile's matrix product (90% of the time), which turns exact ties into differences. So z_y is first
taken from the diagonal of a matrix product of the same kind, tokens × their own gold rows, which rounds as the tile does. When
y's tile comes by, its own value is read and compared bit for bit; a block of tokens where any differs (never seen
beyond single-token calls) is swept again with the values read. Ranks and ties are thus those of the tile's logits, always.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from lark.errors import LarkError
from lark.scoring.head import Head

log = logging.getLogger(__name__)

Backend = Literal["auto", "torch", "eager", "triton"]
Absorb = Callable[[Tensor, Tensor, Tensor], Tensor]

CPU_TILE = 1024
"""Tokens and words of a tile on a CPU: 4 MiB of logits, which stay in cache, and a matrix product as fast as the whole one.
Of eight shapes from 256 × 1,024 to 2,048 × 1,024 the fastest with and without a compiler, within noise."""

COMPILE_FROM = 16_384
"""Smallest vocabulary for which "auto" compiles: below, the head is so cheap that compiling (up to 20 s once) costs more. A call
with less than one tile of tokens is not compiled either: a compiled tile has a fixed shape, and the padding would cost more."""


@dataclass(frozen=True)
class TokenStatistics:
    """One number for each of T tokens."""

    surprisal: Tensor
    """-log π_y, fp32. Infinite where the model gives the token probability zero (a masked logit)."""
    residual: Tensor
    """||π - e_y||², the Brier score of the token, fp32."""
    sum_p2: Tensor
    """Σ_v π_v², fp32."""
    p_gold: Tensor
    """π_y, fp32."""
    wrong_p2: Tensor
    """Σ_{v != y} π_v², the concentration on wrong tokens, fp32."""
    rank: Tensor
    """1 + #{v: z_v > z_y}, int32."""
    ties: Tensor
    """#{v != y: z_v = z_y}, int32: the rank under another tie rule lies between rank and rank + ties."""


@dataclass(frozen=True)
class Tiling:
    """How tiles are cut and what reduces them. `fixed`: the reduction was compiled for exactly this shape."""

    rows: int
    columns: int
    absorb: Absorb
    fixed: bool = False

    def fitted(self, n_tokens: int, vocabulary: int) -> "Tiling":
        """Tiles of nearly equal size, no larger than these, so that little of the last ones is padding."""
        if self.fixed:
            return self
        return replace(self, rows=_even(max(1, n_tokens), self.rows), columns=_even(vocabulary, self.columns))


def _even(n: int, limit: int) -> int:
    """The size of the fewest nearly equal parts of n, each at most `limit`; a multiple of 64, which matrix products like."""
    parts = -(-n // limit)
    size = -(-n // parts)
    return size if parts == 1 else min(limit, -(-size // 64) * 64)


@torch.no_grad()
def token_statistics(hidden: Tensor, targets: Tensor, head: Head, backend: Backend = "auto") -> TokenStatistics:
    """Statistics of the tokens `targets` [T] as predicted from the hidden states `hidden` [T, d] before them.

    Backends differ in speed only: "eager"; "torch", which compiles the reduction and falls back to eager where that fails;
    "triton" on a GPU; "auto" picks.
    """
    return tiled_statistics(hidden, targets, head, _tiling(backend, hidden, head))


def tiled_statistics(hidden: Tensor, targets: Tensor, head: Head, tiling: Tiling) -> TokenStatistics:
    """`token_statistics` with tiles of your own."""
    _check_inputs(hidden, targets, head)
    tiling = tiling.fitted(len(targets), head.vocabulary)
    blocks = [slice(i, min(i + tiling.rows, len(targets))) for i in range(0, len(targets), tiling.rows)]
    gold = hidden.new_empty(len(targets), dtype=torch.float32)
    for b in blocks:
        gold[b] = head.rows(targets[b]).logits(hidden[b]).diagonal()
    state, seen = _sweep(hidden, targets, gold, head, tiling, blocks)
    for b in blocks:
        if not torch.equal(seen[b], gold[b]):
            again, _ = _sweep(hidden, targets, seen, head, tiling, [b])
            state[:, b] = again[:, b]
    # Columns that hold -inf without being masked by the model: the padding of the last tile, and the gold token's own.
    statistics = _finish(state, seen, n_masked=-head.vocabulary % tiling.columns + 1)
    _check_bounds(statistics, head)
    return statistics


def absorb_tile(logits: Tensor, gold: Tensor, state: Tensor) -> Tensor:
    """Add a tile of wrong tokens' logits [R, C] to `state` [5, R] = (m, s1, s2, #{z > gold}, #{z = gold}), with `gold` [R].

    Within a tile everything is fp32. The state is fp64, so that rounding does not add up from tile to tile. Comparisons go to
    fp32 directly: in eager mode a sum over bool is four times as slow. All temporaries are local: the compiler fuses them away.
    """
    m, s1, s2, above, ties = state.unbind()
    new_m = torch.maximum(m.float(), logits.amax(1))
    shrink = torch.exp(m - new_m)
    e = (logits - new_m[:, None]).exp_()
    flags = torch.empty_like(logits)
    return torch.stack(
        [
            new_m,
            s1 * shrink + e.sum(1),
            s2 * shrink * shrink + torch.mul(e, e, out=flags).sum(1),
            above + torch.gt(logits, gold[:, None], out=flags).sum(1),
            ties + torch.eq(logits, gold[:, None], out=flags).sum(1),
        ]
    )


def _tiling(backend: Backend, hidden: Tensor, head: Head) -> Tiling:
    """The tiles of a backend. On a GPU a tile of 4,096 × 4,096 fp32 logits is 64 MiB, and the gold logits' product as much."""
    if backend == "auto":
        worth_compiling = head.vocabulary >= COMPILE_FROM and len(hidden) >= CPU_TILE
        backend = "triton" if hidden.is_cuda else "torch" if worth_compiling else "eager"
    if backend == "triton":
        from lark.scoring.triton_kernel import absorb_tile as absorb_on_gpu  # noqa: PLC0415 (Triton may be absent on CPU)

        return Tiling(4096, 4096, absorb_on_gpu)
    if hidden.is_cuda:
        return Tiling(2048, 4096, absorb_tile)
    compiled = _compiled() if backend == "torch" else None
    return compiled or Tiling(CPU_TILE, CPU_TILE, absorb_tile)


@cache
def _compiled() -> Tiling | None:
    """The CPU tiling with a compiled reduction, compiled for one shape and tried once; None where it cannot be compiled."""
    absorb = torch.compile(absorb_tile, fullgraph=True, dynamic=False)
    try:
        absorb(torch.zeros(CPU_TILE, CPU_TILE), torch.zeros(CPU_TILE), _new_state(CPU_TILE, torch.device("cpu")))
    except Exception as error:  # the compiler's failures have no common type
        log.warning("Scoring runs uncompiled, a little slower: %s", str(error).strip().split("\n")[0][:200])
        return None
    return Tiling(CPU_TILE, CPU_TILE, absorb, fixed=True)


def _new_state(n_tokens: int, device: torch.device) -> Tensor:
    """[5, T]. The maximum starts at the lowest finite number, not -inf: -inf - -inf would be NaN for masked logits."""
    state = torch.zeros(5, n_tokens, device=device, dtype=torch.float64)
    state[0] = torch.finfo(torch.float32).min
    return state


def _sweep(
    hidden: Tensor, targets: Tensor, gold: Tensor, head: Head, tiling: Tiling, blocks: list[slice]
) -> tuple[Tensor, Tensor]:
    """All tiles of these blocks of tokens: the final state [5, T], and the gold logits [T] as the tiles had them."""
    T, rows, columns = len(targets), tiling.rows, tiling.columns
    states = [_new_state(rows, hidden.device) for _ in blocks]
    references = [torch.nn.functional.pad(gold[b], (0, rows - (b.stop - b.start))) for b in blocks]
    seen = torch.full_like(gold, torch.nan)
    tile = torch.zeros(rows, columns, device=hidden.device)
    for start in range(0, head.vocabulary, columns):
        part = head.rows(slice(start, start + columns))
        tile[:, part.vocabulary :] = -torch.inf
        for i, b in enumerate(blocks):
            logits = part.logits(hidden[b], out=tile[: b.stop - b.start, : part.vocabulary])
            _take_gold(logits, targets[b] - start, seen[b])
            states[i] = tiling.absorb(tile, references[i], states[i])
    state = _new_state(T, hidden.device)
    for final, b in zip(states, blocks, strict=True):
        state[:, b] = final[:, : b.stop - b.start]
    return state, seen


def _take_gold(logits: Tensor, targets: Tensor, seen: Tensor) -> None:
    """Move the gold logits of a tile to `seen`, leaving -inf. `targets` count from the tile's first word. No GPU sync."""
    here = (targets >= 0) & (targets < logits.shape[1])
    column = targets.clamp(0, logits.shape[1] - 1)[:, None]
    value = logits.gather(1, column)[:, 0]
    seen.copy_(torch.where(here, value, seen))
    logits.scatter_(1, column, torch.where(here, -torch.inf, value)[:, None])


def _finish(state: Tensor, gold: Tensor, n_masked: int) -> TokenStatistics:
    """From sums over the wrong tokens to the statistics (module docstring), in fp64: T numbers cost nothing."""
    m, s1, s2, above, ties = state
    gold = gold.double()
    log_odds = m - gold + s1.log()
    p_gold, p_wrong = torch.sigmoid(-log_odds), torch.sigmoid(log_odds)
    wrong_p2 = p_wrong.square() * torch.where(s1 > 0, s2 / s1.square(), 0)
    ties = torch.where(gold == -torch.inf, ties - n_masked, ties)
    return TokenStatistics(
        surprisal=torch.logaddexp(log_odds, torch.zeros_like(log_odds)).float(),
        residual=(p_wrong.square() + wrong_p2).float(),
        sum_p2=(p_gold.square() + wrong_p2).float(),
        p_gold=p_gold.float(),
        wrong_p2=wrong_p2.float(),
        rank=(1 + above).int(),
        ties=ties.int(),
    )


def _check_inputs(hidden: Tensor, targets: Tensor, head: Head) -> None:
    T, d = hidden.shape
    if targets.shape != (T,) or d != head.weight.shape[1]:
        raise LarkError(
            f"Hidden states {list(hidden.shape)}, targets {list(targets.shape)} and LM head {list(head.weight.shape)} do not "
            "fit: [T, d], [T] and [V, d] are expected."
        )
    if T and not (int(targets.min()) >= 0 and int(targets.max()) < head.vocabulary):
        raise LarkError(
            f"Token ids from {int(targets.min())} to {int(targets.max())} do not fit the LM head's {head.vocabulary} words. "
            "Check that the tokenizer belongs to the student, and that only response tokens are scored."
        )


def _check_bounds(statistics: TokenStatistics, head: Head) -> None:
    """What must hold whatever the model says; NaN fails every comparison."""
    ok = (
        (statistics.surprisal >= 0)
        & (statistics.residual >= 0)
        & (statistics.residual <= 2 + 1e-6)
        & (statistics.rank >= 1)
        & (statistics.rank <= head.vocabulary)
    )
    if not bool(ok.all()):
        bad = (~ok).nonzero()[:, 0]
        raise LarkError(
            f"The student's logits or hidden states are not finite (NaN or infinite) for {len(bad)} of {len(ok)} tokens, the "
            f"first at position {int(bad[0])}. Check the checkpoint, or load it in bfloat16 or float32 instead of float16."
        )
