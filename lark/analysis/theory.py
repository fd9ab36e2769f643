"""The constants of the paper's appendices A and B for one question, and each of the inequalities evaluated
with numbers.

The paper's θ = (W_out, θ_rest) separates the head from the rest, so everything here is about the untied
student (defined in `gradients.py`). If the head is tied, the same inequalities are also evaluated on the
parameters that training actually updates, for which they are not proved. Λ is a lower estimate by power
iteration (`jacobian.py`), all else is exact up to rounding.
"""

from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from lark.analysis import decay_rate as rates
from lark.analysis.questions import Question
from lark.scoring.learnability import Floats

ROUNDING = 1e-5
"""Relative tolerance: gradients are fp32."""


@dataclass(frozen=True)
class Constants:
    """The constants of one question; the names are the paper's."""

    K: int
    c_minus: float
    """C₋, the smallest ||h_t||."""
    c_plus: float
    """C₊, the largest."""
    jacobian: float
    """Λ, the largest λ_max(J_H J_Hᵀ) of a trajectory (a lower estimate)."""
    head_norm: float
    """||W_out||_op."""
    zeta_minus: float
    """ζ₋, the smallest alignment of residuals and hidden states."""
    eps_head: float
    """ε_head(|a|) of the shortest trajectory, eq. (eps-head-def)."""
    e_plus: float
    """E₊, eq. (Eplus-def)."""
    c1: float
    """C₁ = 1/E₊ of Lemma 1."""
    c2: float
    """C₂ = 1/(ζ₋ C₋²) of Lemma 1."""
    delta_rho: float
    """Δ_ρ, eq. (Drho)."""
    proxy_term: float
    """The first of the three terms of α₁ʳᵐˢ, eq. (alpha1-rms-three-terms): ρ̂ for ρ*."""
    gram_term: float
    """The second: inner products of different trajectories."""
    aggregate_term: float
    """The third: their sum."""
    alpha1_rms: float
    alpha1: float
    alpha2: float
    hessian_bound: float
    """The bound on M = sup ||∇²ρ||, eq. (M-final)."""
    p_minus: float
    """p₋, the smallest probability of a gold token."""
    one_minus_p_plus: float
    """1 - p₊: p₊ itself would be printed as 1."""
    nu_plus: float
    """ν₊ = log(1/p₋) / (1 - p₊)², eq. (lem-nu-values); ν₋ is 1/2."""
    kappa_factor: float
    """ν₋/ν₊, the factor of the explicit κ, eq. (kappa-explicit), that a forward pass gives."""
    lambda_minus: float
    """λ₋ of eq. (residual-ntk-lower), at the anchor only: over a ball around it, λ₋ is at most this."""
    lambda_plus: float
    """λ₊ of eq. (residual-ntk-upper), exact: it refers to the anchor only."""
    kappa_explicit: float
    """λ₋ν₋/(λ₊ν₊), eq. (kappa-explicit) with ε = 0: an upper bound, as the NTK is not measured away from
    the anchor.
    """


