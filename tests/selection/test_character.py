"""The character of a selection against scipy, question by question; what is said about it."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lark.pool import trajectories as pools
from lark.pool.trajectory import Trajectory
from lark.selection.character import Character, character, sentence
from lark.selection.rules import select, share_weights
from lark.selection.write import report_character, write_selection
from tests.conftest import composed, job_of


def table(seed: int, questions: int = 6) -> tuple[pd.DataFrame, np.ndarray]:
    """Questions of different sizes with ties, rows without a response and rows without a score."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 9, questions)
    rows = int(sizes.sum())
    n_tokens = rng.integers(0, 6, rows) * 10
    found = pd.DataFrame(
        {
            "question_id": np.repeat([f"q{n}" for n in range(questions)], sizes),
            "candidate_id": [f"c{n}" for n in range(rows)],
            "n_tokens": n_tokens,
            "nll": np.where(n_tokens > 0, rng.integers(1, 9, rows) * 7.0, np.nan),
        }
    )
    preference = rng.integers(0, 5, rows).astype(float)
    preference[(n_tokens == 0) | (rng.random(rows) < 0.1)] = np.nan
    return found, preference


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_it_is_spearmans_correlation_within_questions_and_a_ratio_of_means(seed: int) -> None:
    pool, preference = table(seed)
    chosen = select(preference, pool.question_id, pool.candidate_id, 2, "uniform").row
    found = character(preference, pool, chosen)
    values = {"length": pool.n_tokens, "loss": pool.nll / pool.n_tokens.where(pool.n_tokens > 0)}
    for name, value in values.items():
        correlations = []
        for _, rows in pool[np.isfinite(preference)].groupby("question_id").groups.items():
            a, b = preference[rows], value[rows]
            if len(set(a)) > 1 and len(set(b)) > 1:
                correlations.append(stats.spearmanr(a, b).statistic)
        ours = getattr(found, f"{name}_correlation")
        assert ours == (pytest.approx(np.mean(correlations)) if correlations else None)
        reached = pool.question_id.isin(pool.question_id.iloc[chosen]) & np.isfinite(preference)
        if len(chosen):
            expected = value.iloc[chosen].mean() / value[reached].mean()
            assert getattr(found, f"{name}_ratio") == pytest.approx(expected)


def test_a_method_that_knows_no_loss_has_the_rest_and_nothing_is_said_of_an_older_selection() -> None:
    pool, preference = table(1)
    chosen = select(preference, pool.question_id, pool.candidate_id, 2, "uniform").row
    counts = character(preference, pool.drop(columns="nll"), chosen).counts()
    assert set(counts) == {"length_correlation", "length_ratio"}
    assert sentence({"trajectories": 3}) is None
    said = sentence(Character(-0.913, 0.25, 0.5, 1.125).counts())
    assert (
        said
        == "What the selection is like: ρ = −0.91 with the length, 0.50 of the pool's length; ρ = +0.25 with"
        " the loss, 1.12 of the pool's loss"
    )


@pytest.mark.parametrize(
    ("method", "rho", "said"), [("grape", -0.9, True), ("grape", -0.7, False), ("shortest", -1.0, False)]
)
def test_a_selection_that_is_nearly_a_length_rule_is_named_so(
    method: str, rho: float, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    report_character(composed(f"method={method}"), {"length_correlation": rho}, made=True)
    assert ("nearly a length rule (ρ = -0.90" in caplog.text) == said
    assert ("compare method=shortest" in caplog.text) == said


def duplicated(folder: Path, *overrides: str) -> tuple[pd.DataFrame, dict[str, object]]:
    """Candidates a, b and d say the same; c says something else. The second question has none that do."""
    long = "First we add three and four, which gives seven, and then we check the sum once more. "
    other = "Seven, because four and three are seven, as everybody has learned at school."
    texts = {"a": long * 2, "b": long * 2 + "\n", "c": other}
    rows = [
        Trajectory("q1", name, "t", 0, None, "3 + 4?", text, None, None)
        for name, text in {**texts, "d": long * 2}.items()
    ]
    rows += [
        Trajectory("q2", name, "t", 0, None, "3 + 4?", text, None, None)
        for name, text in (("a", long), ("b", texts["c"]))
    ]
    config = composed("method=token_length", "budget.size=3", *overrides)
    pools.write(iter(rows), folder / pools.FILE, config.pool)
    lengths = [
        {"question_id": r.question_id, "candidate_id": r.candidate_id, "n_tokens": 9 - i}
        for i, r in enumerate(rows)
    ]
    pd.DataFrame(lengths).to_parquet(folder / "lengths.parquet")
    counts = write_selection(job_of(config, folder, inputs={"pool": folder, "lengths": folder}))
    return pd.read_parquet(folder / "selection.parquet"), counts


def test_near_duplicates_share_the_weight_of_one(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    plain, counts = duplicated(tmp_path / "plain")
    assert plain["weight"].tolist() == pytest.approx([1 / 3] * 3 + [1 / 2] * 2)
    assert "near_duplicates" not in counts
    shared, counts = duplicated(tmp_path, "share_weights=true")
    assert shared["candidate_id"].tolist() == plain["candidate_id"].tolist() == ["a", "b", "c", "a", "b"]
    assert shared["weight"].tolist() == pytest.approx([1 / 4, 1 / 4, 1 / 2, 1 / 2, 1 / 2])
    assert counts["near_duplicates"] == 1


@given(seed=st.integers(0, 2**32 - 1), weighting=st.sampled_from(["uniform", "chi2", "softmax"]))
@settings(max_examples=30)
def test_shared_weights_sum_to_one_and_without_duplicates_nothing_changes(seed: int, weighting: str) -> None:
    pool, preference = table(seed)
    made = select(preference, pool.question_id, pool.candidate_id, 3, weighting)
    names = pool.question_id.to_numpy()[made.row]
    np.testing.assert_allclose(share_weights(made, np.arange(len(names))).weight, made.weight, rtol=1e-12)
    groups = (
        np.random.default_rng(seed).integers(0, 2, len(names)) + 2 * np.unique(names, return_inverse=True)[1]
    )
    shared = share_weights(made, groups)
    for question in set(names):
        own = names == question
        copies = np.array([(groups[own] == group).sum() for group in groups[own]])
        expected = made.weight[own] / copies
        np.testing.assert_allclose(shared.weight[own], expected / expected.sum(), rtol=1e-12)
