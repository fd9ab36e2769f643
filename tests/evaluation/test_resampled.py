"""pass@1, pass@k and maj@k of graded samples: compared with drawing all subsets and with counting votes."""

import json
import random
import statistics
from itertools import combinations
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lark.errors import LarkError
from lark.evaluation.metrics import GradedSample, benchmark_metrics, bootstrap_interval
from lark.evaluation.resampled import average_single, majority, pass_at, resampled, resampled_metrics
from lark.store.integrity import stamps

Grade = dict[str, Any]


def grade(problem: str, seed: int, sample: int, is_correct: bool, answer: str | None = "7") -> Grade:
    return {
        **{"problem": problem, "seed": seed, "sample": sample, "paper": is_correct, "verify": not is_correct},
        **{"answer": answer, "answer_verify": answer},
    }


def draw(*answers: str | None, gold: str = "5") -> list[Grade]:
    return [grade("p", 0, i, answer == gold, answer) for i, answer in enumerate(answers)]


def test_pass_at_k_is_the_share_of_subsets_with_a_correct_sample() -> None:
    for n in range(1, 8):
        for correct in range(n + 1):
            for k in range(1, n + 1):
                subsets = list(combinations([True] * correct + [False] * (n - correct), k))
                assert len(subsets) == comb(n, k)
                assert pass_at(k, n, correct) == pytest.approx(statistics.fmean(map(any, subsets)))


@settings(deadline=None, max_examples=30)
@given(shape=st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 5)), seed=st.integers(0, 99))
def test_they_agree_with_the_stored_metrics_of_the_same_samples(
    shape: tuple[int, int, int], seed: int
) -> None:
    seeds, problems, k = shape
    rng = random.Random(seed)
    grades = [
        grade(f"p{n}", s, i, rng.random() < 0.4)
        for s in range(seeds)
        for n in range(problems)
        for i in range(k)
    ]
    stored = benchmark_metrics(
        GradedSample(g["problem"], g["seed"], g["sample"], g["paper"], False, True) for g in grades
    )
    rng.shuffle(grades)
    metrics = resampled_metrics(grades, "paper")
    assert (metrics.samples, metrics.k) == (seeds * k, k)
    assert metrics.pass_at_1 == pytest.approx(stored.sample_accuracy.mean)
    assert metrics.pass_at_1 == pytest.approx(100 - resampled_metrics(grades, "verify").pass_at_1)
    assert metrics.interval[0] - 1e-9 <= metrics.pass_at_1 <= metrics.interval[1] + 1e-9
    assert metrics.pass_at_k >= metrics.pass_at_1 - 1e-9
    if seeds == 1:  # the only subset of k samples is the seed's
        assert metrics.pass_at_k == pytest.approx(stored.accuracy_at_k.mean)


def test_pass_at_k_has_the_expectation_of_acc_at_k() -> None:
    """Acc@k takes the samples as the seeds divide them. Over all divisions, its mean is pass@k."""
    rng = np.random.default_rng(0)
    correct = np.array([True] * 3 + [False] * 12)
    divisions = [rng.permutation(correct).reshape(3, 5).any(axis=1).mean() for _ in range(20_000)]
    assert np.mean(divisions) == pytest.approx(pass_at(5, 15, 3), abs=0.005)


@pytest.mark.parametrize(("answers", "vote"), [
    (("5", "5", "6", "7", "8"), 1.0),
    (("5", "6", "6", "7", "8"), 0.0),
    (("5", "5", "6", "6", "8"), 0.5),
    (("5", "6", "7", "8", "9"), 0.2),
    (("5", None, None, None, None), 1.0),
    ((None, None, None, None, None), 0.0),
    (("5", "5", "0.5", "1/2", "\\frac12"), 0.0),  # three ways to write one wrong answer
])  # fmt: skip
def test_the_most_frequent_answer_wins_and_ties_count_in_part(
    answers: tuple[str | None, ...], vote: float
) -> None:
    assert majority(draw(*answers), "paper") == vote


def test_votes_are_counted_within_a_seed() -> None:
    """Two seeds that agree with themselves on different answers: half of the votes are right."""
    grades = [grade("p", 0, i, True, "5") for i in range(3)] + [
        grade("p", 1, i, False, "6") for i in range(3)
    ]
    metrics = resampled_metrics(grades, "paper")
    assert (metrics.majority_at_k, metrics.pass_at_1) == (50, 50)
    assert metrics.pass_at_k == pytest.approx(100 * (1 - 1 / 20))


def test_the_interval_is_over_problems_and_not_over_samples() -> None:
    """Ten samples of a problem that are all alike are one observation."""
    grades = [grade(f"p{n}", s, i, n < 5) for n in range(10) for s in range(2) for i in range(5)]
    assert resampled_metrics(grades, "paper").interval == bootstrap_interval(np.array([1.0] * 5 + [0.0] * 5))


def test_the_average_counts_benchmarks_equally_and_draws_their_problems_independently() -> None:
    """Two benchmarks with the same grades: the interval of their average is narrower than that of either."""
    large = [grade(f"p{n}", 0, i, n < 20) for n in range(40) for i in range(5)]
    small = [grade(f"p{n}", 0, i, False) for n in range(10) for i in range(5)]
    one = resampled_metrics(large, "paper")
    twice = average_single([one, one])
    assert twice.mean == one.pass_at_1 == 50
    width = one.interval[1] - one.interval[0]
    assert twice.interval[1] - twice.interval[0] == pytest.approx(width / np.sqrt(2), rel=0.1)
    assert average_single([one, resampled_metrics(small, "paper")]).mean == 25
    assert average_single([one]).interval == pytest.approx(one.interval)


def test_grades_that_changed_since_are_refused(tmp_path: Path) -> None:
    lines = [json.dumps(line) + "\n" for line in draw("5", "6")]
    (tmp_path / "grades.jsonl").write_text("".join(lines))
    manifest = {"status": "finished", "kind": "metrics", "fingerprint": "0", "files": stamps(tmp_path)}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert resampled(tmp_path, "paper").pass_at_1 == 50
    (tmp_path / "grades.jsonl").write_text("".join(reversed(lines)) * 2)
    with pytest.raises(LarkError):
        resampled(tmp_path, "paper")
