"""Methods: distributions of their scores, agreement between them, and the questions on which two of them
disagree most.
"""

from typing import Any

import numpy as np

from lark.explorer.agreement import agreement, comparable, disagreement
from lark.explorer.context import Context
from lark.explorer.lists import Rows
from lark.explorer.pool_table import PoolTable
from lark.explorer.problems import PageError
from lark.explorer.rankings import find_ranking, rankings_of, ranks, scores
from lark.explorer.selections import selections
from lark.explorer.values import number, plain, preview, rounded

BINS = 48
CELLS = 36
PICKS = 3
"""Candidates that a row of the list of disagreements names."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
BUDGETS = (1, 3, 5, 10)
"""Values of B that are offered, with those of the selections that exist."""


def methods(context: Context, pool: str, view_id: str) -> dict[str, Any]:
    """The methods that can be shown, and their budgets."""
    opened = context.open(pool, view_id)
    rankings = rankings_of(opened)
    made = {details["budget"] for _, details in selections(opened)[0]} - {None, 0}
    return {
        **opened.describe(),
        "rankings": [ranking.describe() for ranking in rankings],
        "comparable": [ranking.key for ranking in comparable(rankings)],
        "budgets": sorted({*BUDGETS, *made}),
        "teachers": opened.pool.teacher.values,
        "questions": len(opened.pool.questions),
        "trajectories": len(opened.pool),
    }


def distribution(context: Context, pool: str, view_id: str, key: str) -> dict[str, Any]:
    """Scores of one method: over all candidates, by teacher and by length."""
    opened = context.open(pool, view_id)
    teacher = opened.pool.teacher
    ranking = find_ranking(rankings_of(opened), key)
    score = scores(ranking, opened)
    scored = np.isfinite(score)
    if not scored.any():
        raise PageError(f"No trajectory has a score of {ranking.label} (yet).")
    # Without the outermost scores, a few of which would squeeze all others into one bin.
    low, high = np.quantile(score[scored], [0.005, 0.995])
    if low == high:
        low -= 0.5
        high += 0.5
    edges = np.linspace(low, high, BINS + 1)
    inside = np.clip(score, low, high)
    teachers = [
        _by_teacher(name, score[scored & (teacher.code == code)]) for code, name in enumerate(teacher.values)
    ]
    tokens = opened.columns(["n_tokens"]).get("n_tokens")
    return {
        **ranking.describe(),
        "scored": int(scored.sum()),
        "edges": rounded(edges, 6),
        "histogram": np.histogram(inside[scored], edges)[0].tolist(),
        "teachers": teachers,
        "length": None if tokens is None else _by_length(tokens, inside, low, high),
    }


def _by_teacher(name: str, score: np.ndarray) -> dict[str, Any]:
    marks = plain(np.quantile(score, QUANTILES)) if len(score) else None
    return {"teacher": name, "count": len(score), "quantiles": marks}


def _by_length(tokens: np.ndarray, score: np.ndarray, low: float, high: float) -> dict[str, Any] | None:
    """The number of candidates by length and score, and the median score at each length."""
    rows = np.isfinite(score) & np.isfinite(tokens) & (tokens > 0)
    if not rows.any():
        return None
    length = np.log10(tokens[rows])
    value = score[rows]
    left = float(length.min())
    right = float(length.max())
    if left == right:
        right += 1
    x = np.linspace(left, right, CELLS + 1)
    y = np.linspace(low, high, CELLS + 1)
    counts, _, _ = np.histogram2d(length, value, [x, y])
    # The median of every cell at once: sorted by cell and value, it is in the middle of the cell's part.
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
    _check_budget(budget)
    opened = context.open(pool, view_id)
    rankings = comparable(rankings_of(opened))
    key = ("agreement", opened.key, budget, tuple(ranking.key for ranking in rankings))
    # The ranks of a method are made again if a file changes that they depend on.
    version = [id(ranks(ranking, opened)) for ranking in rankings]
    values = context.cache.get(key, version, lambda: agreement(rankings, opened, budget))
    return {
        "rankings": [ranking.describe() for ranking in rankings],
        "budget": budget,
        "teachers": opened.pool.teacher.values,
        **values,
    }


def _check_budget(budget: int) -> None:
    if budget < 1:
        raise PageError("B is at least 1.", 400)


def disagreements(context: Context, pool: str, view_id: str, first: str, second: str, budget: int) -> Rows:
    """The questions, those on which two methods disagree most first."""
    _check_budget(budget)
    opened = context.open(pool, view_id)
    table = opened.pool
    rankings = rankings_of(opened)
    first_ranks = ranks(find_ranking(rankings, first), opened)
    second_ranks = ranks(find_ranking(rankings, second), opened)
    rho, overlap = disagreement(first_ranks, second_ranks, table, budget)
    order = np.argsort(rho, kind="stable")  # NaN last

    def row(i: int) -> dict[str, Any]:
        n = int(order[i])
        return {
            "n": n,
            "id": table.questions[n],
            "text": preview(table.texts[n]),
            "spearman": number(rho[n]),
            "overlap": number(overlap[n]),
            "picks": [_picks(table, n, ranked.rank, budget) for ranked in (first_ranks, second_ranks)],
        }

    flags = {"disjoint": overlap[order] == 0}
    sorts = {"spearman": rho[order], "overlap": overlap[order]}
    return Rows(len(order), row, lambda i: table.text(order[i]), flags, sorts)


def _picks(table: PoolTable, n: int, rank: np.ndarray, budget: int) -> list[str]:
    """The first candidates that a method chooses, best first."""
    rows = table.rows(n)
    ranked = rows[rank[rows] > 0]
    best = ranked[np.argsort(rank[ranked])][: min(budget, PICKS)]
    return [str(table.candidate[row]) for row in best]
