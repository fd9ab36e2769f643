"""The four numbers of a student on a pool are those of the definitions, and a student far from the references
is named with the numbers that are far.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from experiments.harness.sweep import published_values
from lark.scoring.learnability import learnability_score
from lark.scoring.student_regime import (
    REFERENCES,
    StudentRegime,
    bounds,
    far_from_references,
    student_regime,
)

PAPER = REFERENCES["the paper's Qwen-2.5-7B"]
NARROW = StudentRegime(loss=3.80, p_gold=0.624, wrong_p2=0.222, rho=0.15)
"""The demo's earlier student, which finds most candidates absurd."""


def scores(questions: int = 5, K: int = 7) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    n_tokens = rng.integers(3, 40, questions * K)
    nll = n_tokens * rng.uniform(0.4, 2.0, len(n_tokens))
    return pd.DataFrame(
        {
            "question_id": np.repeat([f"q{i}" for i in range(questions)], K),
            "candidate_id": [f"c{i}" for i in range(questions * K)],
            "n_tokens": n_tokens,
            "nll": nll,
            "brier": nll * rng.uniform(0.2, 0.5, len(nll)),
            "p_gold": rng.uniform(0.3, 0.7, len(nll)),
            "wrong_p2": rng.uniform(0.05, 0.2, len(nll)),
        }
    )


def test_the_numbers_are_means_over_candidates_and_rho_is_k_times_the_mean_score() -> None:
    table = scores()
    regime = student_regime(table)
    assert regime is not None
    assert regime.loss == pytest.approx((table["nll"] / table["n_tokens"]).mean())
    assert regime.p_gold == pytest.approx(table["p_gold"].mean())
    assert regime.wrong_p2 == pytest.approx(table["wrong_p2"].mean())
    ratio = table["brier"] / table["nll"]
    scored = learnability_score(table["nll"] / table["n_tokens"], ratio, table["question_id"])
    assert regime.rho == pytest.approx(7 * scored.mean())


def test_candidates_without_a_response_do_not_count() -> None:
    table = scores()
    empty = table.head(1).assign(candidate_id="empty", n_tokens=0, nll=np.nan, brier=np.nan, p_gold=np.nan)
    assert student_regime(pd.concat([table, empty])) == student_regime(table)
    assert student_regime(empty) is None


def test_the_references_are_not_far_from_themselves_and_have_the_papers_numbers() -> None:
    assert all(far_from_references(replace(r, loss=r.loss or 1.0)) is None for r in REFERENCES.values())
    printed = published_values("token_level")
    assert PAPER.p_gold == printed["p_gold_all"]
    assert PAPER.wrong_p2 == printed["wrong_p2_all"]


def test_a_student_that_is_far_is_told_by_which_numbers() -> None:
    sentence = far_from_references(NARROW)
    assert sentence is not None
    assert "loss per token 3.80 (not 0.52 to 2.1)" in sentence
    assert "wrong-token concentration 0.22 (not 0.043 to 0.2)" in sentence
    assert "K × mean ĝ 0.15 (not 0.17 to 0.72)" in sentence
    assert "p(y_t)" not in sentence, "only the numbers that are far"
    assert "compare methods" in sentence.lower()


@pytest.mark.parametrize("name", ["loss", "p_gold", "wrong_p2", "rho"])
def test_a_number_is_far_just_outside_its_range(name: str) -> None:
    near = StudentRegime(loss=1.0, p_gold=0.5, wrong_p2=0.09, rho=0.34)
    assert far_from_references(near) is None
    low, high = bounds()[name]
    assert far_from_references(replace(near, **{name: low * 1.001})) is None
    assert far_from_references(replace(near, **{name: low * 0.999})) is not None
    assert far_from_references(replace(near, **{name: high * 1.001})) is not None
