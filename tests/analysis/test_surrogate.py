"""Agreement of g-hat and g*: each number against its definition, and what it must be at the extremes."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from experiments.surrogate import surrogate_figure
from lark.analysis import questions as statistics
from lark.analysis import surrogate
from lark.analysis.gradients import Gram
from lark.analysis.kinds import GRADIENTS_TABLE
from lark.analysis.questions import Question
from tests.analysis.questions import made_up


def test_rescaling_gives_mean_and_scale_of_the_exact_score_and_keeps_the_order() -> None:
    rng = np.random.default_rng(0)
    g_hat, g_star = rng.normal(size=9), 5 + 3 * rng.normal(size=9)
    scaled = surrogate.rescale(g_hat, g_star)
    assert (scaled.mean(), scaled.std()) == pytest.approx((g_star.mean(), g_star.std()))
    assert np.argsort(scaled).tolist() == np.argsort(g_hat).tolist()
    assert surrogate.rescale(np.ones(3), np.arange(3.0)).tolist() == [1, 1, 1]


def test_rescaled_error_follows_from_the_correlation() -> None:
    """||ĝ' - g*||² = 2 K σ² (1 - r) once means and scales agree."""
    rng = np.random.default_rng(1)
    g_hat, g_star = rng.normal(size=9), 5 + 3 * rng.normal(size=9)
    r = np.corrcoef(g_hat, g_star)[0, 1]
    expected = np.sqrt(2 * g_star.var() * (1 - r) / (g_star**2).mean())
    assert surrogate.relative_error(surrogate.rescale(g_hat, g_star), g_star) == pytest.approx(expected)


def test_recall_counts_what_both_would_choose() -> None:
    g_hat, g_star = np.array([5.0, 4, 3, 2, 1]), np.array([4.0, 5, 0, 3, 1])
    assert [surrogate.recall(g_hat, g_star, B) for B in (1, 2, 3, 4, 5)] == [
        0,
        1,
        pytest.approx(2 / 3),
        0.75,
        1,
    ]


def test_orthogonal_gradients_with_the_residual_for_a_norm_agree_perfectly() -> None:
    question = made_up(0)
    gram = Gram(np.zeros((6, 6)), np.diag(question.brier), np.zeros((6, 6)))
    found = surrogate.agreement([Question("q", question.table, gram, tied=False)]).summary()
    assert found["pearson"] == pytest.approx(1)
    assert (found["error_mean"], found["error_raw_mean"], found["mean_cosine"]) == pytest.approx(
        (0, 0, 0), abs=1e-9
    )
    assert [found["recall@1"], found["recall@3"]] == [1, 1]


def test_pooled_numbers_are_those_of_all_pairs_and_chance_is_what_chance_gives() -> None:
    questions = [made_up(seed) for seed in range(40)]
    found = surrogate.agreement(questions)
    assert found.pearson == pytest.approx(
        np.corrcoef(found.pairs["g_hat_rescaled"], found.pairs["g_star"])[0, 1]
    )
    first = found.pairs[found.pairs["question_id"] == "q0"]
    assert found.questions["spearman"][0] == pytest.approx(
        stats.spearmanr(first["g_hat"], first["g_star"]).statistic
    )
    # Synthetic residuals are independent of the gradients: recall is the random baseline.
    assert (found.recalls["recall"] - found.recalls["random"]).abs().max() < 0.2
    assert found.recalls["random"].tolist() == pytest.approx([B / 6 for B in range(1, 6)])


def test_questions_survive_the_disk(tmp_path: Path) -> None:
    questions = [made_up(0), made_up(1, K=4)]
    pd.concat([question.rows() for question in questions]).sample(frac=1, random_state=0).to_parquet(
        tmp_path / GRADIENTS_TABLE.file
    )
    for before, after in zip(questions, statistics.read(tmp_path), strict=True):
        np.testing.assert_array_equal(after.gram.gram, before.gram.gram)
        np.testing.assert_array_equal(after.exact, before.exact)
        assert after.tied


def test_the_figure_labels_its_axes() -> None:
    figure = surrogate_figure(surrogate.agreement([made_up(seed) for seed in range(4)]), {})
    assert len(figure.axes) == 3
    assert all(axes.get_xlabel() and axes.get_ylabel() and axes.get_legend() for axes in figure.axes)
