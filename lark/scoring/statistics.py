"""Per-token statistics of the student's predictions, exact over the whole vocabulary, without holding all
logits in memory.

With z the logits at a position, y the token of the trajectory there (the gold token) and π = softmax(z),
one sweep over the vocabulary gives everything that any forward-pass method needs: surprisal, residual ||π -
e_y||², rank, and their relatives.

Tiles. Tokens × vocabulary is processed in tiles that fit in cache. The outer loop is over the vocabulary
and the inner one over tokens, so that each part of the head is read from memory once. A tile is one matrix
product and one reduction, which keeps six numbers per token (tiles.py). Entropies and the most likely
tokens are added to the sweep only where they are asked for (distribution.py).

No cancellation. The sums run over the wrong tokens v != y only, relative to *their* running maximum m:

    s1 = Σ exp(z_v - m),  s2 = Σ exp(2 (z_v - m)),  ω = m - z_y + log s1  (the log odds of "wrong" against
    "gold"), surprisal = log(1 + e^ω),  π_y = 1/(1 + e^ω),  1 - π_y = 1/(1 + e^-ω),  Σ_{v != y} π_v² = (1 -
    π_y)² s2/s1²,

to full precision whether π_y is 1 - 1e-7 or 1e-30. A sum over all v would lose 1 - π_y, which determines
the residual of a token that the student predicts well.

The gold logit. The rank compares z_y with logits in tiles that may come before y's own, so z_y is needed
first; but a dot product h·w_y rounds differently from the tile's matrix product (90% of the time), which
turns exact ties into differences. So z_y is first taken from the diagonal of a matrix product of the same
kind, tokens × their own gold rows, which rounds as the tile does. When y's tile is processed, its value is
read and compared bit for bit; a block of tokens in which any value differs (seen only in single-token
calls) is swept again with the values read. Ranks and ties are therefore always those of the tile's logits.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from lark.errors import LarkError
from lark.models.head import Head
from lark.scoring.distribution import Collector, Distribution
from lark.scoring.tiles import Backend, Tiling, choose_tiling, new_states

CPU_GOLD = 256
"""Tokens × gold rows in the product whose diagonal is z_y. With 1,024 it would cost 2% of a head of 49,152
words.
"""


@dataclass(frozen=True)
class TokenStatistics:
    """Statistics of T tokens: each tensor has one number per token."""

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
    """#{v != y: z_v = z_y}, int32: the rank under another tie rule is between rank and rank + ties."""


@dataclass(frozen=True)
class DetailedStatistics(TokenStatistics, Distribution):
    """The same, with entropies and the most likely tokens."""


@torch.no_grad()
def token_statistics(
    hidden: Tensor, targets: Tensor, head: Head, backend: Backend = "auto"
) -> TokenStatistics:
    """Statistics of the tokens `targets` [T] as predicted from the hidden states `hidden` [T, d] before
    them.

    Backends differ in speed only: "eager"; "torch", which compiles the reduction and falls back to eager
    where that fails; "triton" on a GPU; "auto" picks.
    """
    return tiled_statistics(hidden, targets, head, choose_tiling(backend, hidden, head))


@torch.no_grad()
def detailed_statistics(
    hidden: Tensor, targets: Tensor, head: Head, n_alternatives: int, backend: Backend = "auto"
) -> DetailedStatistics:
    """The same with entropies and the `n_alternatives` most likely tokens (0: none), at most as many as the
    vocabulary has.
    """
    return tiled_details(hidden, targets, head, n_alternatives, choose_tiling(backend, hidden, head))


def tiled_statistics(hidden: Tensor, targets: Tensor, head: Head, tiling: Tiling) -> TokenStatistics:
    """`token_statistics` with a given tiling."""
    check_inputs(hidden, targets, head)
    tiling = tiling.fitted(len(targets), head.vocabulary)
    return _statistics(_swept(hidden, targets, head, tiling), head, tiling)


