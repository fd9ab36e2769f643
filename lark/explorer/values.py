"""Values for JSON: numbers without NaN or infinity, times as numbers, and short texts."""

from datetime import datetime
from typing import Any

import numpy as np

PREVIEW = 240
"""Characters of a question in a list."""


def plain(values: np.ndarray) -> list[Any]:
    """A list with None for what is not a finite number. All digits are kept: the page computes weights from
    scores.
    """
    array = np.asarray(values)
    if array.dtype.kind in "iub":
        return array.tolist()
    numbers = array.astype(np.float64)
    finite = np.isfinite(numbers)
    if finite.all():
        return numbers.tolist()
    objects = numbers.astype(object)
    objects[~finite] = None
    return objects.tolist()


def number(value: Any) -> float | None:
    """A finite number, or None."""
    return None if value is None or not np.isfinite(value) else float(value)


def rounded(values: np.ndarray, digits: int = 5) -> list[Any]:
    """Numbers with this many significant digits, for arrays of thousands. Five digits identify every half
    float.
    """
    array = np.asarray(values, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        exponent = np.floor(np.log10(np.abs(array)))
        # The logarithm of 0 is infinite; 0 and NaN need no places.
        places = np.where(np.isfinite(exponent), np.clip(digits - 1 - exponent, 0, 15), 0)
        scale = 10.0**places
        return plain(np.rint(array * scale) / scale)


def moment(text: str | None) -> float:
    """The time that a manifest or a record states, in seconds; NaN if it is not a time."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError, OSError):
        return float("nan")


def preview(text: str) -> str:
    """The beginning of a question."""
    return text if len(text) <= PREVIEW else f"{text[:PREVIEW]}…"
