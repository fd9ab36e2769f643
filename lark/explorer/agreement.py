"""Agreement of methods: rank correlation within questions, overlap of the sets that they select, shares of
teachers.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lark.explorer.pool_table import PoolTable
from lark.explorer.rankings import Ranking, Ranks, ranks
from lark.explorer.tables import OpenView
from lark.explorer.values import plain


def comparable(rankings: Sequence[Ranking]) -> list[Ranking]:
    """The rankings of whole pools. Those of one teacher's trajectories, or of another tool's choices, score
    only some.
    """
    return [r for r in rankings if r.teacher is None and not r.is_external]


def agreement(rankings: Sequence[Ranking], opened: OpenView, budget: int) -> dict[str, Any]:
    """Matrices over pairs of methods, and each method's shares of teachers, at B = budget."""
    pool = opened.pool
    ranked = [ranks(ranking, opened) for ranking in rankings]
    chosen = np.array([_chosen(r, budget) for r in ranked], dtype=bool).reshape(len(ranked), len(pool))
    together = chosen.astype(np.float32) @ chosen.T.astype(np.float32)
    size = np.maximum(chosen.sum(axis=1), 1)
    overlap = together / np.minimum(size[:, None], size[None, :])
    # A sum over all rows of two methods' standardised ranks is the sum of their correlations over the
    # questions.
    standard = np.array([r.standard for r in ranked], dtype=np.float64).reshape(len(ranked), len(pool))
    varies = np.array([r.varies for r in ranked], dtype=np.float64).reshape(len(ranked), len(pool.questions))
    with np.errstate(invalid="ignore", divide="ignore"):
        rho = np.clip(standard @ standard.T / (varies @ varies.T), -1, 1)
    shares = []
    for row in chosen:
        counts = np.bincount(pool.teacher.code[row], minlength=len(pool.teacher.values))
        shares.append(np.round(counts / max(1, row.sum()), 5).tolist())
    return {
        "spearman": [plain(row) for row in np.round(rho, 4)],
        "overlap": np.round(overlap.astype(np.float64), 4).tolist(),
        "shares": shares,
    }


def _chosen(ranked: Ranks, budget: int) -> np.ndarray:
    return (ranked.rank > 0) & (ranked.rank <= budget)


def disagreement(a: Ranks, b: Ranks, pool: PoolTable, budget: int) -> tuple[np.ndarray, np.ndarray]:
    """[N] Spearman's rank correlation of two methods within each question (NaN where one of them cannot
    tell the candidates apart), and the share of the top B that they have in common.
    """
    rho = _sums(pool, a.standard * b.standard)
    rho[~(a.varies & b.varies)] = np.nan
    first = _chosen(a, budget)
    second = _chosen(b, budget)
    least = np.minimum(_sums(pool, first), _sums(pool, second))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.clip(rho, -1, 1), _sums(pool, first & second) / least


def _sums(pool: PoolTable, values: np.ndarray) -> np.ndarray:
    """[N] Sums over each question's candidates."""
    return np.bincount(pool.question, weights=values, minlength=len(pool.questions))
