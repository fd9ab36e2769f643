"""How a student finds the candidates of a pool, in four numbers, and how far that is from the students for
which LARK's score was derived. Pure functions, no I/O.

The score rewards text on which the student is wrong, but on near misses. For a student that finds the pool's
text absurd, or that knows it by heart, nothing says that it selects well.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lark.scoring.by_question import encode, group_sum
from lark.scoring.methods import lark, loss

COLUMNS = ("question_id", "candidate_id", "n_tokens", "nll", "brier", "p_gold", "wrong_p2")
"""What a table of scores must have."""


@dataclass(frozen=True)
class StudentRegime:
    """Means over the candidates of a pool; None: not known."""

    loss: float | None
    """l_k, in nats per token."""
    p_gold: float | None
    """p(y_t), the mean over a candidate's tokens."""
    wrong_p2: float | None
    """Σ_{v != y} p(v)², the concentration on wrong tokens, the mean over a candidate's tokens."""
    rho: float | None
    """ρ̄ = K × mean ĝ, the mean over questions: how fast the loss falls if a student trains on all of them."""


LABELS = {
    "loss": "loss per token",
    "p_gold": "mean p(y_t)",
    "wrong_p2": "wrong-token concentration",
    "rho": "K × mean ĝ",
}
REFERENCES = {
    # Section 5.4 for p(y_t) and the concentration. ρ̄: ĝ of 0.005 to 0.018 with K = 33.
    "the paper's Qwen-2.5-7B": StudentRegime(None, 0.449, 0.085, 0.33),
    # Measured here, on 92 reasoning traces of 8 questions.
    "SmolLM2-135M": StudentRegime(1.03, 0.633, 0.098, 0.36),
}
"""Students to compare with, on text that other models wrote."""
FACTOR = 2
"""A number is far from the references if it is this many times larger than all of them, or smaller."""


def student_regime(scores: pd.DataFrame) -> StudentRegime | None:
    """The four numbers from a table of scores. None without a candidate that has a response."""
    table = scores[scores["n_tokens"] > 0]
    if table.empty:
        return None
    codes, labels = encode(table["question_id"])
    return StudentRegime(
        loss=float(np.mean(loss(table))),
        p_gold=float(table["p_gold"].mean()),
        wrong_p2=float(table["wrong_p2"].mean()),
        # The sum over a question's candidates is K times their mean.
        rho=float(np.mean(group_sum(np.nan_to_num(lark(table)), codes, len(labels)))),
    )


def bounds() -> Mapping[str, tuple[float, float]]:
    """The range of each number within which a student is not far from the references."""
    limits = {}
    for name in LABELS:
        values = [getattr(reference, name) for reference in REFERENCES.values()]
        measured = [value for value in values if value is not None]
        limits[name] = (min(measured) / FACTOR, max(measured) * FACTOR)
    # A probability has no other upper limit.
    limits["p_gold"] = (limits["p_gold"][0], 1.0)
    return limits


def far_from_references(regime: StudentRegime) -> str | None:
    """One sentence if the student is far from the references, with the numbers that are and their ranges."""
    far = []
    for name, (low, high) in bounds().items():
        value = getattr(regime, name)
        if not low <= value <= high:
            far.append(f"{LABELS[name]} {value:.2f} (not {low:.2g} to {high:.2g})")
    if not far:
        return None
    return (
        "This student is far from those that LARK's ĝ was derived for and tested with:"
        f" {', '.join(far)}. Compare methods on it before you trust any of them (make compare)"
    )
