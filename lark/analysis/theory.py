"""The constants of the paper's appendices A and B for one question, and its inequalities in numbers.

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
    K = question.K
    losses = question.losses
    brier = question.brier
    lengths = question.column("n_tokens")
    rho_hat = brier / losses
    c_minus = question.column("hidden_min").min()
    c_plus = question.column("hidden_max").max()
    head = np.diagonal(question.gram.head)
    zeta = head * lengths**2 / (question.column("brier") * question.column("hidden_square_sum"))
    jacobian = float(jacobians.max())
    eps_head = jacobian * head_norm**2 / (c_plus**2 * lengths)
    e_plus = c_plus**2 * (1 + eps_head).max()
    delta_rho = max(abs(1 - zeta.min() * c_minus**2), np.abs(c_plus**2 * (1 + eps_head) - 1).max())

    mass = (rho_hat * losses).sum()
    mean = losses.mean()
    proxy = 3 * delta_rho * rho_hat.max() / np.sqrt(K)
    gram = 2 * e_plus * np.sqrt(rho_hat.max() * losses.max() * mass) / (np.sqrt(K) * mean)
    aggregate = e_plus * losses.max() * mass / (K * mean**2)
    alpha2 = e_plus * mass / (K * losses.min()) * (1 + np.sqrt(K) * losses.max() / losses.min()) ** 2

    largest_surprisal = question.column("surprisal_max").max()
    one_minus_p_plus = -np.expm1(-question.column("surprisal_min").min())
    with np.errstate(divide="ignore"):  # a token of probability 1 makes ν₊ infinite
        nu_plus = np.divide(largest_surprisal, one_minus_p_plus**2)
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
        "p_minus": np.exp(-largest_surprisal),
        "one_minus_p_plus": one_minus_p_plus,
        "nu_plus": nu_plus,
        "kappa_factor": 0.5 / nu_plus,
        "lambda_minus": low,
        "lambda_plus": high,
        "kappa_explicit": low / high * 0.5 / nu_plus,
    }
    return Constants(K=K, **{name: float(value) for name, value in values.items()})


def residual_conditioning(gram: Floats, brier: Floats) -> tuple[float, float]:
    """λ₋ and λ₊ at the anchor: the extremes of Δ̃ᵀΘΔ̃ / ||Δ̃||² over the simplex (App. A.2, NTK's conditioning).

    By the NTK identity it is qᵀGq / Σ q_k Brier_k, which has the form of ρ(q): it is quasi-convex, so the
    maximum is at a vertex, and any point where it no longer decreases is the minimum.
    """
    K = len(brier)
    largest = float(np.max(np.diagonal(gram) / brier))
    # In units of the maximum, so that `ftol` means the same for every question.
    minimum = minimize(
        lambda q: float(rates.rate(gram, brier, q)) / largest,
        rates.uniform(K),
        jac=lambda q: rates.rate_gradient(gram, brier, q) / largest,
        bounds=[(0.0, 1.0)] * K,
        constraints={"type": "eq", "fun": lambda q: q.sum() - 1, "jac": lambda q: np.ones(K)},
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-12},
    )
    q = np.clip(minimum.x, 0, None)  # SLSQP leaves the bounds by rounding
    return float(rates.rate(gram, brier, q / q.sum())), largest


def weights_to_try(scores: Floats, count: int, seed: int) -> Floats:
    """[n, K] the vertices, the path of q̂(B), and about `count` samples. Not p, where both sides are 0."""
    K = len(scores)
    return np.concatenate([np.eye(K), rates.budget_path(scores), *rates.simplex_samples(K, count, seed)])


@dataclass(frozen=True)
class CheckedInequality:
    """left ≤ right, at one or many points."""

    name: str
    source: str
    left: Floats | np.floating | float
    right: Floats | np.floating | float

    def tightest(self) -> dict[str, float | bool]:
        """The point where right exceeds left the least, relative to right. Both sides may be zero."""
        pair = np.broadcast_arrays(self.left, self.right)
        left, right = np.stack(pair).reshape(2, -1).astype(np.float64)
        slack = np.divide(
            right - left, np.abs(right), out=np.where(left <= right, 0.0, -np.inf), where=right != 0
        )
        slack[~np.isfinite(right)] = 1.0  # an infinite bound holds everywhere
        at = int(slack.argmin())
        return {
            "left": float(left[at]),
            "right": float(right[at]),
            "margin": float(right[at] / left[at]) if left[at] > 0 else float("inf"),
            "holds": bool(slack[at] >= -ROUNDING),
        }


def inequalities(
    question: Question, c: Constants, count: int = 700, seed: int = 0, tied: bool = False
) -> pd.DataFrame:
    """Every inequality at its tightest point: left ≤ right, the margin right/left, and whether it holds.

    `tied`: on the parameters that training updates, instead of those of the paper's proofs.
    """
    G = question.gram.gram if tied else question.gram.untied
    q = weights_to_try(question.surrogate, count, seed)
    checks = [
        *_gradient_bounds(question, c, G),
        *_gain_bounds(question, c, G, q),
        *_score_bounds(question, c, G),
        *_shape(question, G, q, seed),
    ]
    rows = [{"inequality": check.name, "source": check.source, **check.tightest()} for check in checks]
    parameters = "tied" if tied else "untied"
    return pd.DataFrame(rows).assign(question_id=question.question_id, parameters=parameters)


def _gradient_bounds(question: Question, c: Constants, G: Floats) -> list[CheckedInequality]:
    """Gradients and decay rates of single trajectories, by the forward pass."""
    losses = question.losses
    brier = question.brier
    rho_hat = brier / losses
    rho = rates.single_rates(G, losses)
    head = np.diagonal(question.gram.head)
    rest = np.diagonal(G - question.gram.head)
    backbone = c.jacobian * c.head_norm**2 / question.column("n_tokens") * brier
    entries = c.e_plus * np.sqrt(np.outer(rho_hat * losses, rho_hat * losses))
    mass = (rho_hat * losses).sum()
    operator = np.linalg.eigvalsh(G)[-1]
    return [
        CheckedInequality(
            "LM head, lower", "B.3, LM head gradient bounds", c.zeta_minus * c.c_minus**2 * brier, head
        ),
        CheckedInequality("LM head, upper", "B.3, LM head gradient bounds", head, c.c_plus**2 * brier),
        CheckedInequality("backbone", "B.3, backbone gradient bound", rest, backbone),
        CheckedInequality("Lemma 1, C₁ρ* ≤ ρ̂", "B.4", c.c1 * rho, rho_hat),
        CheckedInequality("Lemma 1, ρ̂ ≤ C₂ρ*", "B.4", rho_hat, c.c2 * rho),
        CheckedInequality("|ρ̂ - ρ*| ≤ Δ_ρ ρ̂", "B.5", np.abs(rho_hat - rho), c.delta_rho * rho_hat),
        CheckedInequality("Gram entries", "B.3, Gram-matrix entry bound", np.abs(G), entries),
        CheckedInequality("||G|| ≤ E₊ Σρ̂ℓ", "B.5, Gop-forward-bound", operator, c.e_plus * mass),
    ]


def _gain_bounds(question: Question, c: Constants, G: Floats, q: Floats) -> list[CheckedInequality]:
    """The gain of weights q over the prior, by the surrogate and the distance from the prior."""
    losses = question.losses
    g_hat = question.surrogate
    g_star = rates.exact_score(G, losses)
    prior = rates.uniform(question.K)
    distance = rates.chi2(q)
    gain = rates.rate(G, losses, q) - rates.rate(G, losses, prior)
    error = (q - prior) @ (g_star - g_hat)
    remainder = gain - (q - prior) @ g_star
    few = q[:: max(1, len(q) // 200)]  # the eigenvalues of a Hessian are what takes time
    hessians = np.abs(np.linalg.eigvalsh(rates.rate_hessian(G, losses, few))).max(1)
    operator = np.linalg.eigvalsh(G)[-1]
    norm = np.sqrt((losses**2).sum())
    steepness = 2 * operator / losses.min() * (1 + norm / losses.min()) ** 2
    shortfall = (q - prior) @ g_hat - gain
    return [
        CheckedInequality("Lemma 2, R₁", "B.5", np.abs(error), c.alpha1 * distance + 1),
        CheckedInequality("Lemma 2, R₂", "B.5", np.abs(remainder), c.alpha2 * distance),
        CheckedInequality("Hessian by G", "B.5, hessian-bound-G", hessians, steepness),
        CheckedInequality("Hessian, M", "B.5, M-final", hessians, c.hessian_bound),
        CheckedInequality("Theorem 1", "B.6", shortfall, (c.alpha1 + c.alpha2) * distance + 1),
    ]


def _score_bounds(question: Question, c: Constants, G: Floats) -> list[CheckedInequality]:
    """The error of the surrogate, and the loss by the residual."""
    losses = question.losses
    brier = question.brier
    error = question.surrogate - rates.exact_score(G, losses)
    rms = np.sqrt((error**2).mean())
    largest = np.abs(error).max()
    return [
        CheckedInequality("RMS error of ĝ", "B.8", rms, c.alpha1_rms),
        CheckedInequality(
            "largest error of ĝ", "B.8, ghat-linfty-bound", largest, np.sqrt(question.K) * c.alpha1_rms
        ),
        CheckedInequality("loss ≥ ½ residual", "A.2, loss-residual", brier / 2, losses),
        CheckedInequality("loss ≤ ν₊ residual", "A.2, loss-residual", losses, c.nu_plus * brier),
    ]


def _shape(question: Question, G: Floats, q: Floats, seed: int) -> list[CheckedInequality]:
    """ρ on segments between weights q, and at the vertices."""
    losses = question.losses
    # Random pairs of the same weights: their segments cross the whole simplex.
    other = q[np.random.default_rng(seed).permutation(len(q))]
    share = np.random.default_rng(seed).uniform(size=len(q))[:, None]
    between = rates.rate(G, losses, share * q + (1 - share) * other)
    ends = np.maximum(rates.rate(G, losses, q), rates.rate(G, losses, other))
    highest = rates.single_rates(G, losses).max()
    return [
        CheckedInequality("quasi-convexity", "B.1", between, ends),
        CheckedInequality("maximum at a vertex", "B.1, one-hot optimum", rates.rate(G, losses, q), highest),
    ]


def constants_table(names: list[str], constants: list[Constants]) -> pd.DataFrame:
    """One row per question."""
    rows = [{"question_id": name, **asdict(c)} for name, c in zip(names, constants, strict=True)]
    return pd.DataFrame(rows)
