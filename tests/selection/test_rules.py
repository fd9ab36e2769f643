"""Selection against independent formulations: a numerical optimum, a loop over questions, the paper's case
study.
"""

import math
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import minimize

from lark.errors import LarkError
from lark.scoring.learnability import learnability_score
from lark.selection.rules import WEIGHTINGS, Selection, check_dropped, select

GRID = st.integers(-24, 24).map(lambda n: n / 8)
"""Few distinct values, so that ties are common and differences are exact."""
SCORES = st.one_of(GRID, GRID, GRID, st.sampled_from([math.nan, math.inf, -math.inf]))
POOLS = st.lists(st.lists(SCORES, min_size=1, max_size=9), min_size=1, max_size=6)
DISTINCT = st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=33, unique=True)


def one_question(scores, budget, weighting="chi2", **kwargs) -> Selection:
    return select(scores, np.zeros(len(scores), int), np.arange(len(scores)), budget, weighting, **kwargs)


def dense(selection: Selection, rows: int) -> np.ndarray:
    """Weights of all candidates of one question, 0 where not chosen."""
    weights = np.zeros(rows)
    weights[selection.row] = selection.weight
    return weights


def flatten(pool: list[list[float]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    scores = np.array([score for question in pool for score in question])
    questions = np.array([index for index, question in enumerate(pool) for _ in question])
    candidates = np.array([candidate for question in pool for candidate in range(len(question))])
    return scores, questions, candidates


def naive_weights(
    utilities: list[float], chosen: list[float], threshold: float | None, weighting: str
) -> list[float]:
    equal = [1 / len(chosen)] * len(chosen)
    if threshold is None:
        return equal
    margins = [utility - threshold for utility in chosen]
    mean = math.fsum(utilities) / len(utilities)
    spread = math.sqrt(math.fsum((utility - mean) ** 2 for utility in utilities) / len(utilities))
    temperature = {"softmax": spread, "kl": math.fsum(margins)}.get(weighting, 0.0)
    if weighting == "chi2":
        mass = margins
    elif weighting == "proportional":
        mass = [max(utility, 0.0) for utility in chosen]
    elif temperature > 0:
        mass = [math.exp((utility - chosen[0]) / temperature) for utility in chosen]
    else:
        return equal
    total = math.fsum(mass)
    return [m / total for m in mass] if total > 0 else equal


PAPER = ["uniform", "proportional", "softmax", "kl", "chi2"]
"""The paper's weightings, which `naive_weights` computes. Other weightings need only have the properties of
all.
"""


def naive_select(pool: list[list[float]], budget: int, weighting: str, sign: int) -> list[tuple]:
    """One question at a time, as by hand: (question, candidate, rank, score, weight, threshold, tau)."""
    chosen_rows = []
    for index, scores in enumerate(pool):
        ranking = sorted(
            (-sign * score, candidate) for candidate, score in enumerate(scores) if math.isfinite(score)
        )
        utilities = [-key for key, _ in ranking]
        threshold = utilities[budget] if budget < len(utilities) else None
        top = ranking[:budget]
        weights = naive_weights(utilities, utilities[:budget], threshold, weighting) if top else []
        for rank, ((_, candidate), weight) in enumerate(zip(top, weights, strict=True), start=1):
            tau = math.nan
            if threshold is not None:
                tau = math.fsum(utility - threshold for utility in utilities[:budget]) / len(utilities)
            limit = math.nan if threshold is None else sign * threshold
            chosen_rows.append((index, candidate, rank, scores[candidate], weight, limit, tau))
    return chosen_rows


def project_to_simplex(point: np.ndarray) -> np.ndarray:
    """Euclidean projection, by bisection on the multiplier."""
    low, high = point.min() - 1.0, point.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(point - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(point - high, 0)


def test_case_study_of_the_paper_is_reproduced():
    """App. D.3: pid 839, K = 33, B = 3."""
    selection = one_question([0.00960] * 20 + [0.01782, 0.01285, 0.01687, 0.01426] + [0.0052] * 9, budget=3)
    assert selection.score.tolist() == [0.01782, 0.01687, 0.01426]
    np.testing.assert_allclose(selection.weight, [0.478, 0.387, 0.136], atol=5e-4)
    np.testing.assert_allclose(selection.threshold, 0.01285)
    np.testing.assert_allclose(selection.tau, 3.15e-4, atol=5e-7)


@given(DISTINCT, st.data())
def test_chi2_weights_are_the_projection_that_solves_the_regularised_problem(scores, data):
    """Eq. lark-quadratic: max <q-p, g> - tau K / 2 ||q-p||^2 is the projection of p + g / (tau K) on the
    simplex.
    """
    budget = data.draw(st.integers(1, len(scores) - 1))
    K, g = len(scores), np.array(scores, dtype=np.float64)
    selection = one_question(g, budget)
    assume(selection.tau[0] > 1e-4)
    expected = project_to_simplex(1 / K + g / (selection.tau[0] * K))
    np.testing.assert_allclose(dense(selection, K), expected, atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_chi2_weights_are_the_optimum_that_a_solver_finds(seed):
    rng = np.random.default_rng(seed)
    K, budget = 12, 1 + 2 * seed
    g = rng.normal(size=K)
    selection = one_question(g, budget)
    tau, p = selection.tau[0], np.full(K, 1 / K)

    def loss(q: np.ndarray) -> float:
        chi2 = np.sum((q - p) ** 2 / p)
        return -(g @ (q - p) - tau / 2 * chi2)

    solution = minimize(
        loss, p, method="SLSQP", bounds=[(0, 1)] * K,
        constraints={"type": "eq", "fun": lambda q: q.sum() - 1},
        options={"ftol": 1e-14, "maxiter": 1000},
    )  # fmt: skip
    np.testing.assert_allclose(dense(selection, K), solution.x, atol=1e-5)


@given(DISTINCT, st.data())
def test_tau_gives_exactly_the_budget_of_positive_weights(scores, data):
    budget = data.draw(st.integers(1, len(scores) - 1))
    selection = one_question(scores, budget)
    assert np.sum(selection.weight > 0) == budget == len(selection.row)
    assert np.all(np.diff(selection.weight) <= 0)


@given(POOLS, st.integers(1, 11), st.sampled_from(PAPER), st.booleans())
def test_all_questions_at_once_equal_a_loop_over_questions(pool, budget, weighting, higher_is_better):
    scores, questions, candidates = flatten(pool)
    selection = select(scores, questions, candidates, budget, weighting, higher_is_better=higher_is_better)
    expected = naive_select(pool, budget, weighting, 1 if higher_is_better else -1)
    actual = zip(
        questions[selection.row], candidates[selection.row],
        selection.rank, selection.score, selection.weight,
        selection.threshold, selection.tau, strict=True,
    )  # fmt: skip
    np.testing.assert_allclose(
        np.array(list(actual)).reshape(-1, 7), np.array(expected).reshape(-1, 7), rtol=1e-12, atol=1e-12
    )
    valid = [sum(map(math.isfinite, question)) for question in pool]
    assert selection.dropped == tuple(index for index, count in enumerate(valid) if count == 0)
    assert selection.n_whole == sum(0 < count <= budget for count in valid)
    assert selection.n_questions == len(pool)
    np.testing.assert_array_equal(selection.size, [min(budget, valid[q]) for q in questions[selection.row]])


@given(POOLS, st.integers(1, 11), st.sampled_from(sorted(WEIGHTINGS)), st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(pool, budget, weighting, random):
    scores, questions, candidates = flatten(pool)
    order = list(range(len(scores)))
    random.shuffle(order)
    straight = select(scores, questions, candidates, budget, weighting)
    shuffled = select(scores[order], questions[order], candidates[order], budget, weighting)
    np.testing.assert_array_equal(np.array(order, dtype=int)[shuffled.row], straight.row)
    for name in (field.name for field in fields(Selection) if field.name != "row"):
        np.testing.assert_array_equal(getattr(shuffled, name), getattr(straight, name))


@given(DISTINCT, st.data(), st.floats(0.01, 100), st.floats(-5, 5))
def test_chi2_weights_do_not_depend_on_scale_and_shift(scores, data, scale, shift):
    budget = data.draw(st.integers(1, len(scores) - 1))
    g = np.array(scores, dtype=np.float64)
    straight, moved = one_question(g, budget), one_question(scale * g + shift, budget)
    assume(np.min(np.diff(np.sort(g))) > 1e-6)
    np.testing.assert_array_equal(moved.row, straight.row)
    np.testing.assert_allclose(moved.weight, straight.weight, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(moved.tau, scale * straight.tau, rtol=1e-6, atol=1e-12)


@given(POOLS, st.integers(1, 11), st.sampled_from(sorted(WEIGHTINGS)))
def test_weights_sum_to_one_in_each_question_and_training_weights_to_its_size(pool, budget, weighting):
    scores, questions, candidates = flatten(pool)
    selection = select(scores, questions, candidates, budget, weighting)
    chosen = questions[selection.row]
    assert np.all(selection.weight >= 0)
    for question in np.unique(chosen):
        assert math.isclose(selection.weight[chosen == question].sum(), 1, rel_tol=1e-12)
        assert math.isclose(selection.training_weight[chosen == question].sum(), np.sum(chosen == question))


@pytest.mark.parametrize("weighting", sorted(WEIGHTINGS))
@pytest.mark.parametrize("budget", [3, 4])
def test_a_budget_that_takes_everything_weighs_everything_equally(weighting, budget):
    selection = one_question([0.3, 0.1, 0.2], budget, weighting)
    np.testing.assert_allclose(selection.weight, 1 / 3)
    assert np.isnan(selection.threshold).all()
    assert np.isnan(selection.tau).all()
    assert selection.n_whole == 1


@pytest.mark.parametrize("budget", [3, 4])
def test_margins_above_the_lowest_score_weigh_a_question_that_is_taken_whole(budget):
    """The authors' code: the threshold is 1e-8 below the lowest score, so 3, 2, 1 get 2/3, 1/3 and almost
    nothing.
    """
    selection = one_question([3.0, 1.0, 2.0], budget, "chi2", whole="margins")
    margins = np.array([2 + 1e-8, 1 + 1e-8, 1e-8])
    np.testing.assert_allclose(selection.weight, margins / margins.sum(), rtol=1e-6)
    assert selection.n_whole == 1
    np.testing.assert_allclose(one_question([2.0, 2.0, 2.0], budget, "chi2", whole="margins").weight, 1 / 3)
    np.testing.assert_allclose(
        one_question([3.0, 1.0, 2.0], budget, "uniform", whole="margins").weight, 1 / 3
    )


def test_margins_change_nothing_where_the_budget_leaves_a_candidate_out():
    for weighting in WEIGHTINGS:
        ours = one_question([0.3, 0.1, 0.2], 2, weighting, whole="margins")
        np.testing.assert_array_equal(ours.weight, one_question([0.3, 0.1, 0.2], 2, weighting).weight)


def test_uniform_weights_are_one_in_training():
    np.testing.assert_allclose(one_question([3.0, 2.0, 1.0, 0.0], 3, "uniform").training_weight, 1)


@pytest.mark.parametrize("weighting", PAPER)
def test_equal_scores_are_ordered_by_candidate_and_weighted_equally(weighting):
    selection = select([0.1] * 4, ["q"] * 4, ["d", "b", "c", "a"], 2, weighting)
    assert selection.row.tolist() == [3, 1]
    np.testing.assert_allclose(selection.weight, 0.5)


def test_a_chosen_trajectory_that_ties_with_the_threshold_has_no_weight():
    assert one_question([0.5, 0.2, 0.2, 0.1], 2).weight.tolist() == [1.0, 0.0]


def test_proportional_weights_ignore_negative_scores_and_are_uniform_without_positive_ones():
    np.testing.assert_allclose(
        one_question([3.0, 1.0, -1.0, -2.0], 3, "proportional").weight, [0.75, 0.25, 0]
    )
    np.testing.assert_allclose(one_question([-1.0, -2.0, -3.0], 2, "proportional").weight, 0.5)


def test_lower_is_better_ranks_from_below_and_reports_the_score_as_given():
    selection = one_question([5.0, 1.0, 2.0, 4.0], 2, "chi2", higher_is_better=False)
    assert selection.row.tolist() == [1, 2]
    assert selection.score.tolist() == [1.0, 2.0]
    assert selection.threshold.tolist() == [4.0, 4.0]
    np.testing.assert_allclose(selection.weight, [3 / 5, 2 / 5])
    np.testing.assert_allclose(selection.tau, 5 / 4)


def test_invalid_candidates_do_not_count_in_tau():
    valid, padded = (
        one_question([3.0, 2.0, 1.0], 1),
        one_question([np.nan, 3.0, np.inf, 2.0, 1.0, -np.inf], 1),
    )
    assert padded.row.tolist() == [1]
    assert padded.tau.tolist() == valid.tau.tolist() == [1 / 3]


def test_huge_scores_do_not_overflow_the_exponential_weightings():
    for weighting in ("softmax", "kl"):
        assert np.isfinite(one_question([1e150, 1e149, 1.0, 0.0], 2, weighting).weight).all()


def test_a_dropped_question_is_named_and_too_many_are_an_error():
    scores, questions = np.ones(200), np.array([f"q{n:03d}" for n in range(200)])
    scores[[7, 9]] = np.nan
    selection = select(scores, questions, ["a"] * 200, 1, "chi2")
    assert selection.dropped == ("q007", "q009")
    check_dropped(selection)
    scores[11] = np.nan
    with pytest.raises(LarkError, match=r"3 of 200 questions .*q007, q009, q011"):
        check_dropped(select(scores, questions, ["a"] * 200, 1, "chi2"))


def test_nothing_selected_from_nothing():
    selection = select([], [], [], 3, "chi2")
    assert len(selection.row) == selection.n_questions == selection.n_whole == 0
    assert len(select([np.nan], ["q"], ["a"], 3, "softmax").row) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, 2.0], ["q", "q"], ["a", "a"], 1, "chi2"), "Question q has more than one candidate a"),
        (([1.0], ["q"], ["a"], 1, "chi"), "weighting=chi: choose one of"),
        (([1.0], [None], ["a"], 1, "chi2"), "no question_id"),
    ],
)
def test_mistakes_are_named(arguments, message):
    with pytest.raises(LarkError, match=message):
        select(*arguments)


LOSSES = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 20), st.integers(0, 2)), min_size=1, max_size=30
)


