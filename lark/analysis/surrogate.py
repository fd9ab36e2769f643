"""Agreement of the forward-pass surrogate g-hat with the exact g* (paper, App. B.8). Pure functions.

Affine rescaling: within each question g-hat is shifted and stretched to the mean and standard deviation of
g*. That aligns questions with one another, so the pooled correlations of the paper contain the differences
*between* questions, which the rescaling itself has corrected; the correlations *within* questions, which
decide a selection, are reported next to them.

The paper does not state whether g-hat was rescaled in its relative error ||g-hat - g*|| / ||g*||. Both are
reported. The raw error compares a Brier score with squared gradient norms, which have different units, and
is close to 1 or far above; the paper's mean of 0.574 is what the rescaled error gives at its correlations.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from lark.analysis.decay_rate import diagonal_score
from lark.analysis.questions import Question, trajectories
from lark.scoring.by_question import Floats, Integers

LARGEST_BUDGET = 10
RECALLS_SHOWN = (1, 3, 10)
ATTAINED_SHOWN = 3
"""Budgets in the summary, if the questions have enough candidates."""


def rescale(surrogate: Floats, exact: Floats) -> Floats:
    """g-hat with the mean and standard deviation of g*; only the mean if g-hat is constant."""
    spread = surrogate.std()
    if not spread > 0:  # also without scores: NaN
        return np.full_like(surrogate, exact.mean())
    return np.asarray(exact.mean() + exact.std() * ((surrogate - surrogate.mean()) / spread))


def recall(surrogate: Floats, exact: Floats, budget: int) -> float:
    """|top_B(g-hat) ∩ top_B(g*)| / B; the first candidates in case of ties."""
    return len(np.intersect1d(_top(surrogate, budget), _top(exact, budget))) / budget


def attained(surrogate: Floats, exact: Floats, budget: int) -> float:
    """The share of the attainable g* that a selection gets: Σ g* over top_B(g-hat) / Σ g* over top_B(g*)."""
    return float(exact[_top(surrogate, budget)].sum() / exact[_top(exact, budget)].sum())


def _top(scores: Floats, budget: int) -> Integers:
    return np.argsort(-scores, kind="stable")[:budget]


def relative_error(surrogate: Floats, exact: Floats) -> float:
    """||g-hat - g*||_p / ||g*||_p, the norm of Corollary "p-weighted RMS error"."""
    return float(np.linalg.norm(surrogate - exact) / np.linalg.norm(exact))


@dataclass(frozen=True)
class Agreement:
    """The numbers of App. B.8, and those that it leaves open."""

    pairs: pd.DataFrame
    """One row per trajectory: `trajectories` and g_hat_rescaled."""
    questions: pd.DataFrame
    """One row per question: pearson, spearman, error (rescaled), error_raw, mean_cosine, K. Two more
    columns show which of the two approximations costs agreement: pearson_proxy of g-hat with g-tilde,
    pearson_diagonal of g-tilde with g*.
    """
    recalls: pd.DataFrame
    """One row per budget: recall, its standard deviation over questions, the random baseline B/K, and the
    attained share of g*.
    """

    @property
    def pearson(self) -> float:
        """Pooled over all trajectories, after rescaling."""
        return float(self.pairs["g_hat_rescaled"].corr(self.pairs["g_star"]))

    @property
    def spearman(self) -> float:
        return float(stats.spearmanr(self.pairs["g_hat_rescaled"], self.pairs["g_star"]).statistic)

    def summary(self) -> dict[str, float]:
        """The numbers of the figure and the text, by name."""
        by_budget = self.recalls.set_index("budget")
        budgets = by_budget.index
        recalls = {f"recall@{b}": float(by_budget["recall"][b]) for b in RECALLS_SHOWN if b in budgets}
        attained = {}
        if ATTAINED_SHOWN in budgets:
            attained[f"attained@{ATTAINED_SHOWN}"] = float(by_budget["attained"][ATTAINED_SHOWN])

        def mean(column: str) -> float:
            return float(self.questions[column].mean())

        return {
            "pearson": self.pearson,
            "spearman": self.spearman,
            "pearson_within": mean("pearson"),
            "spearman_within": mean("spearman"),
            **recalls,
            **attained,
            "error_mean": mean("error"),
            "error_median": float(self.questions["error"].median()),
            "error_raw_mean": mean("error_raw"),
            "error_raw_median": float(self.questions["error_raw"].median()),
            "mean_cosine": mean("mean_cosine"),
            "pearson_proxy": mean("pearson_proxy"),
            "pearson_diagonal": mean("pearson_diagonal"),
        }


def agreement(questions: Sequence[Question], scores: Sequence[Floats] | None = None) -> Agreement:
    """g-hat, or other scores of each question's candidates, against g*.

    Budgets go up to 10, or to K-1 of the smallest question.
    """
    if scores is None:
        scores = [question.surrogate for question in questions]
    smallest = min(question.K for question in questions)
    budgets = range(1, min(LARGEST_BUDGET, smallest - 1) + 1)
    rows = []
    recalls = []
    shares = []
    rescaled = []
    for question, g_hat in zip(questions, scores, strict=True):
        g_star = question.exact
        g_tilde = diagonal_score(question.gram.gram, question.losses)
        rescaled.append(rescale(g_hat, g_star))
        rows.append(
            {
                "question_id": question.question_id,
                "K": question.K,
                "pearson": _pearson(g_hat, g_star),
                "spearman": _pearson(stats.rankdata(g_hat), stats.rankdata(g_star)),
                "pearson_proxy": _pearson(g_hat, g_tilde),
                "pearson_diagonal": _pearson(g_tilde, g_star),
                "error": relative_error(rescaled[-1], g_star),
                "error_raw": relative_error(g_hat, g_star),
                "mean_cosine": question.mean_cosine,
            }
        )
        recalls.append([recall(g_hat, g_star, budget) for budget in budgets])
        shares.append([attained(g_hat, g_star, budget) for budget in budgets])
    chances = []
    for budget in budgets:
        chances.append(np.mean([budget / question.K for question in questions]))
    columns = {
        "budget": list(budgets),
        "recall": np.mean(recalls, axis=0),
        # Over questions, which are the independent samples.
        "std": np.std(recalls, axis=0, ddof=1) if len(questions) > 1 else np.nan,
        "random": chances,
        "attained": np.mean(shares, axis=0),
    }
    pairs = trajectories(questions).assign(g_hat_rescaled=np.concatenate(rescaled))
    return Agreement(pairs, pd.DataFrame(rows), pd.DataFrame(columns))


def _pearson(a: Floats, b: Floats) -> float:
    """Pearson correlation; NaN if either is constant."""
    varies = a.std() > 0 and b.std() > 0
    return float(np.corrcoef(a, b)[0, 1]) if varies else float("nan")
