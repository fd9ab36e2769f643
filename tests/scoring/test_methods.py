"""Each method against a direct computation, and what all methods have in common."""

import math
import re
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lark.errors import LarkError
from lark.scoring.by_question import z_score
from lark.scoring.methods import METHODS, find_method
from lark.scoring.sources import INDICATORS, SOURCES
from lark.scoring.text import indicators
from lark.selection.rules import select

WORDS = [
    "we",
    "Check",
    "verify,",
    "perhaps",
    "MIGHT",
    "therefore",
    "Since",
    "checking",
    "mighty",
    "x=1",
    "so.",
]


def trajectories(questions: int = 4, candidates: int = 5, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rows = questions * candidates
    n_tokens = rng.integers(1, 400, rows)
    nll = n_tokens * rng.gamma(4, 0.1, rows)
    table = pd.DataFrame(
        {
            "question_id": np.repeat([f"q{n}" for n in range(questions)], candidates),
            "candidate_id": np.tile([f"t{n}" for n in range(candidates)], questions),
            "n_tokens": n_tokens,
            "nll": nll,
            "brier": nll * rng.uniform(0.2, 0.7, rows),
            "rank_sum": n_tokens * rng.integers(1, 20, rows),
            "local_naturalness": -rng.gamma(4, 0.1, rows),
            "unprompted_nll": nll * rng.uniform(0.8, 3, rows),
            "correct": rng.choice([0.0, 1.0, np.nan], rows),
            "judge": rng.integers(0, 11, rows) / 10,
            "external": rng.normal(size=rows),
            **described([" ".join(rng.choice(WORDS, rng.integers(1, 60))) for _ in range(rows)]),
        }
    )
    others = {column for source in SOURCES.values() for column in source.columns} - set(table.columns)
    return table.assign(**{column: rng.normal(size=rows) for column in sorted(others)})


def described(texts: list[str]) -> dict[str, list]:
    """The texts, for the naive computation, and their indicators, as the method sees them."""
    return {
        "text": texts,
        **dict(zip(INDICATORS, map(list, zip(*map(indicators, texts), strict=True)), strict=True)),
    }


def naive_z(values: list[float]) -> list[float]:
    mean = math.fsum(values) / len(values)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    return [(value - mean) / spread if len(set(values)) > 1 else 0.0 for value in values]


def naive_rule_quality(texts: list[str]) -> list[float]:
    """The four indicators of App. C.2, word by word."""
    lengths, frequencies = [], []
    for text in texts:
        count = Counter(re.findall(r"\w+", text.lower()))
        lengths.append(len(text.split()))
        groups = (("check", "verify"), ("perhaps", "might"), ("therefore", "since"))
        frequencies.append([sum(count[word] for word in group) / max(lengths[-1], 1) for group in groups])
    indicators = [naive_z(lengths), *(naive_z([row[group] for row in frequencies]) for group in range(3))]
    return [0.30 * a + 0.20 * b + 0.25 * c + 0.25 * d for a, b, c, d in zip(*indicators, strict=True)]


def naive_lark(rows: pd.DataFrame) -> list[float]:
    loss = [nll / n for nll, n in zip(rows.nll, rows.n_tokens, strict=True)]
    rho = [brier / nll for brier, nll in zip(rows.brier, rows.nll, strict=True)]
    total, mean = sum(loss), sum(r * ell for r, ell in zip(rho, loss, strict=True)) / sum(loss)
    return [ell / total * (2 * r - mean) for ell, r in zip(loss, rho, strict=True)]


def naive_medium_loss(rows: pd.DataFrame) -> list[float]:
    losses = [nll / n for nll, n in zip(rows.nll, rows.n_tokens, strict=True)]
    return [abs(loss - statistics.median(losses)) for loss in losses]


def naive_correct_then_likely(rows: pd.DataFrame) -> list[float]:
    likely = [math.exp(-nll / n) for nll, n in zip(rows.nll, rows.n_tokens, strict=True)]
    return [(1.0 if correct == 1 else 0.0) + p for correct, p in zip(rows.correct, likely, strict=True)]


def naive_ifd(rows: pd.DataFrame) -> list[float]:
    with_prompt = [nll / n for nll, n in zip(rows.nll, rows.n_tokens, strict=True)]
    without = [nll / n for nll, n in zip(rows.unprompted_nll, rows.n_tokens, strict=True)]
    ratios = [a / b for a, b in zip(with_prompt, without, strict=True)]
    return [ratio if ratio < 1 else 1 - ratio for ratio in ratios]


DIRECT = {
    "lark": naive_lark,
    "lark_top50": lambda rows: naive_lark(rows.assign(brier=rows.top50_residual)),
    "token_length": lambda rows: list(rows.n_tokens),
    "rule_quality": lambda rows: naive_rule_quality(list(rows.text)),
    "llm_judge": lambda rows: list(rows.judge),
    "grape": lambda rows: [-nll / n for nll, n in zip(rows.nll, rows.n_tokens, strict=True)],
    "local_naturalness": lambda rows: list(rows.local_naturalness),
    "entropy": lambda rows: list(rows.entropy),
    "renyi2": lambda rows: list(rows.renyi2),
    "rsr": lambda rows: [ranks / nll for ranks, nll in zip(rows.rank_sum, rows.nll, strict=True)],
    "shortest": lambda rows: list(rows.n_tokens),
    "medium_loss": naive_medium_loss,
    "correct_then_likely": naive_correct_then_likely,
    "ifd": naive_ifd,
    "external": lambda rows: list(rows.external),
    "inverse_loss": lambda rows: [n / nll for nll, n in zip(rows.nll, rows.n_tokens, strict=True)],
    "brier": lambda rows: list(rows.brier),
    "rho": lambda rows: [brier / nll for brier, nll in zip(rows.brier, rows.nll, strict=True)],
}
"""Scores of one question's candidates, for every method but random and those of gradients, which have tests
of their own.
"""


@pytest.mark.parametrize("name", sorted(DIRECT))
def test_method_equals_its_direct_computation(name):
    pool = trajectories()
    expected = [score for _, rows in pool.groupby("question_id") for score in DIRECT[name](rows)]
    np.testing.assert_allclose(METHODS[name].score(pool), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", sorted(METHODS))
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=20)
def test_scores_do_not_depend_on_the_order_of_rows_or_their_index(name, seed):
    pool = trajectories()
    order = np.random.default_rng(seed).permutation(len(pool))
    np.testing.assert_array_equal(METHODS[name].score(pool.iloc[order]), METHODS[name].score(pool)[order])


@pytest.mark.parametrize("name", sorted(METHODS))
def test_scores_of_a_question_do_not_depend_on_the_other_questions(name):
    pool = trajectories()
    alone = pool[pool.question_id == "q2"]
    np.testing.assert_array_equal(
        METHODS[name].score(alone), METHODS[name].score(pool)[pool.question_id == "q2"]
    )


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_trajectory_without_response_tokens_has_no_score_and_changes_no_other(name):
    pool = trajectories()
    pool.loc[3, ["n_tokens", "nll", "brier", "rank_sum"]] = 0
    pool.loc[3, list(INDICATORS)] = indicators("check check check")
    score = METHODS[name].score(pool)
    assert np.flatnonzero(np.isnan(score)).tolist() == [3]
    np.testing.assert_array_equal(np.delete(score, 3), METHODS[name].score(pool.drop(index=3)))


@pytest.mark.parametrize("name", ["lark", "rsr", "rho", "inverse_loss"])
def test_zero_loss_has_no_score_where_the_score_divides_by_it(name):
    pool = trajectories()
    pool.loc[3, ["nll", "brier"]] = 0.0
    score = METHODS[name].score(pool)
    assert np.flatnonzero(np.isnan(score)).tolist() == [3]
    assert not np.isinf(score).any()


def test_missing_inputs_give_no_scores():
    pool = trajectories()
    pool.loc[1, ["judge", "nll"]] = np.nan
    for name in ("llm_judge", "grape", "lark", "rsr"):
        assert np.flatnonzero(np.isnan(METHODS[name].score(pool))).tolist() == [1]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_reads_only_the_columns_it_needs(name):
    method = METHODS[name]
    columns = {"n_tokens", *(column for source in method.needs for column in SOURCES[source].columns)}
    pool = trajectories()
    np.testing.assert_array_equal(
        method.score(pool[["question_id", "candidate_id", *sorted(columns)]]), method.score(pool)
    )
    for column in sorted(columns):
        with pytest.raises(LarkError, match=f"method={name} needs .*{column}"):
            method.score(pool.drop(columns=column))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_an_empty_pool_has_no_scores(name):
    assert METHODS[name].score(trajectories().iloc[:0]).shape == (0,)


def test_methods_that_prefer_low_scores():
    assert {name for name in DIRECT if not METHODS[name].higher_is_better} == {
        "rsr",
        "shortest",
        "medium_loss",
    }


@pytest.mark.parametrize("name", sorted(METHODS))
def test_reversed_it_selects_what_it_puts_last(name):
    pool = trajectories()
    forward, backward = find_method(name), find_method(name, reverse=True)
    score = forward.score(pool)
    np.testing.assert_array_equal(backward.score(pool), score)
    both = [
        select(
            score, pool.question_id, pool.candidate_id, 5, "uniform", higher_is_better=method.higher_is_better
        )
        for method in (forward, backward)
    ]
    first, last = ([score[row] for row in chosen.row] for chosen in both)
    assert first[:5] == last[:5][::-1]


def test_a_correct_trajectory_comes_before_every_other_and_responses_that_need_no_prompt_come_last():
    pool = trajectories(questions=200)
    score = METHODS["correct_then_likely"].score(pool)
    assert score[pool.correct == 1].min() > score[pool.correct != 1].max()
    score, ratio = METHODS["ifd"].score(pool), pool.nll / pool.unprompted_nll
    assert score[ratio >= 1].max() < score[ratio < 1].min()
    np.testing.assert_array_equal(np.argsort(-score[ratio >= 1]), np.argsort(ratio[ratio >= 1]))


def test_external_takes_its_direction_from_the_configuration():
    assert not find_method("external", higher_is_better=False).higher_is_better
    assert not find_method("rsr", higher_is_better=True).higher_is_better
    assert find_method("lark", higher_is_better=False).higher_is_better
    assert find_method("external", higher_is_better=False, reverse=True).higher_is_better
    with pytest.raises(LarkError, match="method=larc: choose one of lark, random"):
        find_method("larc")


def test_random_draws_every_candidate_equally_often_and_differs_by_seed():
    pool = trajectories(questions=2000, candidates=5)
    first, second = (METHODS["random"].score(pool, {"seed": seed}) for seed in (1, 2))
    assert ((first >= 0) & (first < 1)).all()
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05
    chosen = select(first, pool.question_id, pool.candidate_id, 2, "uniform")
    counts = pool.candidate_id.iloc[chosen.row].value_counts()
    # 4,000 draws over 5 candidates: 800 expected each, standard deviation 22 (without replacement)
    assert counts.between(690, 910).all()
    np.testing.assert_array_equal(first, METHODS["random"].score(pool, {"seed": 1}))


def test_random_is_the_same_in_every_version():
    pool = pd.DataFrame({"question_id": ["q", "q"], "candidate_id": ["a", "b"], "n_tokens": [1, 1]})
    np.testing.assert_array_equal(
        METHODS["random"].score(pool, {"seed": 42}), [0.21012578108650581, 0.39335183365442916]
    )


def test_equal_indicators_add_nothing_even_where_rounding_would():
    values = np.array([0.1] * 3 + [1.0, 2.0])
    z = z_score(values, pd.Series(["a"] * 3 + ["b"] * 2))
    assert z.tolist() == [0, 0, 0, -1, 1]


def test_rule_quality_counts_whole_words_in_any_case():
    texts = ["CHECK it", "checks it", "check, it", "re-check it"]
    pool = pd.DataFrame({"question_id": "q", "candidate_id": list("abcd"), "n_tokens": 1, **described(texts)})
    score = METHODS["rule_quality"].score(pool)
    assert score[0] == score[2] == score[3] > score[1]


def test_a_response_without_words_can_be_scored():
    texts = described([" \n", "since it might"])
    pool = pd.DataFrame({"question_id": "q", "candidate_id": ["a", "b"], "n_tokens": 1, **texts})
    assert METHODS["rule_quality"].score(pool).tolist() == pytest.approx([-0.8, 0.8])


def test_the_registry_needs_no_model_library():
    code = "import sys, lark.scoring.methods; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
