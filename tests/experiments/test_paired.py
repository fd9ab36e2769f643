"""Intervals contain the truth as often as they claim, and verdicts are wrong as rarely as they claim, in
simulated tournaments.
"""

import numpy as np
import pytest

from experiments.harness.halving import ERROR, Design, judge, tournament
from lark.selection.paired import compare
from tests.experiments.simulated import Rates, World, coverage, outcomes, trainer

HALVING = Design((2, 4, 8))
REPETITIONS = 400
TIE = (0.0,) * 6
CHANCE = 2 * np.sqrt(ERROR * (1 - ERROR) / REPETITIONS)
"""Two standard errors of a rate of 5%."""


@pytest.mark.parametrize(
    ("abilities", "effect", "seeds"), [(TIE, 0.4, 2), (TIE, 0.2, 3), ((0.5, 0.4, 0.3, 0.2, 0.1, 0.0), 0.3, 3)]
)
def test_95_percent_intervals_contain_the_true_difference_and_verdicts_are_seldom_wrong(
    abilities: tuple[float, ...], effect: float, seeds: int
) -> None:
    inside, wrong = coverage(World(abilities, effect), seeds, REPETITIONS, resamples=800)
    assert 0.935 < inside < 0.975
    assert wrong < ERROR + CHANCE


@pytest.fixture(scope="module")
def clear() -> Rates:
    return outcomes(World((1.5, *TIE[1:])), HALVING, REPETITIONS // 2, resamples=800)


def test_a_planted_winner_is_called_and_the_others_stop_early(clear: Rates) -> None:
    assert clear.winner > 0.95
    assert clear.wrong < ERROR
    assert clear.runs < 0.7 * HALVING.runs(6)


@pytest.mark.parametrize("abilities", [TIE, (0.8, 0.8, 0.0, 0.0, 0.0, 0.0)])
def test_a_planted_tie_is_called_a_tie_under_halving(abilities: tuple[float, ...]) -> None:
    found = outcomes(World(abilities, 0.3), HALVING, REPETITIONS, resamples=800)
    assert found.tie > 0.97
    assert found.wrong < ERROR + CHANCE


@pytest.mark.parametrize("problems", [2, 6, 11, 16])
def test_few_problems_give_no_false_verdicts(problems: int) -> None:
    found = outcomes(World(TIE, 0.2, problems=problems, samples=1), HALVING, REPETITIONS, resamples=800)
    assert found.wrong < ERROR + CHANCE


def test_the_seeds_variance_is_pooled_by_degrees_of_freedom() -> None:
    steady = np.tile([0.0, 1.0], (8, 30))
    found = compare({"steady": steady, "unsteady": steady[:2] + np.array([[0.5], [-0.5]])})
    assert found.seed_deviation == pytest.approx((0.5 / 8) ** 0.5)


def test_a_comparison_is_antisymmetric_and_its_order_is_that_of_the_means() -> None:
    run = World((0.0, 1.0, 0.3)).answers(np.random.default_rng(0))
    found = compare({name: run(name, 0, 3) for name in "012"})
    assert np.array_equal(found.difference, -found.difference.T)
    assert np.allclose(found.low, -found.high.T)
    assert found.order == [1, 2, 0]
    assert found.difference[1, 0] == pytest.approx(found.means[1] - found.means[0])


def test_the_standard_error_has_both_parts_and_counts_single_answers_once() -> None:
    """Many repetitions of one small design: the variance of the difference is what is estimated, on
    average.
    """
    rng, world = np.random.default_rng(3), World((0.0, 0.0), 0.6, problems=40)
    found = []
    for _ in range(1500):
        run = world.answers(rng)
        found.append(compare({name: run(name, 0, 4) for name in "01"}, resamples=2))
    truth = np.var([each.difference[0, 1] for each in found])
    assert np.mean([each.error[0, 1] ** 2 for each in found]) == pytest.approx(truth, rel=0.08)


def test_with_one_seed_each_nothing_is_called_significant() -> None:
    run = World((3.0, -3.0)).answers(np.random.default_rng(0))
    found = compare({name: run(name, 0, 1) for name in "01"})
    assert found.seed_deviation is None and found.low[0, 1] > 0
    assert not found.significant.any()


def test_entrants_with_the_same_answers_tie() -> None:
    table = np.random.default_rng(0).integers(0, 2, (3, 50)).astype(float)
    found = compare({"a": table, "b": table.copy()})
    assert not found.significant.any() and found.difference[0, 1] == 0
    assert -found.low[0, 1] == found.high[0, 1] == pytest.approx(2.01 / 50, rel=0.02), (
        "one problem might have differed"
    )


@pytest.mark.parametrize("seeds", [2, 4])
def test_near_twins_do_not_hide_clear_differences(seeds: int) -> None:
    """Their difference has almost no variance, and nothing of it may be divided by that."""
    rng, called = np.random.default_rng(0), []
    for _ in range(60):
        good, bad = (
            rng.binomial(1, 0.85, (seeds, 60)).astype(float),
            rng.binomial(1, 0.3, (seeds, 60)).astype(float),
        )
        twin = good.copy()
        twin[0, 0] = 1 - twin[0, 0]
        found = compare({"a": good, "a again": good.copy(), "twin": twin, "b": bad}, resamples=800)
        assert np.isfinite(found.half).all() and np.isfinite(found.joint)
        assert found.half.max() < 0.6 and not found.significant[:3, :3].any()
        called.append(found.significant[:3, 3].all())
    assert np.mean(called) > 0.9


def test_the_interval_of_a_single_outcome_is_not_empty() -> None:
    found = compare({"a": np.ones((2, 12)), "b": np.zeros((2, 12))})
    assert 0.1 < found.half[0, 1] < 0.5 and found.seed_deviation == 0.0


def test_small_but_steady_differences_of_losses_are_significant() -> None:
    rng = np.random.default_rng(0)
    hard = -rng.uniform(0.5, 3.0, 14)
    tables = {str(gap): hard + gap + rng.normal(0, 0.01, (2, 14)) for gap in (0.0, 0.05, 0.1)}
    assert compare(tables).significant.sum() == 3


def test_halving_plans_as_many_runs_as_it_makes_for_tied_entrants() -> None:
    assert HALVING.entrants(6) == [6, 3, 2] and HALVING.runs(6) == 6 * 2 + 3 * 2 + 2 * 4
    assert Design((3,), halve=False).runs(5) == 15 and Design((1, 2, 3), halve=False).runs(4) == 12
    run = World(TIE).answers(np.random.default_rng(5))
    *_, last = tournament(World(TIE).names, HALVING, trainer(run))
    assert last.comparison.seeds.sum() == HALVING.runs(6)


def test_a_verdict_of_an_earlier_round_stays_and_the_loser_stops() -> None:
    rng = np.random.default_rng(0)
    good, bad = rng.binomial(5, 0.9, (2, 60)) / 5, rng.binomial(5, 0.1, (2, 60)) / 5
    first = judge({"a": good, "b": bad, "c": good}, ["a", "b", "c"], 0, HALVING)
    assert (
        first.ahead == ("a", "c")
        and first.behind("b") == ["a", "c"]
        and first.leader == "a"
        and first.tied == ["c"]
    )
    later = {"a": np.vstack([good, good]), "b": bad, "c": np.vstack([good, bad])}
    second = judge(later, first.ahead, 1, HALVING, first)
    assert second.behind("b") == ["a", "c"]
    assert second.leader == "a"
