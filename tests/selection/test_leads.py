"""The best teacher is lost in at most 5% of simulated runs, and those that are clearly behind stop early."""

import numpy as np
import pytest

from lark.selection.leads import behind, leads
from tests.selection.simulated_heats import PLANTED, SIZES, Outcomes, Teachers, outcomes

REPETITIONS = 200
MOST = 0.05
CHANCE = 2 * np.sqrt(MOST * (1 - MOST) / REPETITIONS)
"""Two standard errors of a rate of 5%."""
CLEAR = [teachers for teachers in PLANTED if teachers.name.startswith("one best")]


@pytest.fixture(scope="module")
def ends() -> dict[str, Outcomes]:
    return {teachers.name: outcomes(teachers, REPETITIONS) for teachers in PLANTED}


@pytest.mark.parametrize("teachers", PLANTED, ids=lambda teachers: teachers.name)
def test_the_best_teacher_is_lost_in_at_most_5_percent_of_the_runs(
    teachers: Teachers, ends: dict[str, Outcomes]
) -> None:
    assert ends[teachers.name].lost < MOST + CHANCE


@pytest.mark.parametrize("teachers", CLEAR, ids=lambda teachers: teachers.name)
def test_a_teacher_that_is_clearly_worst_stops_after_the_first_heat(
    teachers: Teachers, ends: dict[str, Outcomes]
) -> None:
    assert ends[teachers.name].lost == 0
    assert ends[teachers.name].first_heat > 0.95
    assert ends[teachers.name].saved > 0.7


def test_equal_teachers_are_asked_everything(ends: dict[str, Outcomes]) -> None:
    assert ends["all six equal"].saved < 0.02


def test_a_lead_is_the_share_of_other_teachers_rollouts_that_rank_after_it() -> None:
    values = np.array([[[3.0, 1.0], [2.0, 1.0], [-np.inf, -np.inf]]])
    # 3 is before all four others; the 1 of the first teacher is before the two that cannot be selected and
    # equal to one. Those that cannot be selected are equal to nothing of the others.
    assert leads(values).tolist() == [[(4 + 2.5) / 8, (3 + 2.5) / 8, 0.0]]


def test_leads_add_up_to_half_of_all_pairs() -> None:
    values = np.random.default_rng(0).normal(size=(7, 5, 3))
    assert leads(values).mean(axis=1) == pytest.approx(0.5)


def test_the_reason_names_the_teacher_ahead_and_an_interval_that_is_simultaneous() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=(60, 3, 4)) + np.array([1.5, 1.0, 0.0])[:, None]
    results = dict(zip(("a", "b", "c"), leads(values).T, strict=True))
    stopped = behind(results, 1, 2)
    assert list(stopped) == ["b", "c"]
    why = stopped["c"]
    assert (why.heat, why.questions, why.ahead) == (1, 60, "a")
    assert why.difference == pytest.approx(results["a"].mean() - results["c"].mean())
    assert 0 < why.low < why.difference < why.high
    # More decisions share the same error, so each is more careful.
    assert behind(results, 1, 20)["c"].low < why.low


def test_few_questions_stop_nobody() -> None:
    values = np.tile(np.array([[1.0], [0.0]]), (5, 1, 1))
    results = dict(zip("ab", leads(values).T, strict=True))
    assert behind(results, 1, len(SIZES)) == {}
    values = np.tile(np.array([[1.0], [0.0]]), (12, 1, 1))
    results = dict(zip("ab", leads(values).T, strict=True))
    assert list(behind(results, 1, len(SIZES))) == ["b"]
