"""Grades to table entries: compared with the paper's numbers and with independent formulations."""

import json
import math
import random
import statistics
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lark.errors import LarkError
from lark.evaluation.metrics import (
    BenchmarkMetrics,
    GradedSample,
    Spread,
    average,
    benchmark_metrics,
    bootstrap_interval,
)


def solved_counts(counts: tuple[int, ...], problems: int, k: int = 5) -> list[GradedSample]:
    """Samples of a benchmark on which seed s solves the first counts[s] problems, each with its last sample
    only.
    """
    return [
        GradedSample(f"{n:03d}", seed, i, correct=n < count and i == k - 1, truncated=False, boxed=True)
        for seed, count in enumerate(counts)
        for n in range(problems)
        for i in range(k)
    ]


def rounded(spread: Spread) -> tuple[float, float]:
    assert spread.std is not None
    return round(spread.mean, 2), round(spread.std, 2)


def test_the_spread_over_seeds_is_the_sample_standard_deviation() -> None:
    assert rounded(Spread.over([16.67, 20, 20])) == (18.89, 1.92)
    assert Spread.over([20.0]).std is None


QWEN_7B_BASE = {
    "aime": ((5, 6, 6), 30),
    "amc": ((36, 40, 43), 83),
    "gpqa": ((72, 78, 85), 198),
    "math": ((258, 283, 306), 500),
}
"""Solved problems by seed that give the printed first row of Table 1: our reconstruction; the paper has no
counts.
"""


def test_the_first_row_of_table_1_follows_from_whole_numbers_of_problems() -> None:
    row = {name: benchmark_metrics(solved_counts(*counts)) for name, counts in QWEN_7B_BASE.items()}
    printed = {"aime": (18.89, 1.92), "amc": (47.79, 4.23), "gpqa": (39.56, 3.29), "math": (56.47, 4.80)}
    assert {name: rounded(metrics.accuracy_at_k) for name, metrics in row.items()} == printed
    assert rounded(average(list(row.values()))) == (40.68, 3.51)


def test_avg_is_averaged_within_a_seed_and_not_over_the_stds() -> None:
    up, down = benchmark_metrics(solved_counts((1, 2, 3), 4)), benchmark_metrics(solved_counts((3, 2, 1), 4))
    assert rounded(average([up, down])) == (50.0, 0.0)
    assert rounded(average([up, up])) == (50.0, 25.0)


def test_avg_does_not_weigh_benchmarks_by_their_size() -> None:
    small, large = benchmark_metrics(solved_counts((2, 2), 2)), benchmark_metrics(solved_counts((0, 0), 200))
    assert average([small, large]).mean == 50


def test_avg_refuses_benchmarks_with_different_numbers_of_seeds() -> None:
    with pytest.raises(LarkError, match="the same number of seeds"):
        average([benchmark_metrics(solved_counts((1, 2), 4)), benchmark_metrics(solved_counts((1,), 4))])
    with pytest.raises(LarkError, match="no benchmark"):
        average([])


SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 12), st.integers(1, 5))


@settings(deadline=None, max_examples=50)
@given(shape=SHAPES, rng=st.randoms(use_true_random=False))
def test_metrics_agree_with_plain_counting_in_any_order_of_samples(
    shape: tuple[int, int, int], rng: random.Random
) -> None:
    seeds, problems, k = shape
    samples = [
        GradedSample(str(n), s, i, rng.random() < 0.3, rng.random() < 0.2, rng.random() < 0.8, level=n % 3)
        for s in range(seeds)
        for n in range(problems)
        for i in range(k)
    ]
    metrics = benchmark_metrics(samples)
    solved = [len({x.problem for x in samples if x.seed == s and x.correct}) for s in range(seeds)]
    assert metrics.accuracy_at_k.by_seed == pytest.approx([100 * count / problems for count in solved])
    assert metrics.sample_accuracy.mean == pytest.approx(100 * statistics.fmean(x.correct for x in samples))
    assert metrics.truncated == pytest.approx(100 * sum(x.truncated for x in samples) / len(samples))
    assert metrics.unboxed == pytest.approx(100 * sum(not x.boxed for x in samples) / len(samples))
    assert metrics.accuracy_at_k.mean >= metrics.sample_accuracy.mean - 1e-9
    if seeds > 1:
        assert metrics.accuracy_at_k.std == pytest.approx(statistics.stdev(metrics.accuracy_at_k.by_seed))
    weighted = sum(level.problems * level.accuracy_at_k.mean for level in metrics.levels) / problems
    assert weighted == pytest.approx(metrics.accuracy_at_k.mean)
    low, high = metrics.interval
    assert 0 <= low <= high <= 100
    rng.shuffle(samples)
    assert benchmark_metrics(samples) == metrics


def test_levels_are_reported_apart_and_only_where_there_are_any() -> None:
    samples = [replace(s, level=1 if s.problem == "000" else 5) for s in solved_counts((1, 1), 3)]
    levels = benchmark_metrics(samples).levels
    assert [(x.level, x.problems, x.accuracy_at_k.mean) for x in levels] == [(1, 1, 100.0), (5, 2, 0.0)]
    assert benchmark_metrics(solved_counts((1, 1), 3)).levels == ()


def test_the_bootstrap_interval_is_that_of_a_binomial() -> None:
    """For N problems solved under all seeds or none, resampled means are binomial: compare with its normal
    limit.
    """
    solved = np.repeat([1.0, 0.0], [200, 300])
    half_width = 100 * 1.96 * math.sqrt(0.4 * 0.6 / 500)
    low, high = bootstrap_interval(solved)
    assert low == pytest.approx(40 - half_width, abs=0.3)
    assert high == pytest.approx(40 + half_width, abs=0.3)


def test_the_bootstrap_resamples_problems_and_not_seeds() -> None:
    """Seeds that differ wildly on one problem alone: no resampling of one problem can show it."""
    assert bootstrap_interval(np.array([0.5])) == (50.0, 50.0)


def test_the_bootstrap_is_the_same_every_time_and_fast() -> None:
    solved = np.random.default_rng(1).random(500)
    start = time.process_time()
    assert bootstrap_interval(solved, seed=3) == bootstrap_interval(solved, seed=3)
    assert time.process_time() - start < 5
    assert bootstrap_interval(solved, seed=3) != bootstrap_interval(solved, seed=4)


def test_the_bootstrap_draws_the_same_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    solved = np.random.default_rng(1).random(83)
    whole = bootstrap_interval(solved)
    monkeypatch.setattr("lark.evaluation.metrics.BLOCK", 1000)
    assert bootstrap_interval(solved) == whole


def test_incomplete_evaluations_are_refused() -> None:
    samples = solved_counts((1, 1), 3)
    with pytest.raises(LarkError, match="no graded samples"):
        benchmark_metrics([])
    with pytest.raises(LarkError, match="incomplete"):
        benchmark_metrics(samples[1:])
    with pytest.raises(LarkError, match="merged twice"):
        benchmark_metrics([*samples, samples[0]])
    with pytest.raises(LarkError, match="incomplete"):
        benchmark_metrics(samples[5:])


def test_metrics_are_json() -> None:
    metrics: BenchmarkMetrics = benchmark_metrics(solved_counts((1, 2), 3))
    read = json.loads(json.dumps(metrics.to_dict()))
    assert read["accuracy_at_k"]["mean"] == pytest.approx(50)
    assert read["seeds"] == [0, 1]
