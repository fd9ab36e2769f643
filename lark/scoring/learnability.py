"""LARK's score (paper, Section 4.2) and the g* that it estimates. Pure functions, no I/O.

Rows are trajectories in any order; a label per row names its question. Results do not depend on the order
of the rows, not even in the last bit: sums are taken over rows sorted by value.
"""

import numpy as np
import numpy.typing as npt

from lark.scoring.by_question import Floats, Labels, encode, group_sum


def learnability_score(loss: npt.ArrayLike, rho: npt.ArrayLike, question: Labels) -> Floats:
    """g-hat, Algorithm 1 line 7: l_k / L (2 rho_k - sum_i rho_i l_i / L), L = sum_i l_i over the question's
    candidates.

    loss [R]: length-normalised cross-entropy l_k. rho [R]: residual over surprisal, rho-hat_k. question
    [R]: labels. A row without a positive loss and a finite rho is not a candidate: its score is NaN and it
    is left out of all sums.
    """
    losses, rhos = np.asarray(loss, dtype=np.float64), np.asarray(rho, dtype=np.float64)
    codes, labels = encode(question)
    score = np.full(losses.shape, np.nan)
    valid = np.flatnonzero(np.isfinite(losses) & np.isfinite(rhos) & (losses > 0))
    order = valid[np.lexsort((rhos[valid], losses[valid], codes[valid]))]
    losses, rhos, codes = losses[order], rhos[order], codes[order]
    total = group_sum(losses, codes, len(labels))[codes]
    mean_rho = group_sum(rhos * losses, codes, len(labels))[codes] / total
    score[order] = losses / total * (2 * rhos - mean_rho)
    return score


def rate(gram: Floats, losses: Floats, q: Floats) -> Floats:
    """ρ(q) = qᵀGq / ℓᵀq, eq. (2) in the form of eq. (ND-def), for q [..., K], the Gram matrix G [K, K] and
    the losses ℓ [K].
    """
    return np.asarray(np.einsum("...i,ij,...j->...", q, gram, q, optimize=True) / (q @ losses))


def rate_gradient(gram: Floats, losses: Floats, q: Floats) -> Floats:
    """∇ρ(q) = (2Gq - ρ(q) ℓ) / D(q), Lemma "Hessian formula", for q [..., K]."""
    rho = rate(gram, losses, q)
    return np.asarray((2 * q @ gram - rho[..., None] * losses) / (q @ losses)[..., None])


def uniform(K: int) -> Floats:
    """p, the prior that represents training on everything."""
    return np.full(K, 1 / K)


def exact_score(gram: Floats, losses: Floats) -> Floats:
    """g* = ∇ρ(p), eq. (gstar-closed): g*_k = (2 g_kᵀḡ - ρ(p) ℓ_k) / ℓ̄. Its mean is ρ(p), because ρ is
    homogeneous.
    """
    return rate_gradient(gram, losses, uniform(len(losses)))