@given(LOSSES, st.data())
def test_learnability_is_algorithm_1_line_7_for_each_question(rows, data):
    loss, rho, question = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    loss, rho = loss / 10, rho / 10
    invalid = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    rho[invalid] = np.nan
    actual = learnability_score(loss, rho, question.astype(int))
    for k in range(len(rows)):
        peers = [i for i in range(len(rows)) if question[i] == question[k] and not invalid[i]]
        total = math.fsum(loss[peers])
        expected = math.nan
        if not invalid[k]:
            expected = loss[k] / total * (2 * rho[k] - math.fsum(rho[i] * loss[i] for i in peers) / total)
        np.testing.assert_allclose(actual[k], expected, rtol=1e-12, atol=1e-15)
    order = data.draw(st.permutations(range(len(rows))))
    np.testing.assert_array_equal(learnability_score(loss[order], rho[order], question[order]), actual[order])


def test_learnability_is_the_gradient_of_rho_for_orthogonal_gradients():
    """Section 4.2.1: with g_i orthogonal, g* is the derivative of sum_i q_i^2 |g_i|^2 / sum_i q_i l_i at q
    = 1/K.
    """
    rng = np.random.default_rng(0)
    loss, norm2, K = rng.uniform(0.2, 2, 7), rng.uniform(0.1, 1, 7), 7

    def rate(q: np.ndarray) -> float:
        return float(np.sum(q**2 * norm2) / np.sum(q * loss))

    p, step = np.full(K, 1 / K), 1e-6
    numeric = [(rate(p + step * e) - rate(p - step * e)) / (2 * step) for e in np.eye(K)]
    np.testing.assert_allclose(learnability_score(loss, norm2 / loss, np.zeros(K, int)), numeric, rtol=1e-6)


def test_a_trajectory_without_loss_is_not_a_candidate():
    score = learnability_score([0.0, 0.5, 0.7, np.nan], [0.1, 0.4, 0.6, 0.5], [0, 0, 0, 0])
    assert np.isnan(score).tolist() == [True, False, False, True]
    np.testing.assert_array_equal(score[1:3], learnability_score([0.5, 0.7], [0.4, 0.6], [0, 0]))
