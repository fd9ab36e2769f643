"""How strongly a selection follows length and loss, for any method. Pure functions, no I/O.

A score that ranks candidates almost as their length does is a length rule with a longer name, so every
selection reports it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd

from lark.scoring.by_question import Floats, Integers, encode, group_sum

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
    reached = np.zeros(len(labels), dtype=bool)
    reached[codes[chosen]] = True
    around = valid & reached[codes]  # candidates of questions that the budget reaches
    values = {"length": tokens}
    if "nll" in table:
        with np.errstate(divide="ignore", invalid="ignore"):
            values["loss"] = table["nll"].to_numpy(dtype=np.float64, na_value=np.nan) / tokens
    preferred = within_ranks(preference, codes, valid)
    measures: dict[str, float | None] = dict.fromkeys(CHARACTER)
    for name, value in values.items():
        finite = valid & np.isfinite(value)
        # Ranks are computed again only if candidates without this value would take some of them.
        ranks = preferred if finite.sum() == valid.sum() else within_ranks(preference, codes, finite)
        measures[f"{name}_correlation"] = mean_correlation(
            ranks, within_ranks(value, codes, finite), codes, finite
        )
        measures[f"{name}_ratio"] = _ratio(value[chosen], value[around & finite])
    return Character(**measures)


def _ratio(selected: Floats, around: Floats) -> float | None:
    """Mean of the selected values over that of all candidates around them; None without a positive mean."""
    mean = float(np.mean(around)) if len(around) else 0.0
    return float(np.nanmean(selected)) / mean if mean > 0 else None


def within_ranks(values: Floats, codes: Integers, valid: np.ndarray) -> Floats:
    """[R] Average ranks within each question; NaN for rows that are not valid."""
    ranked = pd.Series(np.where(valid, values, np.nan))
    return ranked.groupby(codes).rank(method="average").to_numpy(dtype=np.float64)


def mean_correlation(a: Floats, b: Floats, codes: Integers, valid: np.ndarray) -> float | None:
    """The mean over questions of the correlation of a and b within a question; None if neither varies
    anywhere.
    """
    rows = np.flatnonzero(valid)
    groups = int(codes.max(initial=-1)) + 1
    code = codes[rows]
    count = np.maximum(np.bincount(code, minlength=groups), 1)

    def total(values: Floats) -> Floats:
        return group_sum(values, code, groups)

    def centred(column: Floats) -> Floats:
        return column[rows] - (total(column[rows]) / count)[code]

    x = centred(a)
    y = centred(b)
    xx = total(x * x)
    yy = total(y * y)
    varies = (xx > 0) & (yy > 0)
    if not varies.any():
        return None
    return float(np.mean(total(x * y)[varies] / np.sqrt(xx[varies] * yy[varies])))


def sentence(counts: Mapping[str, Any]) -> str | None:
    """The character of a selection in words, from its manifest; None for a selection that has none."""
    clauses = []
    for name in ("length", "loss"):
        phrases = []
        correlation = counts.get(f"{name}_correlation")
        if correlation is not None:
            phrases.append(f"ρ = {correlation:+.2f} with the {name}".replace("-", "−"))
        ratio = counts.get(f"{name}_ratio")
        if ratio is not None:
            phrases.append(f"{ratio:.2f} of the pool's {name}")
        if phrases:
            clauses.append(", ".join(phrases))
    return f"What the selection is like: {'; '.join(clauses)}" if clauses else None


def nearly_length(counts: Mapping[str, Any]) -> str | None:
    """A note if the selection is nearly a length rule."""
    rho = counts.get("length_correlation") or 0.0
    if abs(rho) <= LENGTH_RULE:
        return None
    preferred = "short" if rho < 0 else "long"
    return (
        f"the selection is nearly a length rule (ρ = {rho:.2f} with the length, within questions): it prefers"
        f" {preferred} responses; compare method=shortest, or method=token_length"
    )
