"""GRACE, a score of teachers from the student's gradients (Panigrahi et al., 2026, "In Good GRACEs",
arXiv:2511.02833).

The gradients of a teacher's trajectories, in DIMENSION numbers each, are split into two parts by question,
SPLITS times. With

    Σ̃ = 1/n Σ_i g_i g_iᵀ / ||g_i||²  over the larger part,  smoothed to (1 - ν) Σ̃ + ν tr(Σ̃)/d I,
    Σ = 1/n Σ_i g_i g_iᵀ             over the smaller part,

GRACE is the mean of tr(Σ̃⁻¹ Σ) over the splits. Low is good: gradients are small, and point where other
gradients of the teacher point as well. The source recommends about 512 questions with 4 responses each;
with fewer gradients than dimensions the smoothing decides the directions that none of them has. The
formula, the splits and ν are those of the authors' released code. Pure functions.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from lark.scoring.influence import directions
from lark.scoring.learnability import Floats

DIMENSION = 512
SPLITS = 10
HELD_OUT_SHARE = 0.1
"""Share of the questions in the smaller part."""
SMOOTHING = 1e-3
"""ν."""


def grace(gradients: Floats, question: np.ndarray, seed: int = 0) -> float:
    """GRACE of one teacher's gradients [n, d], of the questions [n]. NaN with fewer than two questions."""
    scores = []
    for inside in splits(question, seed):
        larger = smoothed(gradients[~inside])
        smaller = second_moment(gradients[inside])
        scores.append(float(np.trace(np.linalg.solve(larger, smaller))))
    return float(np.mean(scores)) if scores else float("nan")


def splits(question: np.ndarray, seed: int) -> Iterator[np.ndarray]:
    """A mask of the gradients in the smaller part, for each split. A question's gradients stay together."""
    names, codes = np.unique(question, return_inverse=True)
    if len(names) < 2:
        return
    held_out = max(1, int(HELD_OUT_SHARE * len(names)))
    for number in range(SPLITS):
        # A generator per split, so that more splits leave the first ones as they are.
        chosen = np.random.default_rng([seed, number]).permutation(len(names))[:held_out]
        yield np.isin(codes, chosen)


def smoothed(gradients: Floats) -> Floats:
    """Σ̃ with its eigenvalues moved towards their mean, so that it can be inverted."""
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    normalised = second_moment(gradients / np.maximum(norms, 1e-30))
    d = gradients.shape[1]
    return np.asarray((1 - SMOOTHING) * normalised + SMOOTHING * np.trace(normalised) / d * np.eye(d))


def second_moment(gradients: Floats) -> Floats:
    return np.asarray(gradients.T @ gradients / len(gradients))


def by_teacher(table: pd.DataFrame) -> pd.DataFrame:
    """One row per teacher: `grace`, the mean gradient norm (G-Norm), numbers of gradients and questions."""
    vectors = directions(table["feature"]).astype(np.float64)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)  # stored in half precision
    norms = table["gradient_norm"].to_numpy()
    gradients = vectors * norms[:, None]
    questions = table["question_id"].to_numpy(dtype=str)
    teachers = []
    for teacher, rows in table.groupby("teacher").indices.items():
        teachers.append(
            {
                "teacher": str(teacher),
                "grace": grace(gradients[rows], questions[rows]),
                "gnorm": float(norms[rows].mean()),
                "gradients": len(rows),
                "questions": len(np.unique(questions[rows])),
            }
        )
    return pd.DataFrame(teachers)