def constants(question: Question, jacobians: Floats, head_norm: float) -> Constants:
    """Constants from exact statistics, λ_max(J_H J_Hᵀ) of each trajectory [K], and ||W_out||_op."""
    K, losses, brier, lengths = question.K, question.losses, question.brier, question.column("n_tokens")
    rho_hat = brier / losses
    c_minus, c_plus = question.column("hidden_min").min(), question.column("hidden_max").max()
    head = np.diagonal(question.gram.head)
    zeta = head * lengths**2 / (question.column("brier") * question.column("hidden_square_sum"))
    jacobian = float(jacobians.max())
    eps_head = jacobian * head_norm**2 / (c_plus**2 * lengths)
    e_plus = c_plus**2 * (1 + eps_head).max()
    delta_rho = max(abs(1 - zeta.min() * c_minus**2), np.abs(c_plus**2 * (1 + eps_head) - 1).max())
    mass, mean = (rho_hat * losses).sum(), losses.mean()
    proxy = 3 * delta_rho * rho_hat.max() / np.sqrt(K)
    gram = 2 * e_plus * np.sqrt(rho_hat.max() * losses.max() * mass) / (np.sqrt(K) * mean)
    aggregate = e_plus * losses.max() * mass / (K * mean**2)
    alpha2 = e_plus * mass / (K * losses.min()) * (1 + np.sqrt(K) * losses.max() / losses.min()) ** 2
    p_minus = np.exp(-question.column("surprisal_max").max())
    one_minus_p_plus = -np.expm1(-question.column("surprisal_min").min())
    with np.errstate(divide="ignore"):
        nu_plus = np.divide(question.column("surprisal_max").max(), one_minus_p_plus**2)
    low, high = residual_conditioning(question.gram.untied, brier)
    values = {
        "c_minus": c_minus,
        "c_plus": c_plus,
        "jacobian": jacobian,
        "head_norm": head_norm,
        "zeta_minus": zeta.min(),
        "eps_head": eps_head.max(),
        "e_plus": e_plus,
        "c1": 1 / e_plus,
        "c2": 1 / (zeta.min() * c_minus**2),
        "delta_rho": delta_rho,
        "proxy_term": proxy,
        "gram_term": gram,
        "aggregate_term": aggregate,
        "alpha1_rms": proxy + gram + aggregate,
        "alpha1": (proxy + gram + aggregate) ** 2 / 4,
        "alpha2": alpha2,
        "hessian_bound": 2 * K * alpha2,
        "p_minus": p_minus,
        "one_minus_p_plus": one_minus_p_plus,
        "nu_plus": nu_plus,
        "kappa_factor": 0.5 / nu_plus,
        "lambda_minus": low,
        "lambda_plus": high,
        "kappa_explicit": low / high * 0.5 / nu_plus,
    }
    return Constants(K=K, **{name: float(value) for name, value in values.items()})


def residual_conditioning(gram: Floats, brier: Floats) -> tuple[float, float]:
    """λ₋ and λ₊ at the anchor: the extremes of Δ̃ᵀΘΔ̃ / ||Δ̃||² over the simplex (App. A.2, Assumption on
    the NTK's conditioning).

    By the NTK identity it is qᵀGq / Σ q_k Brier_k, which has the form of ρ(q): it is quasi-convex, so the
    maximum is at a vertex, and any point where it no longer decreases is the minimum.
    """
    K, scale = len(brier), float(np.max(np.diagonal(gram) / brier))
    found = minimize(
        lambda q: float(rates.rate(gram, brier, q)) / scale,
        rates.uniform(K),
        jac=lambda q: rates.rate_gradient(gram, brier, q) / scale,
        bounds=[(0.0, 1.0)] * K,
        constraints={"type": "eq", "fun": lambda q: q.sum() - 1, "jac": lambda q: np.ones(K)},
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-12},
    )
    least = np.clip(found.x, 0, None) / np.clip(found.x, 0, None).sum()
    return float(rates.rate(gram, brier, least)), scale


def weights_to_try(scores: Floats, count: int, seed: int) -> Floats:
    """[n, K] the vertices, the path of q̂(B), and about `count` samples of the simplex. Not p, where both
    sides are 0.
    """
    K = len(scores)
    return np.concatenate([np.eye(K), rates.budget_path(scores), *rates.simplex_samples(K, count, seed)])


