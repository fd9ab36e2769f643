"""Methods: distributions of their scores, agreement between them, and the questions on which two of them
disagree most.
"""

from typing import Any

import numpy as np

from lark.explorer.agreement import agreement, comparable, disagreement
from lark.explorer.context import Context
from lark.explorer.listing import Listing
from lark.explorer.lists import Rows
from lark.explorer.pages.pool import PREVIEW
from lark.explorer.pool_table import PoolTable
from lark.explorer.problems import PageError
from lark.explorer.rankings import Ranking, find_ranking, rankings_of, ranks, scores, selected_by
from lark.explorer.tables import columns
from lark.explorer.values import number, plain, rounded
from lark.explorer.views import View, selections_of, views_of

BINS, CELLS = 48, 36
PICKS = 3
"""Candidates that a row of the list of disagreements names."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
BUDGETS = (1, 3, 5, 10)
"""Values of B that are offered, with those of the selections that exist."""


def methods(context: Context, pool: str, view_id: str) -> dict[str, Any]:
    """Which methods can be shown, and at which budgets."""
    listing, view, table, found = _open(context, pool, view_id)
    budgets = {
        said["budget"]
        for entry in selections_of(listing, view)
        if (said := selected_by(entry, listing))["budget"]
    }
    return {
        "view": view.describe(),
        "views": [other.describe() for other in views_of(listing, view.pool)],
        "rankings": [ranking.describe() for ranking in found],
        "comparable": [ranking.key for ranking in comparable(found)],
        "budgets": sorted({*BUDGETS, *budgets}),
        "teachers": table.teacher.values,
        "questions": len(table.questions),
        "trajectories": len(table),
    }


def _open(context: Context, pool: str, view_id: str) -> tuple[Listing, View, PoolTable, list[Ranking]]:
    listing = context.listing()
    view, table = context.view(listing, pool, view_id)
    return listing, view, table, rankings_of(listing, view, table, context.cache)


def distribution(context: Context, pool: str, view_id: str, key: str) -> dict[str, Any]:
    """Scores of one method: over all candidates, by teacher and by length."""
    _, view, table, found = _open(context, pool, view_id)
    ranking = find_ranking(found, key)
    score = scores(ranking, view, table, context.cache)
    known = np.isfinite(score)
    if not known.any():
        raise PageError(f"No trajectory has a score of {ranking.label} (yet).")
    low, high = np.quantile(score[known], [0.005, 0.995])
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)
    edges = np.linspace(low, high, BINS + 1)
    inside = np.clip(score, low, high)
    return {
        **ranking.describe(),
        "scored": int(known.sum()),
        "edges": rounded(edges, 6),
        "histogram": np.histogram(inside[known], edges)[0].tolist(),
        "teachers": [
            _by_teacher(name, score[(table.teacher.code == i) & known])
            for i, name in enumerate(table.teacher.values)
        ],
        "length": _by_length(
            columns(view, table, ["n_tokens"], context.cache).get("n_tokens"), score, low, high
        ),
    }


def _by_teacher(name: str, score: np.ndarray) -> dict[str, Any]:
    marks = plain(np.quantile(score, QUANTILES)) if len(score) else None
    return {"teacher": name, "count": len(score), "quantiles": marks}


def _by_length(
    tokens: np.ndarray | None, score: np.ndarray, low: float, high: float
) -> dict[str, Any] | None:
    """How many candidates have which length and score, and the median score at each length."""
    if tokens is None:
        return None
    known = np.isfinite(score) & np.isfinite(tokens) & (tokens > 0)
    if not known.any():
        return None
    length, value = np.log10(tokens[known]), np.clip(score[known], low, high)
    left, right = float(length.min()), float(length.max())
    right = right if right > left else left + 1
    x, y = np.linspace(left, right, CELLS + 1), np.linspace(low, high, CELLS + 1)
    counts, _, _ = np.histogram2d(length, value, [x, y])
    place = np.clip(np.digitize(length, x) - 1, 0, CELLS - 1)
    order = np.lexsort((value, place))
    sizes = np.bincount(place, minlength=CELLS)
    starts = np.cumsum(sizes) - sizes
    middle = np.minimum(starts + sizes // 2, len(value) - 1)
    median = np.where(sizes > 0, value[order][middle], np.nan)
    return {
        "x": rounded(10**x, 6),
        "y": rounded(y, 6),
        "counts": counts.astype(int).tolist(),
        "median": rounded(median, 6),
        "sizes": sizes.tolist(),
    }


def agreements(context: Context, pool: str, view_id: str, budget: int) -> dict[str, Any]:
    """Rank correlation, overlap and teachers' shares of all methods that can be compared."""
    _, view, table, found = _open(context, pool, view_id)
    kept = comparable(found)
    _check_budget(budget)
    key = ("agreement", view.pool.key, view.id, budget, tuple(r.key for r in kept))
    version = tuple(id(ranks(r, view, table, context.cache)) for r in kept)
    values = context.cache.get(key, version, lambda: agreement(kept, view, table, budget, context.cache))
    return {
        "rankings": [ranking.describe() for ranking in kept],
        "budget": budget,
        "teachers": table.teacher.values,
        **values,
    }


def _check_budget(budget: int) -> None:
    if budget < 1:
        raise PageError("B is at least 1.", 400)


def _picks(table: PoolTable, n: int, rank: np.ndarray, budget: int) -> list[str]:
    """The first candidates that a method chooses, best first."""
    rows = table.rows(n)
    order = np.argsort(np.where(rank[rows] > 0, rank[rows], len(rows) + 1), kind="stable")[
        : min(budget, PICKS)
    ]
    return [str(table.candidate[int(rows[i])]) for i in order if rank[rows[i]] > 0]


def disagreements(context: Context, pool: str, view_id: str, first: str, second: str, budget: int) -> Rows:
    """The questions, those on which two methods disagree most first."""
    _, view, table, found = _open(context, pool, view_id)
    a, b = find_ranking(found, first), find_ranking(found, second)
    _check_budget(budget)
    first_ranks, second_ranks = (ranks(r, view, table, context.cache) for r in (a, b))
    rho, overlap = disagreement(first_ranks, second_ranks, table, budget)
    order = np.argsort(rho, kind="stable")  # NaN last

    def row(i: int) -> dict[str, Any]:
        n = int(order[i])
        text = table.texts[n]
        return {
            "n": n, "id": table.questions[n], "text": text[:PREVIEW] + ("…" if len(text) > PREVIEW else ""),
            "spearman": number(rho[n]), "overlap": number(overlap[n]),
            "picks": [_picks(table, n, r.rank, budget) for r in (first_ranks, second_ranks)],
        }  # fmt: skip

    sorts = {"spearman": rho[order], "overlap": overlap[order]}
    none = np.nan_to_num(overlap[order], nan=1.0) == 0
    return Rows(
        len(order),
        row,
        lambda i: f"{table.questions[order[i]]} {table.texts[order[i]]}",
        {"disjoint": none},
        sorts,
    )
