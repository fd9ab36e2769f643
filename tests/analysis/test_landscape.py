"""The plane, the lift back onto the simplex, and what is drawn on it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from experiments.landscape import landscape_figure
from lark.analysis import decay_rate as rates
from lark.analysis.landscape import landscape, lift, principal_plane
from lark.errors import LarkError
from tests.analysis.questions import made_up


def plane_of(seed: int, K: int = 5) -> np.ndarray:
    path = rates.budget_path(np.random.default_rng(seed).normal(size=K))
    return principal_plane(path - 1 / K)[0]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000))
def test_lift_projects_back_and_is_the_closest_to_uniform(seed: int) -> None:
    plane, q = plane_of(seed), np.random.default_rng(seed).dirichlet(np.ones(5) * 0.5)
    point = plane @ (q - 0.2)
    lifted = lift(plane, point)
    assert lifted.min() >= 0
    np.testing.assert_allclose(lifted.sum(), 1)
    np.testing.assert_allclose(plane @ (lifted - 0.2), point, atol=1e-6)
    assert rates.chi2(lifted) <= rates.chi2(q) + 1e-6
    # At the point to which it projects exactly: near the edge of the projection, rounding moves the closest q
    # far.
    point = plane @ (lifted - 0.2)
    constraints = [
        {"type": "eq", "fun": lambda x: plane @ (x - 0.2) - point},
        {"type": "eq", "fun": lambda x: x.sum() - 1},
    ]
    best = minimize(
        lambda x: ((x - 0.2) ** 2).sum(), q, bounds=[(0, 1)] * 5, constraints=constraints, tol=1e-12
    )
    assert rates.chi2(lifted) == pytest.approx(float(rates.chi2(best.x)), abs=1e-4)


def test_if_the_plane_contains_the_score_the_path_is_on_the_drawn_surface() -> None:
    """Lemma 3: q̂(B) is the distribution closest to p among all with the same <ĝ, q>."""
    scores = np.random.default_rng(3).normal(size=6)
    first = scores - scores.mean()
    first /= np.linalg.norm(first)
    second = np.array([1.0, -1, 0, 0, 0, 0])
    second -= second @ first * first
    plane = np.stack([first, second / np.linalg.norm(second)])
    for q in rates.budget_path(scores):
        np.testing.assert_allclose(lift(plane, plane @ (q - 1 / 6)), q, atol=1e-5)


def test_plane_is_orthonormal_keeps_the_sum_of_weights_and_is_the_same_every_time() -> None:
    plane = plane_of(0)
    np.testing.assert_allclose(plane @ plane.T, np.eye(2), atol=1e-12)
    np.testing.assert_allclose(plane.sum(1), 0, atol=1e-12)
    np.testing.assert_array_equal(plane, plane_of(0))
    with pytest.raises(LarkError, match="at least 3 candidates"):
        principal_plane(np.array([[0.5, -0.5]]))


def test_drawn_gains_are_those_of_the_decay_rate() -> None:
    question = made_up(2)
    scene = landscape(question, resolution=9)
    G, losses = question.gram.gram, question.losses
    prior = rates.rate(G, losses, rates.uniform(6))
    np.testing.assert_allclose(scene.vertices["gain"], np.diagonal(G) / losses - prior)
    path = rates.budget_path(question.surrogate)
    np.testing.assert_allclose(scene.path["gain"], [rates.rate(G, losses, q) - prior for q in path])
    inside = np.isfinite(scene.gain)
    assert 0.2 < inside.mean() < 1
    assert np.nanmax(scene.gain) <= scene.vertices["gain"].max() + 1e-6  # the maximum is at a vertex
    facts = scene.facts()
    assert facts["budgets"] == 5
    assert facts["budgets_with_gain"] == (scene.path["gain"] >= 0).sum()
    assert facts["random_share_with_gain"] == pytest.approx((scene.random_gain > 0).mean())
    assert set(scene.table()["kind"]) == {"path", "vertex", "grid"}
    figure = landscape_figure(scene)
    assert figure.axes[0].get_xlabel()
    assert figure.axes[1].get_ylabel().startswith("Δρ")
