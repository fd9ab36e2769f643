"""Paired comparison of entrants that were trained with several seeds and answered the same problems. Pure.

An entrant m has results y[s, p]: one number per training seed s and problem p, the same problems for all
entrants. With random seeds and random problems,

    y_msp = μ_m + a_ms + b_mp + e_msp,

where b_m· may be correlated between entrants (a hard problem is hard for all), so differences are taken per
problem. The difference of two entrants' means has the variance

    V_ij = Var_p(z_ip - z_jp) / P + σ_a² (1/S_i + 1/S_j),       z_mp: mean of an entrant's seeds on a problem,

whose first term contains b and e, and whose second term contains what changes all answers of a training run
together. Two or three seeds cannot estimate a variance, so σ_a² is pooled over all entrants: it is the
variance of the runs' means within entrants, less the share of e in it. Runs of different entrants count as
independent, even if they share a seed.

Intervals come from a two-way bootstrap. Each resample draws problems with replacement, the same for all
entrants; a value of σ_a² that the runs allow (their pooled variance, divided by a χ² over its degrees of
freedom); and normal effects of this size for every entrant's seeds. The quantile of a pair's deviation
gives its interval. The quantile of the largest deviation of all pairs, each in units of its scale, decides
which differences are significant: if no pair differs, it is exceeded in 5% of the cases (Westfall and Young,
1993). A pair's scale is its standard error, or what the tails of its deviations suggest if that is larger:
the estimate of σ_a² can be zero by chance where the truth is not. tests/experiments/test_paired.py checks
both by simulation.

A bootstrap of few problems is too optimistic: it takes their variance for the true one. So quantiles are
widened like Student's t over P - 1 degrees of freedom, and the variance of a pair is at least that of a
single problem on which they differ. And if every one of P problems favours the same entrant, chance does
that with 2^(1-P): nothing is called significant unless this, times the number of pairs, is within the error.

Entrants that are not trained, such as teachers (lark/selection/leads.py), have no effect of a seed: σ_a is 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log2
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm as normal
from scipy.stats import t as student

Floats = NDArray[np.float64]
RESAMPLES = 2000
TAIL = 0.99
"""Where a pair's scale is also measured."""
LARGEST = 4.0
"""Normal quantiles beyond it are widened by no larger factor."""


@dataclass(frozen=True)
class Comparison:
    """Differences between all entrants. Arrays of pairs are [M, M], the entry (i, j) is i minus j."""

    names: tuple[str, ...]
    means: Floats
    """[M] over seeds and problems."""
    seeds: NDArray[np.int64]
    """[M] Training seeds of each entrant."""
    difference: Floats
    error: Floats
    """Standard error of the difference, sqrt(V_ij); 0 on the diagonal."""
    half: Floats
    """Half the length of each pair's own interval; 0 on the diagonal."""
    scale: Floats
    """Scale of each difference's deviations."""
    joint: float
    """In units of the scale: from here on a difference is significant, for all pairs together."""
    seed_deviation: float | None
    """σ_a, the standard deviation that training seeds add to an entrant's mean. None: no entrant has two
    seeds.
    """
    least_problems: int = 0
    """Problems that a verdict needs."""
    problems: int = 0

    @property
    def joint_half(self) -> Floats:
        """Half the length of the intervals that contain all differences together."""
        return self.joint * self.scale

    @property
    def low(self) -> Floats:
        """Lower end of each difference's own interval."""
        return self.difference - self.half

    @property
    def high(self) -> Floats:
        return self.difference + self.half

    @property
    def significant(self) -> NDArray[np.bool_]:
        """[M, M] Whether i is better than j, for all pairs together. Never with one seed each, whose effect
        is unknown, nor with too few problems.
        """
        if self.seed_deviation is None or self.problems < self.least_problems:
            return np.zeros_like(self.difference, dtype=bool)
        return (self.difference > 0) & (self.difference > self.joint_half)

    @property
    def order(self) -> list[int]:
        """Entrants from the best mean to the worst; those with equal means in their order."""
        return sorted(range(len(self.names)), key=lambda m: (-self.means[m], m))

    @property
    def ranked(self) -> list[str]:
        """The names of the entrants in this order."""
        return [self.names[m] for m in self.order]

    def rank(self, name: str) -> int:
        """An entrant's place in `order`, from 0."""
        return self.ranked.index(name)


