"""More about the student's distribution at each token, from the same sweep over the vocabulary as
statistics.py: its entropies, and its most likely tokens. Only computed where they are asked for.

A tile is read once more after its reduction, in plain PyTorch on every device. The sums run over the wrong
tokens, relative to their running maximum m, as in statistics.py. With

    t = Σ exp(z_v - m) (z_v - m),  ω the log odds of "wrong" against "gold",  π_w = 1 - π_y,

the entropy is a sum of terms that are not negative, so nothing cancels where π_y is close to 1:

    H = -π_y log π_y - Σ_{v != y} π_v log π_v = π_y log(1 + e^ω) + π_w (log(1 + e^-ω) + log s1 - t/s1).

The Rényi entropy of order 2 is -log Σ_v π_v² = -log(1 - d) with d = 2 π_y π_w + π_w² (1 - s2/s1²).

The K most likely tokens are those of the wrong tokens, kept from tile to tile, and the gold token, which
joins them at the end. Few rows of a tile have a logit among the K largest so far, so only these are sorted.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Weigh = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(logits [R, C] of the wrong tokens, m [R]): the tile's Σ exp(z - m) (z - m) and its largest logit, both
[R].
"""

TEMPORARY = 2**22
"""Logits that are copied at once: 16 MiB. A tile of the CUDA kernel has 128 MiB, which should not be in
memory several times.
"""
NEGLIGIBLE = -128.0
"""exp(z - m) is 0 in fp32 for z - m below -104, but 0 · -inf would be NaN for a masked logit."""


@dataclass(frozen=True)
class Distribution:
    """Entropies and most likely tokens of T predictions."""

    entropy: Tensor
    """[T] -Σ_v π_v log π_v in nats, fp32."""
    renyi2: Tensor
    """[T] -log Σ_v π_v² in nats, fp32."""
    alternatives: Tensor
    """[T, K] The most likely tokens, most likely first, int32; -1 where fewer than K have a probability
    above 0. Which of several tokens with equal logits are kept at the end of the list is not defined.
    """
    alternative_p: Tensor
    """[T, K] Their probabilities, fp32."""


def top_residual(distribution: Distribution, targets: Tensor) -> Tensor:
    """[T] ||π' - e_y||², fp32, where π' is the softmax over the K most likely tokens alone (0 for y if it
    is not one of them).
    """
    p = distribution.alternative_p.double()
    p = p / p.sum(1, keepdim=True)
    wrong = torch.where(distribution.alternatives == targets[:, None], 0, p)
    # 1 - π'_y as the sum of the others, so that nothing cancels where π'_y is close to 1.
    return (wrong.sum(1).square() + wrong.square().sum(1)).float()


def weigh_tile(logits: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """`Weigh` in plain PyTorch."""
    rows = _rows_at_once(logits)
    sums = []
    for part, m_part in zip(logits.split(rows), m.split(rows), strict=True):
        distance = (part - m_part[:, None]).clamp_min(NEGLIGIBLE)
        sums.append((distance.exp() * distance).sum(1))
    return torch.cat(sums), logits.amax(1)


def _rows_at_once(tile: Tensor) -> int:
    return max(1, TEMPORARY // tile.shape[1])


class Collector:
    """The state of a sweep over T tokens in blocks: t, and the K largest logits of wrong tokens."""

    def __init__(
        self, n_blocks: int, rows: int, n_alternatives: int, device: torch.device, weigh: Weigh = weigh_tile
    ) -> None:
        self.weigh = weigh
        self.t = torch.zeros(n_blocks, rows, dtype=torch.float64, device=device)
        self.logits = torch.full((n_blocks, rows, n_alternatives), -torch.inf, device=device)
        self.words = torch.full((n_blocks, rows, n_alternatives), -1, dtype=torch.int64, device=device)
        self.before = torch.zeros(2, rows, dtype=torch.float64, device=device)

    def expect(self, state: Tensor) -> None:
        """Remember m and s1 of a block before a tile is added to its state."""
        self.before = state[:2].clone()

    def absorb(self, block: int, start: int, tile: Tensor, targets: Tensor, state: Tensor) -> None:
        """Add a tile that has just been added to the state. `start`: the tile's first word; `targets` count
        from it.
        """
        old_m, old_s1 = self.before
        m = state[0]
        here = (targets >= 0) & (targets < tile.shape[1])
        column = targets.clamp(0, tile.shape[1] - 1)[:, None]
        # PyTorch's reduction has masked the gold logits, the CUDA kernel has not.
        tile.scatter_(1, column, torch.where(here, -torch.inf, tile.gather(1, column)[:, 0])[:, None])
        t, largest = self.weigh(tile, m.float())
        # The old t is relative to the old maximum: z - m = (z - old_m) + (old_m - m) for each of its terms.
        self.t[block] = (self.t[block] + (old_m - m) * old_s1) * torch.exp(old_m - m) + t
        if self.words.shape[2]:
            self._keep_largest(block, start, tile, largest)

    def _keep_largest(self, block: int, start: int, tile: Tensor, largest: Tensor) -> None:
        logits = self.logits[block]
        words = self.words[block]
        k = min(logits.shape[1], tile.shape[1])
        for rows in (largest > logits[:, -1]).nonzero()[:, 0].split(_rows_at_once(tile)):
            new, column = tile[rows].topk(k)
            # The old ones first and a stable order: of equal logits the first word stays.
            both = torch.cat([logits[rows], new], 1)
            order = both.sort(dim=1, descending=True, stable=True)[1][:, : logits.shape[1]]
            logits[rows] = both.gather(1, order)
            words[rows] = torch.cat([words[rows], column + start], 1).gather(1, order)

    def finish(self, state: Tensor, targets: Tensor) -> Distribution:
        """The distributions of T tokens from their sums, in fp64. `state`: [6, T], as in statistics.py."""
        m, s1, s2, _, _, gold = state
        t = self.t.reshape(-1)[: len(targets)]
        log_odds = m - gold + s1.log()
        zero = torch.zeros_like(gold)
        p_gold = torch.sigmoid(-log_odds)
        p_wrong = torch.sigmoid(log_odds)
        right = torch.where(p_gold > 0, p_gold * torch.logaddexp(log_odds, zero), 0)
        wrong = torch.where(s1 > 0, p_wrong * (torch.logaddexp(-log_odds, zero) + s1.log() - t / s1), 0)
        apart = torch.where(s1 > 0, 1 - s2 / s1.square(), 0).clamp_min(0)
        words, logits = self._most_likely(targets, gold)
        log_sum = torch.logaddexp(gold, m + s1.log())
        return Distribution(
            entropy=(right + wrong).float(),
            renyi2=-torch.log1p(-(2 * p_gold * p_wrong + p_wrong.square() * apart)).float(),
            alternatives=words.int(),
            alternative_p=torch.exp(logits - log_sum[:, None]).float(),
        )

    def _most_likely(self, targets: Tensor, gold: Tensor) -> tuple[Tensor, Tensor]:
        """[T, K] words and logits, with the gold token among them. Of equal logits the first word comes
        first.
        """
        n_kept = self.words.shape[2]
        T = len(targets)
        golds = torch.where(gold > -torch.inf, targets, -1)
        words = torch.cat([self.words.flatten(0, 1)[:T], golds[:, None]], 1)
        logits = torch.cat([self.logits.flatten(0, 1)[:T].double(), gold[:, None]], 1)
        words, order = words.sort(1)
        logits, order = logits.gather(1, order).sort(dim=1, descending=True, stable=True)
        return words.gather(1, order)[:, :n_kept], logits[:, :n_kept]
