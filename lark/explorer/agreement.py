"""How methods agree: rank correlation within questions, overlap of the sets that they select, shares of
teachers.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lark.explorer.cache import Cache
from lark.explorer.pool_table import PoolTable
from lark.explorer.rankings import Ranking, Ranks, ranks
from lark.explorer.values import plain
from lark.explorer.views import View


def correlations(a: Ranks, b: Ranks, pool: PoolTable) -> np.ndarray:
    """[N] Spearman's rank correlation within each question; NaN where one method cannot tell the candidates
    apart.
    """
    found = np.bincount(pool.question, weights=a.standard * b.standard, minlength=len(pool.questions))
    found[~(a.varies & b.varies)] = np.nan
    return np.clip(found, -1, 1)


def comparable(found: Sequence[Ranking]) -> list[Ranking]:
    """The rankings of whole pools. Those of one teacher's trajectories, or of another tool's choices, score
    only some.
    """
    return [r for r in found if r.teacher is None and "external" not in r.method.needs]


def agreement(
    found: Sequence[Ranking], view: View, pool: PoolTable, budget: int, cache: Cache
) -> dict[str, Any]:
    """Matrices over pairs of methods, and each method's shares of teachers, at B = budget."""
    ranked = [ranks(r, view, pool, cache) for r in found]
    chosen = np.array([_chosen(r, budget) for r in ranked], dtype=bool).reshape(len(found), len(pool))
    together = chosen.astype(np.float32) @ chosen.T.astype(np.float32)
    size = np.maximum(chosen.sum(axis=1), 1)
    # A sum over all rows of two methods' standardised ranks is the sum of their correlations over the
    # questions.
    standard = np.array([r.standard for r in ranked], dtype=np.float64).reshape(len(found), len(pool))
    varies = np.array([r.varies for r in ranked], dtype=np.float64).reshape(len(found), len(pool.questions))
    with np.errstate(invalid="ignore", divide="ignore"):
        rho = np.clip(standard @ standard.T / (varies @ varies.T), -1, 1)
    overlap = together / np.minimum(size[:, None], size[None, :])
    teachers = [
        np.bincount(pool.teacher.code[row], minlength=len(pool.teacher.values)) / max(1, row.sum())
        for row in chosen
    ]
    return {
        "spearman": [plain(row) for row in np.round(rho, 4)],
        "overlap": np.round(overlap.astype(np.float64), 4).tolist(),
        "shares": [np.round(row, 5).tolist() for row in teachers],
    }


def _chosen(ranked: Ranks, budget: int) -> np.ndarray:
    return (ranked.rank > 0) & (ranked.rank <= budget)


def disagreement(a: Ranks, b: Ranks, pool: PoolTable, budget: int) -> tuple[np.ndarray, np.ndarray]:
    """[N] Rank correlation of two methods within each question, and the share of the top B that they have
    in common.
    """
    first, second = _chosen(a, budget), _chosen(b, budget)
    n = len(pool.questions)
    both = np.bincount(pool.question[first & second], minlength=n)
    least = np.minimum(*(np.bincount(pool.question[chosen], minlength=n) for chosen in (first, second)))
    with np.errstate(invalid="ignore", divide="ignore"):
        return correlations(a, b, pool), both / least
