"""Tournaments between simulated entrants whose true accuracies are known: how often are intervals and
verdicts right?

Run as: python -m tests.experiments.simulated [repetitions]     prints coverage and error rates
(4,000 repetitions: about ten minutes)

An answer is right with probability sigmoid(μ_m + difficulty of the problem + its difficulty for the entrant
+ effect of the training seed). Nothing in `lark.selection.paired` assumes this form.
"""

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.harness.halving import Design, Heat, Results, tournament
from lark.printing import log_to
from lark.selection.paired import Floats, compare

log = logging.getLogger("simulated")

SAMPLES = 5
DIFFICULTY, TASTE = 1.2, 0.6
"""Standard deviations of a problem's difficulty, and of what it adds for one entrant."""


@dataclass(frozen=True)
class World:
    """Entrants with these abilities (in logits), and how much their training seeds matter."""

    abilities: tuple[float, ...]
    seed_effect: float = 0.2
    problems: int = 80
    samples: int = SAMPLES
    uneven: float = 1.0
    """How much more the seeds of every second entrant matter."""

    @property
    def names(self) -> list[str]:
        return [str(m) for m in range(len(self.abilities))]

    @property
    def effects(self) -> Floats:
        """[M] Standard deviation of each entrant's seed effect."""
        return self.seed_effect * np.where(np.arange(len(self.abilities)) % 2, self.uneven, 1.0)

    @property
    def accuracies(self) -> Floats:
        """[M] Expected share of right answers, over problems and seeds."""
        points, weights = np.polynomial.hermite_e.hermegauss(60)
        spread = np.sqrt(DIFFICULTY**2 + TASTE**2 + self.effects[:, None] ** 2)
        logits = np.array(self.abilities)[:, None] + spread * points
        return np.array((1 / (1 + np.exp(-logits))) @ (weights / weights.sum()))

    def answers(self, rng: np.random.Generator) -> Callable[[str, int, int], Floats]:
        """A function that trains an entrant with more seeds and returns its results [S, P]."""
        size = (len(self.abilities), self.problems)
        logits = (
            np.array(self.abilities)[:, None]
            + rng.normal(0, DIFFICULTY, self.problems)
            + rng.normal(0, TASTE, size)
        )

        def run(name: str, first: int, last: int) -> Floats:
            effects = rng.normal(0, self.effects[int(name)], (last - first, 1))
            chance = 1 / (1 + np.exp(-(logits[int(name)] + effects)))
            return np.asarray(rng.binomial(self.samples, chance) / self.samples)

        return run


def coverage(world: World, seeds: int, repetitions: int, resamples: int = 1000) -> tuple[float, float]:
    """Share of 95% intervals that contain the true difference; share of repetitions with a false verdict on
    any pair.
    """
    first, second = np.triu_indices(len(world.abilities), 1)
    true = world.accuracies[first] - world.accuracies[second]
    better = np.array(world.abilities)[:, None] > np.array(world.abilities)
    rng, inside, wrong = np.random.default_rng(1), 0.0, 0
    for repetition in range(repetitions):
        run = world.answers(rng)
        found = compare(
            {name: run(name, 0, seeds) for name in world.names}, resamples=resamples, seed=repetition % 4
        )
        inside += np.mean((found.low[first, second] <= true) & (true <= found.high[first, second]))
        wrong += bool((found.significant & ~better).any())
    return inside / repetitions, wrong / repetitions


def trainer(run: Callable[[str, int, int], Floats]) -> Callable[[Sequence[str], int, int], Results]:
    """`train` of a tournament: every entrant gets more seeds, and none fails."""
    results: dict[str, Floats] = {}

    def train(running: Sequence[str], first: int, last: int) -> Results:
        for name in running:
            new = run(name, first, last)
            results[name] = np.concatenate([results[name], new]) if name in results else new
        return results

    return train


@dataclass(frozen=True)
class Rates:
    """Outcomes of many tournaments, as shares."""

    wrong: float
    """Any difference called significant that does not exist, or has the other sign."""
    winner: float
    """The best entrant called significantly better than all others."""
    tie: float
    """No entrant called better than all others."""
    runs: float
    """Mean number of training runs."""


def outcomes(world: World, design: Design, repetitions: int, resamples: int = 1000) -> Rates:
    better = np.array(world.abilities)[:, None] > np.array(world.abilities)
    rng, best = np.random.default_rng(2), world.names[int(np.argmax(world.abilities))]
    last: list[Heat] = []
    for _ in range(repetitions):
        *_, end = tournament(world.names, design, trainer(world.answers(rng)), resamples)
        last.append(end)
    return Rates(
        float(np.mean([(end.significant & ~better).any() for end in last])),
        float(np.mean([end.leader == best and not end.tied for end in last])),
        float(np.mean([bool(end.tied) for end in last])),
        float(np.mean([end.comparison.seeds.sum() for end in last])),
    )


def main(arguments: Sequence[str]) -> None:
    repetitions = int(arguments[0]) if arguments else 1000
    tied, ladder = (0.0,) * 6, (0.5, 0.4, 0.3, 0.2, 0.1, 0.0)
    for abilities in (tied, ladder):
        for seeds in (2, 3, 5):
            for effect in (0.0, 0.2, 0.4):
                inside, wrong = coverage(World(abilities, effect), seeds, repetitions)
                log.info("abilities %s, %d seeds, seed effect %.1f: coverage %.3f, false verdicts %.3f",
                         abilities, seeds, effect, inside, wrong)  # fmt: skip
    for seeds in (2, 3, 5):
        for effect in (0.1, 0.2):
            inside, wrong = coverage(World(tied, effect, uneven=2.0), seeds, repetitions)
            log.info(
                "all equal, every second twice as unstable, %d seeds, seed effects %.1f and %.1f: coverage"
                " %.3f, false verdicts %.3f",
                seeds,
                effect,
                2 * effect,
                inside,
                wrong,
            )
    for abilities in (tied, ladder, (1.5, *tied[1:]), (0.8, 0.8, *tied[2:])):
        for design in (Design((2, 4, 8)), Design((2, 3)), Design((3,), halve=False)):
            for effect in (0.2, 0.4):
                log.info(
                    "abilities %s, %s, seed effect %.1f: %s",
                    abilities,
                    design,
                    effect,
                    outcomes(World(abilities, effect), design, repetitions),
                )


if __name__ == "__main__":
    log_to(sys.stdout)
    main(sys.argv[1:])
