"""The loss decay rate ρ(q) of one question as a function of the weights of its K trajectories (paper, eq.
(2), App. B.1-B.3).

Everything follows from two exact quantities at the anchor model: the Gram matrix G [K, K] of the
trajectories' gradients, G_ij = <∇ℓ_i, ∇ℓ_j>, and their losses ℓ [K]. With N(q) = qᵀGq and D(q) = ℓᵀq, ρ(q)
= N(q)/D(q). Pure functions in float64; weights may be one vector [K] or many [..., K].
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from lark.errors import LarkError
from lark.scoring.learnability import Floats, exact_score, learnability_score, rate, rate_gradient, uniform
from lark.selection.rules import select

__all__ = [
    "budget_path",
    "chi2",
    "diagonal_score",
    "exact_score",
    "quasiconvexity_excess",
    "rate",
    "rate_gradient",
    "rate_hessian",
    "simplex_samples",
    "single_rates",
    "surrogate_score",
    "uniform",
    "vertex_excess",
]


def rate_hessian(gram: Floats, losses: Floats, q: Floats) -> Floats:
    """∇²ρ(q) = [2G - ℓ(∇ρ)ᵀ - (∇ρ)ℓᵀ] / D(q), Lemma "Hessian formula", for q [..., K]."""
    gradient = rate_gradient(gram, losses, q)
    outer = losses[:, None] * gradient[..., None, :]
    return np.asarray((2 * gram - outer - np.swapaxes(outer, -1, -2)) / (q @ losses)[..., None, None])


def single_rates(gram: Floats, losses: Floats) -> Floats:
    """ρ*_k = ||∇ℓ_k||² / ℓ_k, the rate at each vertex of the simplex."""
    return np.asarray(np.diagonal(gram) / losses)


def diagonal_score(gram: Floats, losses: Floats) -> Floats:
    """g-tilde, eq. (gtilde-def): the exact rates ρ*_k, but with gradients of different trajectories treated
    as orthogonal.
    """
    return learnability_score(losses, single_rates(gram, losses), np.zeros(len(losses), dtype=np.int64))


def surrogate_score(brier: Floats, losses: Floats) -> Floats:
    """g-hat, eq. (ghat-closed): the forward-pass proxy ρ̂_k = Brier_k / ℓ_k in place of the exact rates
    (decision 1).
    """
    return learnability_score(losses, brier / losses, np.zeros(len(losses), dtype=np.int64))


def chi2(q: Floats) -> Floats:
    """χ²(q ‖ p) = K ||q - p||², eq. (chi2-as-norm), for q [..., K]."""
    K = q.shape[-1]
    return np.asarray(K * ((q - 1 / K) ** 2).sum(-1))


def budget_path(scores: Floats) -> Floats:
    """[K-1, K] q̂(B) of Lemma 3 for B = 1..K-1, each in the candidates' order."""
    K = len(scores)
    if K < 2:
        raise LarkError("A question needs at least 2 candidates to select from.")
    path = np.zeros((K - 1, K))
    for budget, q in enumerate(path, start=1):
        chosen = select(scores, np.zeros(K, dtype=np.int64), np.arange(K), budget, "chi2")
        q[chosen.row] = chosen.weight
    return path


def simplex_samples(K: int, count: int, seed: int) -> Iterator[Floats]:
    """Batches [n, K] that cover the simplex: from nearly one-hot (concentration 0.01) to nearly uniform
    (10).
    """
    rng = np.random.default_rng(seed)
    concentrations = np.geomspace(0.01, 10, 7)
    for concentration in concentrations:
        draws = rng.standard_gamma(concentration, size=(-(-count // len(concentrations)), K)) + 1e-300
        yield draws / draws.sum(1, keepdims=True)


def quasiconvexity_excess(gram: Floats, losses: Floats, a: Floats, b: Floats, share: npt.ArrayLike) -> Floats:
    """ρ(s a + (1-s) b) / max(ρ(a), ρ(b)) - 1 for pairs a, b [n, K] and s [n]: never above 0 if ρ is
    quasi-convex.
    """
    s = np.asarray(share)[:, None]
    between = rate(gram, losses, s * a + (1 - s) * b)
    return np.asarray(between / np.maximum(rate(gram, losses, a), rate(gram, losses, b)) - 1)


def vertex_excess(gram: Floats, losses: Floats, q: Floats) -> float:
    """max_q ρ(q) / max_k ρ*_k - 1 over q [n, K]: never above 0, because the maximum is at a vertex
    (Corollary "One-hot").
    """
    return float(rate(gram, losses, q).max() / single_rates(gram, losses).max() - 1)