def compare(
    results: Mapping[str, Floats],
    level: float = 0.95,
    joint_level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
    trained: bool = True,
) -> Comparison:
    """Compare entrants by their results [S, P]. `level`: of each pair's interval; `joint_level`: of all
    pairs together. `trained`: whether training seeds have an effect, which one seed cannot show.
    """
    names = tuple(results)
    tables = [np.asarray(table, dtype=np.float64) for table in results.values()]
    counts = np.array([len(table) for table in tables])
    by_problem = np.stack([table.mean(axis=0) for table in tables], axis=1)
    problems = len(by_problem)
    if problems < 2:
        raise ValueError("At least two problems are needed for an interval.")
    means = by_problem.mean(axis=0)
    first, second = np.triu_indices(len(tables), k=1)
    paired = by_problem[:, first] - by_problem[:, second]
    seeds = _SeedEffects.of(tables)
    share = 1 / counts[first] + 1 / counts[second]
    most = np.ones(len(first)) if _are_shares(tables) else np.abs(paired).max(axis=0)
    least = most**2 / problems  # the variance if they differ on one problem
    error = np.sqrt(np.maximum(paired.var(axis=0, ddof=1), least) / problems + seeds.variance * share)

    moved = _resampled_weights(problems, resamples, seed) @ (paired - paired.mean(axis=0))
    effects = seeds.drawn(counts, resamples, np.random.default_rng([seed, 1]))
    shift = np.abs(moved + effects[:, first] - effects[:, second])
    tails = [np.quantile(shift, tail, axis=0) / _normal(tail) for tail in (level, TAIL)]
    scale = np.maximum.reduce([error, *tails])
    ratio = np.divide(shift, scale, out=np.zeros_like(shift), where=scale > 0)
    joint = max(float(np.quantile(ratio.max(axis=1, initial=0.0), joint_level)), _normal(joint_level))
    seed_deviation = 0.0 if not trained else None
    if seeds.freedom:
        seed_deviation = float(np.sqrt(seeds.variance))
    half = np.maximum(error, tails[0]) * _normal(level) * _widening(_normal(level), problems)
    return Comparison(
        names,
        means,
        counts,
        _square(means[first] - means[second], first, second, len(tables), antisymmetric=True),
        _square(error, first, second, len(tables)),
        _square(half, first, second, len(tables)),
        _square(scale, first, second, len(tables)),
        joint * _widening(joint, problems),
        seed_deviation,
        least_problems=ceil(1 + log2(len(first) / (1 - joint_level))),
        problems=problems,
    )


def _are_shares(tables: list[Floats]) -> bool:
    """Whether the results are shares of right answers, so that a problem can make a difference of 1;
    otherwise they are negative losses.
    """
    return all(bool(((table >= 0) & (table <= 1)).all()) for table in tables)


def _widening(quantile: float, problems: int) -> float:
    """Student's t for this number of problems, relative to the normal quantile with the same tail."""
    quantile = min(quantile, LARGEST)
    return float(student.isf(normal.sf(quantile), problems - 1)) / quantile


@lru_cache(maxsize=2)
def _resampled_weights(problems: int, resamples: int, seed: int) -> Floats:
    """[R, P] How much each problem counts in a resample, scaled so that the variance is not biased for few
    problems.
    """
    drawn = np.random.default_rng([seed, 0]).multinomial(
        problems, np.full(problems, 1 / problems), size=resamples
    )
    weights: Floats = drawn / np.sqrt(problems * (problems - 1.0))
    weights.setflags(write=False)
    return weights


def _normal(level: float) -> float:
    """The quantile if the variance were known. The bootstrap's is never taken to be smaller."""
    return NormalDist().inv_cdf((1 + level) / 2)


def _square(
    values: Floats, first: NDArray[Any], second: NDArray[Any], size: int, antisymmetric: bool = False
) -> Floats:
    square = np.zeros((size, size))
    square[first, second] = values
    square[second, first] = -values if antisymmetric else values
    return square


@dataclass(frozen=True)
class _SeedEffects:
    """What training seeds add to the mean of a run, pooled over entrants."""

    total: float
    """Variance of a run's mean around its entrant's. Entrants count by their degrees of freedom."""
    noise: float
    """The part of their variance that comes from single answers, σ_e² / P: it is in the problems' term
    already.
    """
    freedom: int

    @classmethod
    def of(cls, tables: list[Floats]) -> "_SeedEffects":
        several = [table for table in tables if len(table) > 1]
        freedom = sum(len(table) - 1 for table in several)
        if not freedom:
            return cls(0.0, 0.0, 0)
        runs = [table.mean(axis=1) for table in several]
        total = sum(float(((run - run.mean()) ** 2).sum()) for run in runs) / freedom
        single = sum(
            float(((table - run[:, None] - table.mean(axis=0) + run.mean()) ** 2).sum())
            for table, run in zip(several, runs, strict=True)
        )
        problems = several[0].shape[1]
        return cls(total, single / (freedom * (problems - 1)) / problems, freedom)

    @property
    def variance(self) -> float:
        """σ_a². What is left of rounding counts as zero."""
        left = self.total - self.noise
        return left if left > 1e-9 * self.total else 0.0

    def drawn(self, counts: NDArray[np.int64], resamples: int, rng: np.random.Generator) -> Floats:
        """[R, M] Mean effects of each entrant's seeds."""
        if not self.freedom:
            return np.zeros((resamples, len(counts)))
        total = self.total * self.freedom / rng.chisquare(self.freedom, size=resamples)
        deviation = np.sqrt(np.maximum(0.0, total - self.noise))
        return rng.standard_normal((resamples, len(counts))) * deviation[:, None] / np.sqrt(counts)
