"""GRACE against its formula, split by split, and what it must prefer."""

import numpy as np
import pandas as pd
import pytest

from lark.analysis import grace
from lark.analysis.grace import by_teacher, splits


def naive(gradients: np.ndarray, questions: np.ndarray) -> float:
    """tr(Σ̃⁻¹ Σ) with the inverse from eigenvalues, as its source computes it."""
    scores = []
    for inside in splits(questions, 0):
        train, test = gradients[~inside], gradients[inside]
        d = gradients.shape[1]
        moment = sum(np.outer(g, g) / (g @ g) for g in train) / len(train)
        values, vectors = np.linalg.eigh(moment)
        values = 0.999 * values + 0.001 * values.sum() / d
        inverse = vectors @ np.diag(1 / values) @ vectors.T
        scores.append(sum(g @ inverse @ g for g in test) / len(test))
    return float(np.mean(scores))


def some(seed: int, questions: int = 30, d: int = 8) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(questions * 3, d)) * rng.uniform(0.5, 2, d), np.repeat(
        [f"q{n}" for n in range(questions)], 3
    )


def test_it_is_the_mean_over_splits_of_the_weighted_second_moment() -> None:
    gradients, questions = some(0)
    assert grace.grace(gradients, questions) == pytest.approx(naive(gradients, questions), rel=1e-9)
    few, names = some(1, questions=3, d=40)  # fewer gradients than dimensions
    assert grace.grace(few, names) == pytest.approx(naive(few, names), rel=1e-6)
    assert np.isnan(grace.grace(gradients[:3], questions[:3]))


def test_splits_keep_questions_together_and_hold_out_a_tenth() -> None:
    _, questions = some(0)
    found = list(splits(questions, 0))
    assert len(found) == 10
    for inside in found:
        assert len(set(questions[inside])) == 3
        assert not set(questions[inside]) & set(questions[~inside])
    assert len({tuple(inside) for inside in found}) == 10


def test_small_gradients_that_point_where_others_do_are_preferred() -> None:
    gradients, questions = some(0)
    assert grace.grace(0.5 * gradients, questions) == pytest.approx(0.25 * grace.grace(gradients, questions))
    rng = np.random.default_rng(1)
    shared = rng.normal(size=8) * rng.choice([-1, 1], size=(90, 1))  # one direction
    same, different = (
        x / np.linalg.norm(x, axis=1, keepdims=True) for x in (shared, rng.normal(size=(90, 8)))
    )
    assert grace.grace(same, questions) < grace.grace(different, questions)


def test_teachers_are_scored_by_their_own_gradients() -> None:
    (one, questions), (two, _) = some(0), some(5)
    vectors, norms = np.concatenate([one, two]), np.linalg.norm(np.concatenate([one, two]), axis=1)
    directions = (vectors / norms[:, None]).astype(np.float16)
    table = pd.DataFrame(
        {
            "question_id": np.tile(questions, 2),
            "teacher": ["a"] * len(one) + ["b"] * len(two),
            "gradient_norm": norms,
            "feature": [row.tobytes() for row in directions],
        }
    )
    found = by_teacher(table.sample(frac=1, random_state=0)).set_index("teacher")
    assert found["grace"].tolist() == pytest.approx([naive(one, questions), naive(two, questions)], rel=1e-2)
    assert found["gnorm"].tolist() == pytest.approx([norms[:90].mean(), norms[90:].mean()])
    assert found[["gradients", "questions"]].to_numpy().tolist() == [[90, 30]] * 2
