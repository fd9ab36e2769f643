"""Budgets across questions: they are met, cover every question they can, grow consistently, and treat all
methods alike.
"""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lark.config import Budget
from lark.config.budget import quantity
from lark.errors import LarkError
from lark.scoring.methods import METHODS
from lark.selection.allocation import Across, places
from lark.selection.rules import WEIGHTINGS, Selection, select


@st.composite
def pools(draw: st.DrawFn) -> pd.DataFrame:
    """Questions with 1 to 6 candidates, with ties, missing scores, and response tokens."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=8))
    rows = [(f"q{n}", f"c{k}") for n, size in enumerate(sizes) for k in range(size)]
    grid = st.one_of(st.integers(-3, 3).map(float), st.just(np.nan), st.floats(-1e6, 1e6))
    scores = draw(st.lists(grid, min_size=len(rows), max_size=len(rows)))
    tokens = draw(st.lists(st.integers(1, 50), min_size=len(rows), max_size=len(rows)))
    return pd.DataFrame(rows, columns=["question_id", "candidate_id"]).assign(score=scores, n_tokens=tokens)


def chosen(
    pool: pd.DataFrame, limit: int, tokens: bool = False, most: int | None = None, weighting: str = "chi2"
) -> Selection:
    cost = pool["n_tokens"].to_numpy() if tokens else None
    return select(
        pool["score"], pool["question_id"], pool["candidate_id"], most, weighting, across=Across(limit, cost)
    )


def names(pool: pd.DataFrame, selection: Selection) -> set[tuple[str, str]]:
    rows = pool.iloc[selection.row]
    return set(zip(rows["question_id"], rows["candidate_id"], strict=True))


def queue(pool: pd.DataFrame, most: int) -> list[int]:
    """The order of docs/budgets.md, written as loops over rows."""
    valid = pool[np.isfinite(pool["score"])]
    order = dict(zip(valid["question_id"].unique(), places(valid["question_id"].unique()), strict=True))
    first, rest = [], []
    for name, question in valid.groupby("question_id"):
        ranked = question.sort_values(["score", "candidate_id"], ascending=[False, True], kind="stable")
        # The same formula as z_score, in the same order of summation: ties between questions are exact.
        base = np.sort(ranked["score"].to_numpy()) - ranked["score"].min()
        mean = np.cumsum(base)[-1] / len(base)
        spread = np.sqrt(np.cumsum((base - mean) ** 2)[-1] / len(base))
        for rank, (row, score) in enumerate(ranked["score"].items(), start=1):
            standard = (score - ranked["score"].min() - mean) / spread if spread > 0 else 0.0
            if rank > most:
                continue
            (first if rank == 1 else rest).append((0.0 if rank == 1 else -standard, rank, order[name], row))
    return [row for *_, row in sorted(first)] + [row for *_, row in sorted(rest)]


@given(pools(), st.integers(1, 40), st.booleans(), st.integers(1, 7))
def test_the_selection_is_the_longest_prefix_of_the_queue_that_fits(pool, limit, tokens, most):
    expected, spent = set(), 0
    for row in queue(pool, most):
        spent += int(pool["n_tokens"][row]) if tokens else 1
        if spent > limit:
            break
        expected.add(row)
    assert set(chosen(pool, limit, tokens, most).row.tolist()) == expected


@given(pools(), st.integers(1, 60))
def test_a_total_is_met_exactly_or_takes_everything(pool, limit):
    assert len(chosen(pool, limit).row) == min(limit, int(np.isfinite(pool["score"]).sum()))


@given(pools(), st.integers(1, 400))
def test_a_token_budget_is_met_to_within_one_trajectory(pool, limit):
    selection = chosen(pool, limit, tokens=True)
    spent, valid = int(pool["n_tokens"].iloc[selection.row].sum()), pool[np.isfinite(pool["score"])]
    assert spent <= limit
    if len(selection.row) < len(valid):
        assert limit - spent < valid["n_tokens"].max()


@given(pools(), st.integers(1, 400), st.booleans())
def test_every_question_gets_one_where_it_fits_and_then_its_best_ones(pool, limit, tokens):
    selection = chosen(pool, limit, tokens)
    best = queue(pool, 1)
    cost = int(pool["n_tokens"][best].sum()) if tokens else len(best)
    if cost <= limit:
        assert selection.n_unreached == 0
    reached = pool["question_id"].iloc[selection.row].value_counts()
    assert selection.n_unreached == len(best) - len(reached)
    if selection.n_unreached:
        assert (reached == 1).all()  # no second one while another question has none
    for rank, size in zip(selection.rank, selection.size, strict=True):
        assert 1 <= rank <= size


@given(pools(), st.integers(1, 200), st.integers(0, 200), st.booleans(), st.integers(1, 6))
def test_a_larger_budget_contains_the_smaller_one(pool, limit, more, tokens, most):
    small, large = chosen(pool, limit, tokens, most), chosen(pool, limit + more, tokens, most)
    assert names(pool, small) <= names(pool, large)


@given(pools(), st.integers(1, 200), st.booleans(), st.sampled_from(sorted(WEIGHTINGS)), st.randoms())
def test_the_order_of_rows_changes_nothing(pool, limit, tokens, weighting, random):
    order = list(range(len(pool)))
    random.shuffle(order)
    shuffled = pool.iloc[order].reset_index(drop=True)
    straight, moved = (
        chosen(pool, limit, tokens, None, weighting),
        chosen(shuffled, limit, tokens, None, weighting),
    )
    assert np.array_equal(straight.row, np.array(order, dtype=int)[moved.row])
    assert np.array_equal(straight.weight, moved.weight)


@given(pools(), st.integers(1, 60), st.sampled_from(sorted(WEIGHTINGS)))
def test_weights_sum_to_one_in_each_question_and_training_weights_have_mean_one(pool, limit, weighting):
    selection = chosen(pool, limit, weighting=weighting)
    if not len(selection.row):
        return
    sums = pd.Series(selection.weight).groupby(pool["question_id"].iloc[selection.row].to_numpy()).sum()
    assert np.allclose(sums, 1)
    assert selection.training_weight.mean() == pytest.approx(1)
    sizes = pool["question_id"].iloc[selection.row].value_counts()
    assert selection.size.tolist() == [sizes[name] for name in pool["question_id"].iloc[selection.row]]


@given(pools(), st.integers(1, 40), st.integers(1, 400))
def test_the_random_baseline_has_the_same_size_and_covers_as_many_questions(pool, limit, tokens):
    pool = pool.assign(score=pool["score"].fillna(0.5))  # every candidate can be chosen by both methods
    random = pool.assign(score=METHODS["random"].score(pool))
    ours, theirs = chosen(pool, limit), chosen(random, limit)
    assert len(ours.row) == len(theirs.row)
    assert ours.n_unreached == theirs.n_unreached
    if (
        ours.n_unreached
    ):  # the budget is smaller than the number of questions: both methods get the same questions
        assert set(pool["question_id"].iloc[ours.row]) == set(pool["question_id"].iloc[theirs.row])
    spent = [int(pool["n_tokens"].iloc[chosen(p, tokens, True).row].sum()) for p in (pool, random)]
    assert abs(spent[0] - spent[1]) < pool["n_tokens"].max()


@settings(max_examples=50)
@given(
    st.lists(st.lists(st.integers(-100, 100), min_size=2, max_size=6, unique=True), min_size=2, max_size=5),
    st.data(),
)
def test_the_scale_of_a_questions_scores_changes_nothing(scores, data):
    """Scores are comparable only within a question: each question may have its own unit and its own zero."""
    rows = [(f"q{n}", f"c{k}", float(s)) for n, question in enumerate(scores) for k, s in enumerate(question)]
    pool = pd.DataFrame(rows, columns=["question_id", "candidate_id", "score"])
    scale = {f"q{n}": 2.0 ** data.draw(st.integers(-8, 8)) for n in range(len(scores))}  # exact in binary
    moved = pool.assign(score=pool["score"] * pool["question_id"].map(scale))
    limit = data.draw(st.integers(1, len(pool)))
    assert names(pool, chosen(pool, limit)) == names(moved, chosen(moved, limit))


def test_a_question_with_one_outstanding_second_candidate_gets_more_than_one_without() -> None:
    flat, steep = [1.0, 0.5, 0.5, 0.5], [1.0, 0.99, 0.1, 0.1]
    pool = pd.DataFrame(
        [(q, f"c{k}", s) for q, scores in (("flat", flat), ("steep", steep)) for k, s in enumerate(scores)],
        columns=["question_id", "candidate_id", "score"],
    )
    assert names(pool, chosen(pool, 3)) == {("flat", "c0"), ("steep", "c0"), ("steep", "c1")}


def test_where_lower_is_better_the_lowest_are_chosen() -> None:
    selection = select(
        [3.0, 1.0, 2.0, 9.0],
        list("aaab"),
        list("xyzx"),
        None,
        "uniform",
        higher_is_better=False,
        across=Across(3),
    )
    assert selection.row.tolist() == [1, 2, 3]


@pytest.mark.filterwarnings("ignore:overflow")
def test_scores_whose_variance_overflows_are_still_chosen_by_rank() -> None:
    selection = select([1e308, -1e308, 0.0], list("aaa"), list("xyz"), None, "uniform", across=Across(2))
    assert selection.row.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5000", 5000),
        ("50M", 50_000_000),
        ("1.5B", 1_500_000_000),
        ("200k", 200_000),
        ("200K", 200_000),
        ("50_000", 50_000),
        ("1e6", 1_000_000),
        ("1000000.0", 1_000_000),
        ("2.5 m", 2_500_000),
        (" 7 ", 7),
    ],
)
def test_quantities_are_read_as_people_write_them(text, value):
    assert quantity("budget.tokens", text) == value


REFUSED = [
    "",
    "many",
    "0",
    "-5",
    "0.5",
    "1.2345k",
    "50MB",
    "5 0",
    "1e99",
    "1e999999",
    "nan",
    "inf",
    "٣",
    "1,5M",
]


@pytest.mark.parametrize("text", REFUSED)
def test_other_quantities_are_refused_in_a_sentence(text):
    with pytest.raises(LarkError, match=r"budget\.tokens=.*: give a whole number of at least 1"):
        quantity("budget.tokens", text)


@given(st.integers(1, 10**15), st.sampled_from([None, 3]))
def test_a_budget_has_one_name_and_one_identity_however_it_is_typed(value, size):
    budget = Budget(size, tokens=str(value))
    again = Budget(size, tokens=budget.name.removeprefix("tokens").removesuffix("-B3"))
    assert (again.identity, again.name) == (budget.identity, budget.name)


def test_a_budget_per_question_keeps_its_name_and_identity() -> None:
    assert (Budget().size, Budget().name, Budget().identity) == (3, "B3", 3)
    assert (Budget(7).name, Budget(7).identity) == ("B7", 7)


def test_a_total_cannot_be_combined_with_tokens() -> None:
    with pytest.raises(LarkError, match=r"budget\.total=5: cannot be combined with budget\.tokens"):
        Budget(total="5", tokens="10")


def test_the_papers_tables_need_a_budget_per_question() -> None:
    with pytest.raises(
        LarkError, match=r"budget\.total=5k: .*Set budget=3, or compare methods with `python run.py -m"
    ):
        _ = Budget(total="5k").per_question
