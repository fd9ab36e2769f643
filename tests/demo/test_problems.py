"""Problems are right by an independent evaluation, stay within 0 to 99, and are split so that benchmarks
stay unseen.
"""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lark.demo import exams
from lark.demo.problems import (
    KINDS,
    LARGEST_NUMBER,
    LEVELS,
    OPTIONS,
    ArithmeticProblem,
    draw,
    reserved,
    seeded,
)
from tests.demo.independent_arithmetic import evaluate

SEEDS = st.integers(0, 10**9)


@st.composite
def any_problem(take: st.DrawFn) -> ArithmeticProblem:
    return draw(take(st.sampled_from(KINDS)), take(st.sampled_from(LEVELS)), seeded(take(SEEDS)))


@given(any_problem())
def test_the_result_and_every_state_agree_with_an_independent_evaluation(problem: ArithmeticProblem) -> None:
    assert {evaluate(state) for state in problem.states} == {evaluate(problem.result)}


@given(any_problem())
def test_the_states_are_what_the_question_asks(problem: ArithmeticProblem) -> None:
    if not problem.opening:
        assert problem.states[0] in problem.question
    else:
        numbers = [int(n) for n in re.findall(r"\d+", problem.question.split("\n")[0])]
        assert numbers == [int(n) for n in re.findall(r"\d+", problem.states[0])]


@given(any_problem())
def test_every_intermediate_result_is_between_0_and_99(problem: ArithmeticProblem) -> None:
    assert len(problem.states) == len(problem.steps) + 1 == problem.level + 1
    for step in problem.steps:
        assert all(0 <= number <= LARGEST_NUMBER for number in (step.left, step.right, step.value))


@given(any_problem())
def test_the_answer_is_the_letter_of_the_only_option_that_holds_the_result(
    problem: ArithmeticProblem,
) -> None:
    if problem.kind != "choice":
        assert problem.answer == problem.result
        return
    listed = dict(re.findall(r"([A-D])\) (below \d+|\d+ to \d+|\d+ or more)", problem.question))
    assert list(listed) == list(OPTIONS)

    def holds(told: str) -> bool:
        numbers, value = [int(number) for number in re.findall(r"\d+", told)], int(problem.result)
        return value < numbers[0] if "below" in told else numbers[0] <= value <= [*numbers, LARGEST_NUMBER][1]

    assert [letter for letter, told in listed.items() if holds(told)] == [problem.answer]


@given(st.sampled_from(KINDS), st.sampled_from(LEVELS), SEEDS, st.booleans())
def test_a_drawn_problem_has_its_kind_its_level_and_its_side_of_the_split(
    kind: str, level: int, seed: int, benchmark: bool
) -> None:
    problem = draw(kind, level, seeded(seed), benchmark=benchmark)
    assert (problem.kind, problem.level, reserved(problem)) == (kind, level, benchmark)


@pytest.mark.parametrize("name", exams.KIND)
def test_a_benchmark_has_40_distinct_problems_of_all_levels(name: str) -> None:
    rows = exams.problems(name)
    assert len(rows) == len({row["question"] for row in rows}) == len({row["id"] for row in rows}) == 40
    assert {row["level"] for row in rows} == set(LEVELS)
    assert rows == exams.problems(name)


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_no_training_question_of_any_seed_is_in_a_benchmark(seed: int) -> None:
    asked = {row["question"] for name in exams.KIND for row in exams.problems(name)}
    rng = seeded(seed)
    assert asked.isdisjoint(draw(kind, level, rng).question for kind in KINDS for level in LEVELS)
