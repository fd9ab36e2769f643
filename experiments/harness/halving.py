"""Successive halving: all entrants start with a few training seeds, and the better half continues with
more. Pure.

After each round, all entrants are compared with all their seeds so far (`paired.compare`). A difference
that is called real in any round stays real. With L rounds, each has an error of 5%/L over all its pairs, so
that in at most 5% of the tournaments any difference is called real that does not exist, or has the other
sign (Bonferroni over rounds, maximum over pairs).

An entrant that is really behind another one is dropped. Of the others, the better half by mean continues:
the rest stop without a verdict, unless later seeds of those ahead of them give one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from experiments.harness.paired import RESAMPLES, Comparison, Floats, compare

ERROR = 0.05
"""Share of tournaments in which any difference may be called real by chance."""


@dataclass(frozen=True)
class Design:
    """Training seeds of an entrant after each round, such as (2, 4, 8), and whether the lower half stops
    after each.
    """

    seeds: tuple[int, ...]
    halve: bool = True

    def entrants(self, count: int) -> list[int]:
        """The largest number of entrants in each round."""
        sizes = [count]
        for _ in self.seeds[1:]:
            sizes.append(_half(sizes[-1]) if self.halve else sizes[-1])
        return sizes

    def runs(self, count: int) -> int:
        """The largest number of training runs."""
        new = [after - before for after, before in zip(self.seeds, (0, *self.seeds), strict=False)]
        return sum(size * seeds for size, seeds in zip(self.entrants(count), new, strict=True))


@dataclass(frozen=True)
class Round:
    """What is known after a round."""

    comparison: Comparison
    real: NDArray[np.bool_]
    """[M, M] Whether i is better than j by this or an earlier round."""
    running: tuple[str, ...]
    """The entrants of this round."""
    ahead: tuple[str, ...]
    """Those that continue. Empty if the tournament ends."""

    def behind(self, name: str) -> list[str]:
        """The entrants that are really better."""
        names = self.comparison.names
        return [other for k, other in enumerate(names) if self.real[k, names.index(name)]]

    @property
    def leader(self) -> str:
        """The best mean among the entrants of this round, which have the most seeds."""
        means = dict(zip(self.comparison.names, self.comparison.means, strict=True))
        return max(self.running, key=lambda name: (means[name], -self.comparison.names.index(name)))

    @property
    def tied(self) -> list[str]:
        """Entrants that are not really behind the leader, best mean first, without the leader."""
        names, leader = self.comparison.names, self.comparison.names.index(self.leader)
        return [names[k] for k in self.comparison.order if k != leader and not self.real[leader, k]]


def _half(count: int) -> int:
    return count if count < 2 else max(2, ceil(count / 2)) if count > 2 else 2


def judge(
    results: Mapping[str, Floats],
    running: Sequence[str],
    number: int,
    design: Design,
    before: Round | None = None,
    resamples: int = RESAMPLES,
    level: float = 0.95,
) -> Round:
    """The state after round `number` (from 0), given all results so far [S, P] of all entrants, also of
    those that stopped.
    """
    rounds = len(design.seeds)
    comparison = compare(results, level, 1 - ERROR / rounds, resamples, seed=number)
    real = comparison.real if before is None else comparison.real | before.real
    names, means = comparison.names, dict(zip(comparison.names, comparison.means, strict=True))
    left = [name for name in running if not real[:, names.index(name)].any()]
    left.sort(key=lambda name: (-means[name], names.index(name)))
    most = design.entrants(len(names))[number + 1] if number + 1 < rounds else 0
    ahead = left[:most] if len(left) > 1 else []
    return Round(comparison, real, tuple(running), tuple(ahead))


def tournament(
    entrants: Sequence[str],
    design: Design,
    run: Callable[[str, int, int], Floats],
    resamples: int = RESAMPLES,
) -> list[Round]:
    """Carry out a design. `run(name, first, last)` returns results [last - first, P] of these seeds of an
    entrant.
    """
    results: dict[str, Floats] = {}
    running, rounds, done = tuple(entrants), list[Round](), 0
    for number, seeds in enumerate(design.seeds):
        for name in running:
            new = run(name, done, seeds)
            results[name] = np.concatenate([results[name], new]) if name in results else new
        done = seeds
        rounds.append(judge(results, running, number, design, rounds[-1] if rounds else None, resamples))
        running = rounds[-1].ahead
        if not running:
            break
    return rounds
