"""What a selection is like, whatever its method: does it follow the length or the loss? Pure functions, no
I/O.

A score that ranks candidates almost as their length does is a length rule with a longer name, so every
selection reports it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd

from lark.scoring.by_question import Floats, Integers, encode

LENGTH_RULE = 0.8
"""|ρ| with the length from which a selection is nearly a length rule."""


@dataclass(frozen=True)
class Character:
    """Rank correlations of a preference, and what it selects relative to the pool. None: not known."""

    length_correlation: float | None
    """Spearman's ρ of the preference with the response's tokens, within questions, averaged over them. 1:
    prefers long ones.
    """
    loss_correlation: float | None
    """The same with the loss ℓ_k. 1: prefers what the student finds unlikely."""
    length_ratio: float | None
    """Mean length of the selected responses over that of all candidates of the same questions."""
    loss_ratio: float | None

    def counts(self) -> dict[str, float]:
        """For the manifest: rounded, without what is not known."""
        return {name: round(value, 4) for name, value in vars(self).items() if value is not None}


CHARACTER = tuple(field.name for field in fields(Character))
"""Its entries in the counts of a manifest."""


def character(preference: Floats, table: pd.DataFrame, chosen: Integers) -> Character:
    """The character of the rows `chosen`. `preference` [R]: the score, negated where lower is better; NaN
    without a score.
    """
    codes, labels = encode(table["question_id"])
    tokens = table["n_tokens"].to_numpy(dtype=np.float64, na_value=np.nan)
    valid = np.isfinite(preference) & (tokens > 0)
    own = np.zeros(len(labels), dtype=bool)
    own[codes[chosen]] = True
    around = valid & own[codes]  # candidates of questions that the budget reaches
    values = {"length": tokens}
    if "nll" in table:
        with np.errstate(divide="ignore", invalid="ignore"):
            values["loss"] = table["nll"].to_numpy(dtype=np.float64, na_value=np.nan) / tokens
    ranks = within_ranks(preference, codes, valid)
    found: dict[str, float | None] = dict.fromkeys(CHARACTER)
    for name, value in values.items():
        known = valid & np.isfinite(value)
        usable = ranks if known.sum() == valid.sum() else within_ranks(preference, codes, known)
        found[f"{name}_correlation"] = mean_correlation(
            usable, within_ranks(value, codes, known), codes, known
        )
        whole = float(np.mean(value[around & known])) if (around & known).any() else 0.0
        found[f"{name}_ratio"] = float(np.nanmean(value[chosen])) / whole if whole > 0 else None
    return Character(**found)


def within_ranks(values: Floats, codes: Integers, valid: np.ndarray) -> Floats:
    """[R] Average ranks within each question; NaN for rows that are not valid."""
    kept = pd.Series(np.where(valid, values, np.nan))
    return kept.groupby(codes).rank(method="average").to_numpy(dtype=np.float64)


def mean_correlation(a: Floats, b: Floats, codes: Integers, valid: np.ndarray) -> float | None:
    """The mean over questions of the correlation of a and b within a question; None if neither varies
    anywhere.
    """
    rows, groups = np.flatnonzero(valid), int(codes.max(initial=-1)) + 1
    code = codes[rows]
    count = np.maximum(np.bincount(code, minlength=groups), 1)

    def total(values: Floats) -> Floats:
        return np.asarray(np.bincount(code, weights=values, minlength=groups), dtype=np.float64)

    x, y = (column[rows] - (total(column[rows]) / count)[code] for column in (a, b))
    xx, yy, xy = total(x * x), total(y * y), total(x * y)
    varies = (xx > 0) & (yy > 0)
    return float(np.mean(xy[varies] / np.sqrt(xx[varies] * yy[varies]))) if varies.any() else None


def sentence(counts: Mapping[str, Any]) -> str | None:
    """The character of a selection in words, from its manifest; None for a selection that has none."""
    parts = []
    for name, what in (("length", "length"), ("loss", "loss")):
        correlation, ratio = counts.get(f"{name}_correlation"), counts.get(f"{name}_ratio")
        said = [] if correlation is None else [f"ρ = {correlation:+.2f} with the {what}".replace("-", "−")]
        said += [] if ratio is None else [f"{ratio:.2f} of the pool's {what}"]
        parts += [", ".join(said)] if said else []
    return f"What the selection is like: {'; '.join(parts)}" if parts else None


def nearly_length(counts: Mapping[str, Any]) -> str | None:
    """A note if the selection is nearly a length rule."""
    rho = counts.get("length_correlation") or 0.0
    if abs(rho) <= LENGTH_RULE:
        return None
    return (
        f"the selection is nearly a length rule (ρ = {rho:.2f} with the length, within questions): it prefers "
        f"{'short' if rho < 0 else 'long'} responses; compare method=shortest, or method=token_length"
    )
