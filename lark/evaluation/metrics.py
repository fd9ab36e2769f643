"""Compute the numbers of a table from the grades of single samples. Pure. Shares and accuracies in percent.

Shapes: S decoding seeds, N problems, k samples per problem and seed (3, 30 to 500, and 5 in the paper).
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lark.evaluation import checks

BLOCK = 2**22
"""Draws of the bootstrap that are in memory at once."""


@dataclass(frozen=True)
class GradedSample:
    """One generation, graded."""

    problem: str
    seed: int
    sample: int
    """Its number among the k samples of this problem and seed."""
    correct: bool
    truncated: bool
    """True if it was cut off at the length limit."""
    boxed: bool
    """Did the grader's extraction find an answer? (`extract_boxed`; under verify `extract_boxed_list`.)"""
    level: int | None = None
    """The problem's difficulty, if the benchmark has levels (MATH-500: 1 to 5)."""


@dataclass(frozen=True)
class Spread:
    """A quantity measured once per decoding seed."""

    by_seed: tuple[float, ...]
    mean: float
    std: float | None
    """Sample standard deviation, with divisor n-1: 16.67, 20, 20 is 18.89±1.92. None with a single seed."""

    @classmethod
    def over(cls, by_seed: Iterable[float]) -> "Spread":
        values = [float(value) for value in by_seed]
        std = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return cls(tuple(values), float(np.mean(values)), std)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Spread":
        return cls(tuple(values["by_seed"]), values["mean"], values["std"])


@dataclass(frozen=True)
class LevelMetrics:
    """Metrics of a benchmark's problems of one level."""

    level: int
    problems: int
    accuracy_at_k: Spread
    sample_accuracy: Spread

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "LevelMetrics":
        return cls(
            values["level"],
            values["problems"],
            Spread.from_dict(values["accuracy_at_k"]),
            Spread.from_dict(values["sample_accuracy"]),
        )


