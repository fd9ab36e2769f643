"""The loss decay rate ρ(q) of a question as a function of the weights of its K trajectories (paper, eq. (2),
App. B.1-B.3).

Everything follows from two exact quantities at the anchor model: the Gram matrix G [K, K] of the
trajectories' gradients, G_ij = <∇ℓ_i, ∇ℓ_j>, and their losses ℓ [K]. With N(q) = qᵀGq and D(q) = ℓᵀq, ρ(q)
= N(q)/D(q). Pure functions in float64; weights may be one vector [K] or many [..., K].
"""

from collections.abc import Iterator
from math import ceil

import numpy as np

from lark.scoring.learnability import Floats, exact_score, learnability_score, rate, rate_gradient, uniform
from lark.selection.rules import select

__all__ = ["exact_score", "rate", "rate_gradient", "uniform"]  # scoring's; used here together with the others


def rate_hessian(gram: Floats, losses: Floats, q: Floats) -> Floats:
    """∇²ρ(q) = [2G - ℓ(∇ρ)ᵀ - (∇ρ)ℓᵀ] / D(q), Lemma "Hessian formula", for q [..., K]."""
    gradient = rate_gradient(gram, losses, q)
    outer = losses[:, None] * gradient[..., None, :]
    return np.asarray((2 * gram - outer - np.swapaxes(outer, -1, -2)) / (q @ losses)[..., None, None])


def single_rates(gram: Floats, losses: Floats) -> Floats:
    """ρ*_k = ||∇ℓ_k||² / ℓ_k, the rate at each vertex of the simplex."""
    return np.asarray(np.diagonal(gram) / losses)


def diagonal_score(gram: Floats, losses: Floats) -> Floats:
    """g-tilde, eq. (gtilde-def): exact rates ρ*_k, with gradients of trajectories as if orthogonal."""
    return learnability_score(losses, single_rates(gram, losses), np.zeros(len(losses), dtype=np.int64))


def surrogate_score(brier: Floats, losses: Floats) -> Floats:
    """g-hat, eq. (ghat-closed): ρ̂_k = Brier_k / ℓ_k, a forward-pass proxy of exact rates (decision 1)."""
    return learnability_score(losses, brier / losses, np.zeros(len(losses), dtype=np.int64))


def chi2(q: Floats) -> Floats:
    """χ²(q ‖ p) = K ||q - p||², eq. (chi2-as-norm), for q [..., K]."""
    K = q.shape[-1]
    return np.asarray(K * ((q - 1 / K) ** 2).sum(-1))


def budget_path(scores: Floats) -> Floats:
    """[K-1, K] q̂(B) of Lemma 3 for B = 1..K-1, each in the candidates' order."""
    K = len(scores)
    path = np.zeros((K - 1, K))
    for budget, q in enumerate(path, start=1):
        chosen = select(scores, np.zeros(K, dtype=np.int64), np.arange(K), budget, "chi2")
        q[chosen.row] = chosen.weight
    return path


def simplex_samples(K: int, count: int, seed: int) -> Iterator[Floats]:
    """Batches [n, K] that cover the simplex, from nearly one-hot (concentration 0.01) to nearly uniform."""
    rng = np.random.default_rng(seed)
    concentrations = np.geomspace(0.01, 10, 7)
    size = ceil(count / len(concentrations))
    for concentration in concentrations:
        # Normalised gamma variables have Dirichlet's distribution. Tiny concentrations underflow to 0.
        draws = rng.standard_gamma(concentration, size=(size, K)) + 1e-300
        yield draws / draws.sum(1, keepdims=True)
