"""ρ(q), its derivatives and its shape, against autograd and the paper's other forms of them."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lark.analysis import decay_rate as rates
from lark.scoring.learnability import Floats


def problem(seed: int, K: int = 6, dim: int = 9) -> tuple[Floats, Floats, Floats]:
    """K gradients of a shared direction plus noise, their losses, and weights inside the simplex."""
    rng = np.random.default_rng(seed)
    gradients = rng.normal(size=(K, dim)) + rng.normal(size=dim) * rng.uniform(0, 2)
    return gradients, rng.uniform(0.05, 3, K), rng.dirichlet(np.ones(K))


seeds = st.integers(0, 100_000)


@settings(max_examples=25, deadline=None)
@given(seeds, st.integers(2, 9))
def test_rate_gradient_and_hessian_are_those_of_autograd(seed: int, K: int) -> None:
    gradients, losses, q = problem(seed, K)
    gram = gradients @ gradients.T
    g, loss = torch.tensor(gradients), torch.tensor(losses)

    def rho(q: torch.Tensor) -> torch.Tensor:
        return (q @ g).square().sum() / (q @ loss)

    point = torch.tensor(q, requires_grad=True)
    np.testing.assert_allclose(rates.rate(gram, losses, q), rho(point).item())
    np.testing.assert_allclose(
        rates.rate_gradient(gram, losses, q), torch.autograd.grad(rho(point), point)[0].numpy()
    )
    hessian = torch.autograd.functional.hessian(rho, torch.tensor(q)).numpy()
    np.testing.assert_allclose(
        rates.rate_hessian(gram, losses, q), hessian, rtol=1e-9, atol=1e-9 * np.abs(hessian).max()
    )


def test_hessian_is_the_difference_of_gradients() -> None:
    gradients, losses, q = problem(1)
    gram, step = gradients @ gradients.T, 1e-6
    rows = [
        (rates.rate_gradient(gram, losses, q + step * e) - rates.rate_gradient(gram, losses, q - step * e))
        / (2 * step)
        for e in np.eye(len(q))
    ]
    np.testing.assert_allclose(rates.rate_hessian(gram, losses, q), np.array(rows), rtol=1e-5, atol=1e-5)


def test_many_weights_at_once_equal_each_alone() -> None:
    gradients, losses, _ = problem(2)
    gram, q = gradients @ gradients.T, np.random.default_rng(0).dirichlet(np.ones(6), size=(3, 4))
    for function in (rates.rate, rates.rate_gradient, rates.rate_hessian):
        many = function(gram, losses, q)
        np.testing.assert_allclose(many[2, 1], function(gram, losses, q[2, 1]))
    np.testing.assert_allclose(rates.chi2(q)[1, 1], ((q[1, 1] - 1 / 6) ** 2 / (1 / 6)).sum())


@settings(max_examples=25, deadline=None)
@given(seeds)
def test_exact_score_is_the_closed_form_of_the_paper(seed: int) -> None:
    gradients, losses, _ = problem(seed)
    K, mean = len(losses), gradients.mean(0)
    rho = mean @ mean / losses.mean()
    closed = [2 * gradients[k] @ mean / losses.mean() - rho * losses[k] / losses.mean() for k in range(K)]
    score = rates.exact_score(gradients @ gradients.T, losses)
    np.testing.assert_allclose(score, closed)
    np.testing.assert_allclose(score.mean(), rho)


def test_orthogonal_gradients_make_the_diagonal_score_exact() -> None:
    losses, norms = np.array([0.5, 1.0, 2.0]), np.array([3.0, 1.0, 0.2])
    gram = np.diag(norms)
    np.testing.assert_allclose(rates.diagonal_score(gram, losses), rates.exact_score(gram, losses))
    np.testing.assert_allclose(rates.surrogate_score(norms, losses), rates.exact_score(gram, losses))


@settings(max_examples=25, deadline=None)
@given(seeds)
def test_rate_is_quasiconvex_and_largest_at_a_vertex(seed: int) -> None:
    gradients, losses, _ = problem(seed)
    gram = gradients @ gradients.T
    samples = np.concatenate(list(rates.simplex_samples(6, 70, seed)))
    other = samples[np.random.default_rng(seed).permutation(len(samples))]
    share = np.random.default_rng(seed).uniform(size=len(samples))
    between = rates.rate(gram, losses, share[:, None] * samples + (1 - share[:, None]) * other)
    ends = np.maximum(rates.rate(gram, losses, samples), rates.rate(gram, losses, other))
    assert (between / ends).max() <= 1 + 1e-9
    assert rates.rate(gram, losses, samples).max() <= rates.single_rates(gram, losses).max() * (1 + 1e-9)


def test_the_path_leads_from_one_trajectory_to_almost_all() -> None:
    scores = np.array([0.1, 0.7, 0.4, 0.2])
    path = rates.budget_path(scores)
    assert [(q > 0).sum() for q in path] == [1, 2, 3]
    np.testing.assert_allclose(path.sum(1), 1)
    np.testing.assert_allclose(path[1], [0, 0.5 / 0.7, 0.2 / 0.7, 0], atol=1e-12)
    # Lemma 3: q̂(B) is the projection of p + ĝ/(K τ) onto the simplex, hence max(0, λ ĝ + c).
    positive = path[2] > 0
    slope, _ = np.polyfit(scores[positive], path[2][positive], 1)
    np.testing.assert_allclose(path[2], np.maximum(0, slope * (scores - 0.1)), atol=1e-12)


def test_samples_cover_the_corners_and_the_middle() -> None:
    samples = np.concatenate(list(rates.simplex_samples(5, 700, 0)))
    np.testing.assert_allclose(samples.sum(1), 1)
    assert (samples >= 0).all()
    assert samples.max(1).max() > 0.999
    assert rates.chi2(samples).min() < 0.2