def inequalities(
    question: Question, known: Constants, count: int = 700, seed: int = 0, tied: bool = False
) -> pd.DataFrame:
    """Every inequality at its tightest point: left ≤ right, the margin right/left, and whether it holds.

    `tied`: on the parameters that training updates, instead of those of the paper's proofs.
    """
    G = question.gram.gram if tied else question.gram.untied
    losses, brier, K = question.losses, question.brier, question.K
    rho_hat, rho = brier / losses, rates.single_rates(G, losses)
    g_hat, g_star = question.surrogate, rates.exact_score(G, losses)
    head, rest = np.diagonal(question.gram.head), np.diagonal(G - question.gram.head)
    q = weights_to_try(g_hat, count, seed)
    prior, distance = rates.uniform(K), rates.chi2(q)
    gain = rates.rate(G, losses, q) - rates.rate(G, losses, prior)
    error, remainder = (q - prior) @ (g_star - g_hat), gain - (q - prior) @ g_star
    other = q[np.random.default_rng(seed).permutation(len(q))]
    share = np.random.default_rng(seed).uniform(size=len(q))
    between = rates.rate(G, losses, share[:, None] * q + (1 - share[:, None]) * other)
    ends = np.maximum(rates.rate(G, losses, q), rates.rate(G, losses, other))
    few = q[:: max(1, len(q) // 200)]
    hessians = np.abs(np.linalg.eigvalsh(rates.rate_hessian(G, losses, few))).max(1)
    operator = np.linalg.eigvalsh(G)[-1]
    spread, bulk = np.sqrt((losses**2).sum()), (rho_hat * losses).sum()
    entries = known.e_plus * np.sqrt(np.outer(rho_hat * losses, rho_hat * losses))
    rms = np.sqrt(((g_hat - g_star) ** 2).mean())
    backbone = known.jacobian * known.head_norm**2 / question.column("n_tokens") * brier
    steepness = 2 * operator / losses.min() * (1 + spread / losses.min()) ** 2
    checks = [
        ("LM head, lower", "B.3, LM head gradient bounds", known.zeta_minus * known.c_minus**2 * brier, head),
        ("LM head, upper", "B.3, LM head gradient bounds", head, known.c_plus**2 * brier),
        ("backbone", "B.3, backbone gradient bound", rest, backbone),
        ("Lemma 1, C₁ρ* ≤ ρ̂", "B.4", known.c1 * rho, rho_hat),
        ("Lemma 1, ρ̂ ≤ C₂ρ*", "B.4", rho_hat, known.c2 * rho),
        ("|ρ̂ - ρ*| ≤ Δ_ρ ρ̂", "B.5", np.abs(rho_hat - rho), known.delta_rho * rho_hat),
        ("Gram entries", "B.3, Gram-matrix entry bound", np.abs(G), entries),
        ("||G|| ≤ E₊ Σρ̂ℓ", "B.5, Gop-forward-bound", operator, known.e_plus * bulk),
        ("Lemma 2, R₁", "B.5", np.abs(error), known.alpha1 * distance + 1),
        ("Lemma 2, R₂", "B.5", np.abs(remainder), known.alpha2 * distance),
        ("Hessian by G", "B.5, hessian-bound-G", hessians, steepness),
        ("Hessian, M", "B.5, M-final", hessians, known.hessian_bound),
        ("Theorem 1", "B.6", (q - prior) @ g_hat - gain, (known.alpha1 + known.alpha2) * distance + 1),
        ("RMS error of ĝ", "B.8", rms, known.alpha1_rms),
        (
            "largest error of ĝ",
            "B.8, ghat-linfty-bound",
            np.abs(g_hat - g_star).max(),
            np.sqrt(K) * known.alpha1_rms,
        ),
        ("loss ≥ ½ residual", "A.2, loss-residual", brier / 2, losses),
        ("loss ≤ ν₊ residual", "A.2, loss-residual", losses, known.nu_plus * brier),
        ("quasi-convexity", "B.1", between, ends),
        ("maximum at a vertex", "B.1, one-hot optimum", rates.rate(G, losses, q), rho.max()),
    ]
    rows = [
        {"inequality": name, "source": source, **_tightest(left, right)}
        for name, source, left, right in checks
    ]
    return pd.DataFrame(rows).assign(
        question_id=question.question_id, parameters="tied" if tied else "untied"
    )


def _tightest(
    left: Floats | np.floating | float, right: Floats | np.floating | float
) -> dict[str, float | bool]:
    """The point where right exceeds left the least, relative to the size of right; exact zeros on both
    sides are allowed.
    """
    a, b = (np.ravel(x).astype(np.float64) for x in np.broadcast_arrays(left, right))
    slack = np.divide(b - a, np.abs(b), out=np.where(a <= b, 0.0, -np.inf), where=b != 0)
    slack[~np.isfinite(b)] = 1.0
    at = int(slack.argmin())
    margin = float(b[at] / a[at]) if a[at] > 0 else float("inf")
    return {
        "left": float(a[at]),
        "right": float(b[at]),
        "margin": margin,
        "holds": bool(slack[at] >= -ROUNDING),
    }


def constants_table(names: list[str], found: list[Constants]) -> pd.DataFrame:
    """One row per question."""
    return pd.DataFrame(
        [{"question_id": name, **asdict(each)} for name, each in zip(names, found, strict=True)]
    )
