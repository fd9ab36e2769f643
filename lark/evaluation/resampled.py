"""Other readings of the same graded samples: pass@1, pass@k and maj@k.

They are computed from `grades.jsonl` whenever they are read, so evaluations that finished before have them
too. All in percent.

Shapes: N problems, S decoding seeds, k samples per problem and seed; n = S k samples per problem.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path

import numpy as np

from lark.evaluation.grade import GRADES_FILE, Grade
from lark.evaluation.metrics import bootstrap_interval, bootstrap_means, percentile_interval
from lark.evaluation.shards import read_lines
from lark.grading.canonical import canonical_latex, canonical_number
from lark.store.integrity import verify

ANSWERS = {"paper": "answer", "verify": "answer_verify"}
"""Key of the answer that each grader reads."""


@dataclass(frozen=True)
class Resampled:
    """Metrics of one student on one benchmark under one grader, over the samples of all seeds."""

    samples: int
    """n: samples per problem, over all seeds."""
    k: int
    """Samples per problem and seed."""
    pass_at_1: float
    """The share of samples that are correct, averaged over all n samples of a problem, then over problems."""
    interval: tuple[float, float]
    """95% interval of pass@1: the percentile bootstrap over problems (`bootstrap_interval`)."""
    pass_at_k: float
    """The probability that k of the n samples contain a correct one (`pass_at`)."""
    majority_at_k: float
    """The share of problems and seeds in which the most frequent of the k answers is correct (`majority`)."""
    shares: tuple[float, ...]
    """Of each problem, in the order of their ids: the share of its n samples that are correct."""

    @property
    def single(self) -> "SingleAccuracy":
        return SingleAccuracy(self.pass_at_1, self.interval)


@dataclass(frozen=True)
class SingleAccuracy:
    """pass@1, in percent: how often a single sample is correct."""

    mean: float
    interval: tuple[float, float]
    """95% interval over problems."""

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.mean:.2f} ({low:.1f} to {high:.1f})"


def average_single(benchmarks: Sequence[Resampled]) -> SingleAccuracy:
    """pass@1 averaged over benchmarks (unweighted), as Acc@k is. The problems of each benchmark are resampled
    independently of the others.
    """
    means = []
    for number, benchmark in enumerate(benchmarks):
        # Another seed for each: benchmarks of the same size would otherwise draw the same problems.
        means.append(bootstrap_means(np.array(benchmark.shares), seed=number))
    mean = float(np.mean([benchmark.pass_at_1 for benchmark in benchmarks]))
    return SingleAccuracy(mean, percentile_interval(np.mean(means, axis=0)))


def resampled(folder: Path, grader: str) -> Resampled:
    """The metrics of a finished evaluation."""
    verify(folder, GRADES_FILE)
    return resampled_metrics(read_lines(folder / GRADES_FILE), grader)


def resampled_metrics(grades: Sequence[Grade], grader: str) -> Resampled:
    """The metrics of complete grades, in any order."""
    by_problem: dict[str, dict[int, list[Grade]]] = {}
    for grade in grades:
        by_seed = by_problem.setdefault(grade["problem"], {})
        by_seed.setdefault(grade["seed"], []).append(grade)

    shares = []
    passes = []
    majorities = []
    for problem in sorted(by_problem):
        draws = list(by_problem[problem].values())
        k = len(draws[0])
        votes = [majority(draw, grader) for draw in draws]
        correct = sum(grade[grader] for draw in draws for grade in draw)
        n = k * len(draws)
        shares.append(correct / n)
        passes.append(pass_at(k, n, correct))
        majorities.append(np.mean(votes))
    return Resampled(
        samples=n,
        k=k,
        pass_at_1=100 * float(np.mean(shares)),
        interval=bootstrap_interval(np.array(shares)),
        pass_at_k=100 * float(np.mean(passes)),
        majority_at_k=100 * float(np.mean(majorities)),
        shares=tuple(shares),
    )


def pass_at(k: int, n: int, correct: int) -> float:
    """pass@k of a problem: the probability that k of its n samples, drawn without replacement, contain a
    correct one. The unbiased estimator of Chen et al. (2021), 1 - C(n-c, k) / C(n, k).
    """
    return 1 - comb(n - correct, k) / comb(n, k)


def majority(draw: Sequence[Grade], grader: str) -> float:
    """maj@k of one draw of k samples: 1 if the most frequent answer is correct, and the share of correct ones
    if several are equally frequent. Samples without an answer do not vote.

    All correct answers are one vote, because they equal the gold answer. Wrong ones are the same if their
    canonical forms are.
    """
    votes: Counter[tuple[bool, str]] = Counter()
    for grade in draw:
        answer = grade[ANSWERS[grader]]
        if grade[grader]:
            votes[(True, "")] += 1
        elif answer is not None:
            votes[(False, _form(answer))] += 1
    most = max(votes.values(), default=0)
    winners = [is_correct for (is_correct, _), count in votes.items() if count == most]
    return sum(winners) / len(winners) if winners else 0.0


def _form(answer: str) -> str:
    number = canonical_number(answer)
    return canonical_latex(answer) if number is None else str(number)
