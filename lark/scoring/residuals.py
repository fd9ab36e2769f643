"""The gradient of each token's loss at the head, without holding all logits in memory.

With h = W x the head's output, z the logits and r = (π - e_y) ⊙ dz/dh, one sweep over the vocabulary gives
for each token: the surprisal, the gradient at the hidden state Wᵀr [d], which is one more product with the
head, and a sketch of r itself [m].

Tiles, and sums over the wrong tokens relative to their running maximum m, are those of statistics.py.
Nothing cancels where π_y is close to 1:

    r = π_w (Σ_{v != y} (π_v / π_w) s_v e_v - s_y e_y),  π_w = 1 - π_y,   s_v = dz_v/dh_v (1 for most models).

The sums of both results are rescaled when m grows, as in flash attention, so the logits are computed once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from lark.models.head import Head, LogitRule, mixes
from lark.scoring.sketches import Fold
from lark.scoring.statistics import check_bounds, check_inputs
from lark.scoring.tiles import COMPILE_FROM, CPU_TILE, GPU_TILE, compiled_for

WeighTile = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""(logits [R, C] of the wrong tokens, m [R]): the new m [R], exp(z - m) [R, C] and its sums [R]."""


@dataclass(frozen=True)
class Residuals:
    """Gradients of T tokens' losses, in fp32."""

    surprisal: Tensor
    """[T] -log π_y."""
    pulled: Tensor
    """[T, d] Wᵀr, the gradient at the hidden state that predicts the token."""
    folded: Tensor
    """[T, m] A sketch of r."""


@torch.no_grad()
def head_residuals(hidden: Tensor, targets: Tensor, head: Head, fold: Fold) -> Residuals:
    """Residuals of the tokens `targets` [T] as predicted from the hidden states `hidden` [T, d]."""
    check_inputs(hidden, targets, head)
    sweep = _Sweep(hidden, targets, head, fold)
    for start in range(0, head.vocabulary, sweep.columns):
        sweep.add(start, head.rows(slice(start, start + sweep.columns)))
    return sweep.finish()


class _Sweep:
    """The state of T tokens in blocks: m, Σ exp(z_v - m), the gold logit, and both sums over the wrong
    tokens.
    """

    def __init__(self, hidden: Tensor, targets: Tensor, head: Head, fold: Fold) -> None:
        T, d = hidden.shape
        device = hidden.device
        self.hidden = hidden
        self.targets = targets
        self.head = head
        self.fold = fold
        rows, self.columns = GPU_TILE if hidden.is_cuda else (CPU_TILE, CPU_TILE)
        compiles = not hidden.is_cuda and head.vocabulary >= COMPILE_FROM and rows <= T
        self.weigh = (_compiled() if compiles else None) or weigh
        self.blocks = [slice(i, min(i + rows, T)) for i in range(0, T, rows)]
        self.tile = torch.zeros(min(rows, T) if self.weigh is weigh else rows, self.columns, device=device)
        # With masked logits, -inf - -inf would be NaN.
        self.m = torch.full((T,), torch.finfo(torch.float32).min, dtype=torch.float64, device=device)
        self.sum = torch.zeros(T, dtype=torch.float64, device=device)
        self.gold = torch.full((T,), torch.nan, device=device)
        self.pulled = torch.zeros(T, d, device=device)
        self.folded = torch.zeros(T, fold.kept, device=device)

    def add(self, start: int, part: Head) -> None:
        """Add the words from `start` on, whose head is `part`."""
        self.tile[:, part.vocabulary :] = -torch.inf
        for block in self.blocks:
            size = block.stop - block.start
            logits = self.tile[:size, : part.vocabulary]
            part.logits(self.hidden[block], out=logits)
            self._move_gold(block, logits, self.targets[block] - start)
            # A compiled reduction has one shape, so the last block is padded to it.
            whole = self.m.new_full((len(self.tile),), 0.0) if size < len(self.tile) else self.m[block]
            whole[:size] = self.m[block]
            m, weights, sums = self.weigh(self.tile, whole.float())
            weights = weights[:size, : part.vocabulary]
            shrink = torch.exp(self.m[block] - m[:size])
            self.m[block] = m[:size].double()
            self.sum[block] = self.sum[block] * shrink + sums[:size]
            slope = _slope(part.rule, logits)
            if slope is not None:
                weights = weights * slope
            ratio = shrink.float()[:, None]
            self.folded[block] = self.folded[block].mul_(ratio).add_(self.fold.part(weights, start))
            self.pulled[block] = self.pulled[block].mul_(ratio).add_(_product(weights, part.weight))

    def _move_gold(self, block: slice, logits: Tensor, targets: Tensor) -> None:
        """Move gold logits from a tile to the state, so that only wrong ones are added up."""
        here = (targets >= 0) & (targets < logits.shape[1])
        column = targets.clamp(0, logits.shape[1] - 1)[:, None]
        value = logits.gather(1, column)[:, 0]
        logits.scatter_(1, column, torch.where(here, -torch.inf, value)[:, None])
        self.gold[block] = torch.where(here, value, self.gold[block])

    def finish(self) -> Residuals:
        log_odds = self.m - self.gold + self.sum.log()
        surprisal = torch.logaddexp(log_odds, torch.zeros_like(log_odds)).float()
        check_bounds(surprisal >= 0)
        wrong = torch.sigmoid(log_odds)
        share = torch.where(self.sum > 0, wrong / self.sum, 0).float()[:, None]
        slope = _slope(self.head.rule, self.gold)
        gold = wrong.float()
        if slope is not None:
            gold = gold * slope
        pulled = self.pulled.mul_(share)
        pulled -= gold[:, None] * self.head.weight[self.targets].float()
        folded = self.folded.mul_(share)
        self.fold.add_unit(folded, self.targets, -gold)
        return Residuals(surprisal, pulled, folded)


def weigh(logits: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`WeighTile` in plain PyTorch."""
    largest = torch.maximum(m, logits.amax(1))
    weights = (logits - largest[:, None]).exp()
    return largest, weights, weights.sum(1)


@cache
def _compiled() -> WeighTile | None:
    """`weigh`, compiled for the CPU's tile, tried once; None where it cannot be compiled."""
    return compiled_for(weigh, torch.zeros(CPU_TILE, CPU_TILE), torch.zeros(CPU_TILE))


def _slope(rule: LogitRule, z: Tensor) -> Tensor | None:
    """dz/dh at z, finite where z is masked; None if it is 1."""
    return rule.slope(z if rule.softcap is None else z.nan_to_num(neginf=0.0))


def _product(weights: Tensor, head: Tensor) -> Tensor:
    """The product with the head's words in fp32, with factors in the head's precision where the device
    multiplies them directly.
    """
    if mixes(head):
        return torch.mm(weights.to(head.dtype), head, out_dtype=torch.float32)
    return weights @ head
