"""Arithmetic on the trajectories of each question. Pure functions, no I/O.

Rows are trajectories in any order; a label per row names its question. There is no loop over questions.
"""

import numpy as np
import numpy.typing as npt
import pandas as pd

from lark.errors import LarkError

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Labels = npt.ArrayLike
"""Integers or strings, one per row."""


def group_sum(values: Floats, codes: Integers, groups: int) -> Floats:
    """[groups] sums of `values` [R] by code, added up in the order of the rows: sort them first."""
    return np.bincount(codes, weights=values, minlength=groups).astype(np.float64, copy=False)


def encode(labels: Labels) -> tuple[Integers, npt.NDArray]:
    """Each row's label as an index into the sorted distinct labels, and those labels."""
    codes, distinct = pd.factorize(np.asarray(labels), sort=True)
    if np.any(codes < 0):
        raise LarkError("A trajectory has no question_id or candidate_id: every row of the pool needs both.")
    return codes.astype(np.int64), np.asarray(distinct)


def z_score(values: Floats, question: Labels) -> Floats:
    """[R] (x - mean) / std within each question, 0 where all candidates are equal.

    The standard deviation is the population's. The sample's would scale a question's scores by one factor and
    select the same.
    """
    codes, labels = encode(question)
    order = np.lexsort((values, codes))
    values, codes = values[order], codes[order]
    count = np.bincount(codes, minlength=len(labels))
    # Relative to the smallest value: otherwise, rounding in the mean would give equal values a spread.
    values = values - values[np.cumsum(count) - count][codes]
    deviation = values - (group_sum(values, codes, len(labels)) / count)[codes]
    spread = np.sqrt(group_sum(deviation**2, codes, len(labels)) / count)[codes]
    score = np.zeros_like(deviation)
    score[order] = np.divide(deviation, spread, out=np.zeros_like(deviation), where=spread > 0)
    return score