def tiled_details(
    hidden: Tensor, targets: Tensor, head: Head, n_alternatives: int, tiling: Tiling
) -> DetailedStatistics:
    """`detailed_statistics` with a given tiling."""
    check_inputs(hidden, targets, head)
    tiling = tiling.fitted(len(targets), head.vocabulary)
    n_blocks = -(-len(targets) // tiling.rows)
    collector = Collector(
        n_blocks, tiling.rows, min(n_alternatives, head.vocabulary), hidden.device, tiling.weigh
    )
    state = _swept(hidden, targets, head, tiling, collector)
    return DetailedStatistics(
        **vars(_statistics(state, head, tiling)), **vars(collector.finish(state, targets))
    )


def _swept(
    hidden: Tensor, targets: Tensor, head: Head, tiling: Tiling, collector: Collector | None = None
) -> Tensor:
    """The state [6, T] of all tokens, compared with the tiles' own gold logits (module docstring)."""
    blocks = [slice(i, min(i + tiling.rows, len(targets))) for i in range(0, len(targets), tiling.rows)]
    gold = hidden.new_empty(len(targets), dtype=torch.float32)
    for b in blocks:
        parts = -(-(b.stop - b.start) // CPU_GOLD) if hidden.device.type == "cpu" else 1
        pairs = zip(hidden[b].tensor_split(parts), targets[b].tensor_split(parts), strict=True)
        gold[b] = torch.cat([head.rows(y).logits(h).diagonal() for h, y in pairs])
    state = _sweep(hidden, targets, gold, head, tiling, collector)
    for b in blocks:
        seen = state[5, b].float()
        if not torch.equal(seen, gold[b]):
            state[:, b] = _sweep(hidden[b], targets[b], seen, head, tiling)
    return state


def _statistics(state: Tensor, head: Head, tiling: Tiling) -> TokenStatistics:
    # Columns that hold -inf without being masked by the model: the padding of the last tile, and the gold
    # token's own.
    statistics = _finish(state, n_masked=-head.vocabulary % tiling.columns + 1)
    _check_bounds(statistics, head)
    return statistics


def _sweep(
    hidden: Tensor,
    targets: Tensor,
    gold: Tensor,
    head: Head,
    tiling: Tiling,
    collector: Collector | None = None,
) -> Tensor:
    """The state [6, T] of all tokens after all tiles. `collector`: sees every tile too."""
    T, rows, columns = len(targets), tiling.rows, tiling.columns
    n_blocks = -(-T // rows)
    targets = functional.pad(targets, (0, n_blocks * rows - T), value=-1).view(n_blocks, rows)
    gold = functional.pad(gold, (0, n_blocks * rows - T)).view(n_blocks, rows)
    states = new_states(n_blocks, rows, hidden.device)
    tile = torch.zeros(rows, columns, device=hidden.device)
    for start in range(0, head.vocabulary, columns):
        part = head.rows(slice(start, start + columns))
        tile[:, part.vocabulary :] = -torch.inf
        for i in range(n_blocks):
            block = hidden[i * rows : (i + 1) * rows]
            part.logits(block, out=tile[: len(block), : part.vocabulary])
            if collector is not None:
                collector.expect(states[i])
            tiling.absorb(tile, targets[i] - start, gold[i], states[i])
            if collector is not None:
                collector.absorb(i, start, tile, targets[i] - start, states[i])
    return states.transpose(0, 1).reshape(6, -1)[:, :T]


def _finish(state: Tensor, n_masked: int) -> TokenStatistics:
    """From sums over the wrong tokens to the statistics (module docstring), in fp64: T numbers cost
    nothing.
    """
    m, s1, s2, above, ties, gold = state
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


def check_inputs(hidden: Tensor, targets: Tensor, head: Head) -> None:
    """Refuse tokens that the head does not have."""
    assert targets.shape == (len(hidden),)
    if not len(targets):
        return
    lowest = int(targets.min())
    highest = int(targets.max())
    if lowest < 0 or highest >= head.vocabulary:
        raise LarkError(
            f"Token ids from {lowest} to {highest} do not fit the LM head's vocabulary of {head.vocabulary}. "
            "Check that the tokenizer belongs to the student, and that only response tokens are scored."
        )


def _check_bounds(statistics: TokenStatistics, head: Head) -> None:
    """Check bounds that hold for any model. NaN fails every comparison."""
    ok = (
        (statistics.surprisal >= 0)
        & (statistics.residual >= 0)
        & (statistics.residual <= 2 + 1e-6)
        & (statistics.rank >= 1)
        & (statistics.rank <= head.vocabulary)
    )
    check_bounds(ok)


def check_bounds(ok: Tensor) -> None:
    """Raise an error for tokens whose statistics are not those of a finite prediction."""
    if not bool(ok.all()):
        bad = (~ok).nonzero()[:, 0]
        raise LarkError(
            f"The student's logits or hidden states are not finite (NaN or infinite) for {len(bad)} of"
            f" {len(ok)} tokens, the first at position {int(bad[0])}. Check the checkpoint, or load it in"
            " bfloat16 or float32."
        )
