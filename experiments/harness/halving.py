"""Successive halving: all entrants start with a few training seeds, the better half gets more. Pure.

After each heat, all entrants are compared with all their seeds so far (`paired.compare`). A difference that
is called significant in any heat stays significant. With L heats, each has an error of 5%/L over all its
pairs, so that in at most 5% of the tournaments any difference is called significant that does not exist, or
has the other sign (Bonferroni over heats, maximum over pairs).

An entrant that is significantly behind another one is dropped. Of the others, the better half by mean
continues: the rest stop without a verdict, unless later seeds of those ahead of them give one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from lark.selection.paired import RESAMPLES, Comparison, Floats, compare

ERROR = 0.05
"""Share of tournaments in which any difference may be called significant by chance."""

Results = Mapping[str, Floats]
"""Results [S, P] of entrants: S training seeds, P problems; higher is better."""


@dataclass(frozen=True)
class Design:
    """Training seeds of an entrant after each heat, such as (2, 4, 8); does the lower half stop each time?"""

    seeds: tuple[int, ...]
    halve: bool = True

    def entrants(self, count: int) -> list[int]:
        """The largest number of entrants in each heat."""
        sizes = [count]
        for _ in self.seeds[1:]:
            sizes.append(_half(sizes[-1]) if self.halve else sizes[-1])
        return sizes

    def runs(self, count: int) -> int:
        """The largest number of training runs."""
        total = 0
        done = 0
        for size, seeds in zip(self.entrants(count), self.seeds, strict=True):
            total += size * (seeds - done)
            done = seeds
        return total


def _half(count: int) -> int:
    """Half of the entrants, rounded up. Two always stay, because one alone cannot be compared."""
    return min(count, max(2, ceil(count / 2)))


@dataclass(frozen=True)
class Heat:
    """The state of a tournament after a heat."""

    comparison: Comparison
    significant: NDArray[np.bool_]
    """[M, M] True where i is better than j by this or an earlier heat."""
    running: tuple[str, ...]
    """The entrants of this heat."""
    ahead: tuple[str, ...]
    """The entrants of the next heat. Empty if the tournament ends."""

    def behind(self, name: str) -> list[str]:
        """The entrants that are significantly better."""
        names = self.comparison.names
        place = names.index(name)
        return [other for k, other in enumerate(names) if self.significant[k, place]]

    @property
    def leader(self) -> str:
        """The best mean among the entrants of this heat, which have the most seeds."""
        return min(self.running, key=self.comparison.rank)

    @property
    def tied(self) -> list[str]:
        """Entrants that are not significantly behind the leader, best mean first, without the leader."""
        leader = self.leader
        return [name for name in self.comparison.ranked if name != leader and leader not in self.behind(name)]


def judge(
    results: Results,
    running: Sequence[str],
    number: int,
    design: Design,
    before: Heat | None = None,
    resamples: int = RESAMPLES,
) -> Heat:
    """The state after heat `number` (from 0), given all results so far, also of entrants that stopped."""
    heats = len(design.seeds)
    comparison = compare(results, joint_level=1 - ERROR / heats, resamples=resamples, seed=number)
    significant = comparison.significant
    if before is not None:
        significant = significant | before.significant
    behind = [name for k, name in enumerate(comparison.names) if significant[:, k].any()]
    contenders = sorted(set(running) - set(behind), key=comparison.rank)
    ahead: list[str] = []
    if number + 1 < heats and len(contenders) > 1:
        ahead = contenders[: design.entrants(len(comparison.names))[number + 1]]
    return Heat(comparison, significant, tuple(running), tuple(ahead))


def tournament(
    entrants: Sequence[str],
    design: Design,
    train: Callable[[Sequence[str], int, int], Results | None],
    resamples: int = RESAMPLES,
) -> Iterator[Heat]:
    """Heat after heat of a design.

    `train(running, first, last)` trains entrants with the seeds after `first` up to `last`, and returns all
    results so far of all entrants, or None to end the tournament. Entrants that have no result for one of
    these seeds have failed and leave the heat.
    """
    running = tuple(entrants)
    heat: Heat | None = None
    done = 0
    for number, seeds in enumerate(design.seeds):
        results = train(running, done, seeds)
        if results is None:
            return
        trained = [name for name in running if name in results and len(results[name]) == seeds]
        heat = judge(results, trained, number, design, heat, resamples)
        yield heat
        running = heat.ahead
        done = seeds
        if not running:
            return