@dataclass(frozen=True)
class BenchmarkMetrics:
    """Metrics of one student on one benchmark under one grader."""

    problems: int
    samples: int
    """k: samples per problem and seed."""
    seeds: tuple[int, ...]
    accuracy_at_k: Spread
    """Acc@k (App. C.4): the share of problems with at least one correct sample among the k of a seed."""
    sample_accuracy: Spread
    """The share of samples that are correct: the expected accuracy of a single sample."""
    interval: tuple[float, float]
    """95% bootstrap interval of the mean Acc@k (see `bootstrap_interval`)."""
    truncated: float
    """Share of samples cut off at the length limit."""
    unboxed: float
    """Share of samples without an answer."""
    levels: tuple[LevelMetrics, ...]
    """Metrics of each difficulty, ascending; empty if the benchmark has no levels."""

    def to_dict(self) -> dict[str, Any]:
        """A dictionary that can be written as JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "BenchmarkMetrics":
        """Inverse of `to_dict`, for values read from JSON."""
        converted = {
            "seeds": tuple(values["seeds"]),
            "interval": tuple(values["interval"]),
            "accuracy_at_k": Spread.from_dict(values["accuracy_at_k"]),
            "sample_accuracy": Spread.from_dict(values["sample_accuracy"]),
            "levels": tuple(map(LevelMetrics.from_dict, values["levels"])),
        }
        return cls(**{**values, **converted})


def benchmark_metrics(samples: Iterable[GradedSample], bootstrap_seed: int = 0) -> BenchmarkMetrics:
    """All metrics of one benchmark. Samples can be in any order but must be complete: k per problem and
    seed.
    """
    graded = list(samples)
    checks.any_samples(graded)
    problems = sorted({sample.problem for sample in graded})
    seeds = sorted({sample.seed for sample in graded})
    checks.complete_samples(graded, problems, seeds)
    k = len(graded) // (len(problems) * len(seeds))

    graded.sort(key=lambda sample: (sample.seed, sample.problem, sample.sample))
    # Complete and in this order, the grades are the rows of a table.
    correct = np.array([sample.correct for sample in graded]).reshape(len(seeds), len(problems), k)
    levels = [sample.level for sample in graded[: len(problems) * k : k]]

    solved = correct.any(axis=2)
    return BenchmarkMetrics(
        problems=len(problems),
        samples=k,
        seeds=tuple(seeds),
        accuracy_at_k=accuracy_at_k(correct),
        sample_accuracy=sample_accuracy(correct),
        interval=bootstrap_interval(solved.mean(axis=0), seed=bootstrap_seed),
        truncated=100 * float(np.mean([sample.truncated for sample in graded])),
        unboxed=100 * float(np.mean([not sample.boxed for sample in graded])),
        levels=_by_level(correct, levels),
    )


def accuracy_at_k(correct: NDArray[np.bool_]) -> Spread:
    """Acc@k of grades (S, N, k): a problem counts if any of its k samples is correct."""
    return Spread.over(100 * correct.any(axis=2).mean(axis=1))


def sample_accuracy(correct: NDArray[np.bool_]) -> Spread:
    """The mean over all samples of grades (S, N, k)."""
    return Spread.over(100 * correct.mean(axis=(1, 2)))


def bootstrap_interval(
    solved: NDArray[np.floating], seed: int = 0, resamples: int = 10_000, confidence: float = 0.95
) -> tuple[float, float]:
    """Percentile bootstrap of a mean over problems, in percent. `solved` (N): the share of seeds that solve
    a problem.

    Problems are resampled, N of N with replacement; a problem keeps its grades under all seeds. The
    interval therefore describes other problems for the same student; the std over seeds describes other
    decodings of the same problems.
    """
    return percentile_interval(bootstrap_means(solved, seed, resamples), confidence)


def bootstrap_means(
    solved: NDArray[np.floating], seed: int = 0, resamples: int = 10_000
) -> NDArray[np.floating]:
    """The means of `resamples` samples of the problems, in percent."""
    rng = np.random.default_rng(seed)
    problems = len(solved)
    means = []
    # In blocks: 10,000 resamples of 12,000 problems need more than a gigabyte. The draws are the same.
    block = max(1, BLOCK // problems)
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        chosen = rng.integers(problems, size=(rows, problems), dtype=np.int32)
        means.append(100 * solved[chosen].mean(axis=1))
    return np.concatenate(means)


def percentile_interval(means: NDArray[np.floating], confidence: float = 0.95) -> tuple[float, float]:
    """The interval that leaves out the same share of the means on either side."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def average(benchmarks: Sequence[BenchmarkMetrics]) -> Spread:
    """The paper's Avg column: Acc@k averaged over benchmarks (unweighted) for each seed, then mean and std
    over seeds.

    The std is that of the averages, not the average of the stds. This reading is consistent with the
    paper's Table 1: there are whole numbers of solved problems that give all 54 of its Avg stds along with
    their rows' other entries; the average of the stds gives 18 of the 54. In 52 rows this works only if the
    seeds rank alike on all four benchmarks. If seeds are independent between benchmarks, as ours are,
    expect a std about half as large as the paper's.
    """
    checks.any_benchmark(benchmarks)
    checks.comparable(benchmarks)
    table = np.array([benchmark.accuracy_at_k.by_seed for benchmark in benchmarks])
    return Spread.over(table.mean(axis=0))


def _by_level(correct: NDArray[np.bool_], levels: Sequence[int | None]) -> tuple[LevelMetrics, ...]:
    members = np.array(levels, dtype=float)  # None becomes NaN
    metrics = []
    for level in sorted({level for level in levels if level is not None}):
        part = correct[:, members == level]
        metrics.append(LevelMetrics(level, part.shape[1], accuracy_at_k(part), sample_accuracy(part)))
    return tuple(metrics)
