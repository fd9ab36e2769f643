"""The gradient of each token's loss at the head, from the same sweep over the vocabulary as statistics.py.

With r = (π - e_y) ⊙ dz/dh, h = W x + b the head's output, a sweep leaves two things for each token: the gradient at the hidden
state, Wᵀr [d], which is one more product with the head, and a sketch of r itself [m]. As in statistics.py, sums run over the wrong
tokens, relative to their running maximum m, and nothing cancels where π_y is close to 1:

    r = π_w (Σ_{v != y} (π_v / π_w) s_v e_v - s_y e_y),   π_w = 1 - π_y,   s_v = dz_v/dh_v  (1 for most models).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lark.models.head import Head, LogitRule, mixes
from lark.scoring.sketches import Fold


@dataclass(frozen=True)
class Residual:
    """What the sweep adds for T tokens."""

    pulled: Tensor
    """[T, d] Wᵀr, the gradient of the token's loss at the hidden state that predicts it, fp32."""
    folded: Tensor
    """[T, m] A sketch of r, fp32."""


class ResidualReader:
    """The state of a sweep over T tokens in blocks: both sums over the wrong tokens, relative to m."""

    def __init__(self, n_blocks: int, rows: int, head: Head, fold: Fold) -> None:
        device, d = head.weight.device, head.weight.shape[1]
        self.head, self.fold = head, fold
        self.pulled = torch.zeros(n_blocks, rows, d, device=device)
        self.folded = torch.zeros(n_blocks, rows, fold.kept, device=device)
        self.before = torch.zeros(rows, dtype=torch.float64, device=device)

    def expect(self, state: Tensor) -> None:
        """Remember m of a block before a tile is added to its state."""
        self.before = state[0].clone()

    def absorb(self, block: int, start: int, part: Head, tile: Tensor, targets: Tensor, state: Tensor) -> None:
        """Add a tile that has just been added to the state. `part`: the head of its words; `targets` count from its first."""
        m = state[0]
        logits = tile[:, : part.vocabulary]
        e = (logits - m.float()[:, None]).exp_()
        here = (targets >= 0) & (targets < part.vocabulary)
        column = targets.clamp(0, part.vocabulary - 1)[:, None]
        e.scatter_(1, column, torch.where(here, 0.0, e.gather(1, column)[:, 0])[:, None])  # the CUDA kernel masks no gold logit
        if (slope := _slope(part.rule, logits)) is not None:
            e *= slope
        shrink = torch.exp(self.before - m).float()[:, None]
        self.folded[block] = self.folded[block].mul_(shrink).add_(self.fold.part(e, start))
        self.pulled[block] = self.pulled[block].mul_(shrink).add_(_product(e, part.weight))

    def finish(self, state: Tensor, targets: Tensor) -> Residual:
        """The residuals of T tokens. `state`: [6, T], as in statistics.py."""
        m, s1, gold = state[0], state[1], state[5]
        wrong = torch.sigmoid(m - gold + s1.log())
        share = torch.where(s1 > 0, wrong / s1, 0).float()[:, None]
        own = wrong.float() if (slope := _slope(self.head.rule, gold.float())) is None else wrong.float() * slope
        T = len(targets)
        pulled, folded = (sums.flatten(0, 1)[:T].mul_(share) for sums in (self.pulled, self.folded))
        pulled -= own[:, None] * self.head.weight[targets].float()
        self.fold.add_unit(folded, targets, -own)
        return Residual(pulled, folded)


def _slope(rule: LogitRule, z: Tensor) -> Tensor | None:
    """dz/dh at z, finite where z is masked."""
    return rule.slope(z.clamp_min(torch.finfo(z.dtype).min / 2)) if rule.softcap is None else rule.slope(z.nan_to_num(neginf=0.0))


def _product(e: Tensor, weight: Tensor) -> Tensor:
    """e W in fp32, with the weight's precision for the factors where the device multiplies it directly."""
    if mixes(weight):
        return torch.mm(e.to(weight.dtype), weight, out_dtype=torch.float32)
    return e @ weight
