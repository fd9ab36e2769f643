"""Numbers for JSON: no NaN or infinity, and no more digits than are known. Times as numbers."""

from datetime import datetime
from typing import Any

import numpy as np


def plain(values: np.ndarray) -> list[Any]:
    """A list with None for what is not a finite number. All digits are kept: the page computes weights from
    scores.
    """
    array = np.asarray(values)
    if array.dtype.kind in "iub":
        return array.tolist()
    found = array.astype(np.float64)
    finite = np.isfinite(found)
    if finite.all():
        return found.tolist()
    objects = found.astype(object)
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
        places = np.where(np.isfinite(exponent), np.clip(digits - 1 - exponent, 0, 15), 0)
        scale = 10.0**places
        return plain(np.rint(array * scale) / scale)


def moment(text: str | None) -> float:
    """The time that a manifest or a record states, in seconds; NaN if it is not a time."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError, OSError):
        return float("nan")
