"""The pool: teachers, lengths, correctness, and the list of questions."""

from typing import Any

import numpy as np

from lark.errors import LarkError
from lark.explorer.context import Context
from lark.explorer.listing import Entry, Listing
from lark.explorer.lists import Rows
from lark.explorer.pool_table import PoolTable
from lark.explorer.rankings import selected_by
from lark.explorer.selections import chosen
from lark.explorer.tables import columns
from lark.explorer.tokens import questions_with_tokens
from lark.explorer.values import number, plain, rounded
from lark.explorer.views import View, selections_of, views_of
from lark.pool.trajectories import POOL_TABLE
from lark.scoring.methods import METHODS

BINS = 40
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
PREVIEW = 240
"""Characters of a question in a list."""


def pool(context: Context, fingerprint: str, view_id: str) -> dict[str, Any]:
    """Teachers and lengths. What the manifest says is shown even if the table cannot be read."""
    listing = context.listing()
    view, table = context.view(listing, fingerprint, view_id)
    known = columns(view, table, ["n_tokens", "truncated"], context.cache)
    tokens, cut = known.get("n_tokens"), known.get("truncated")
    edges = _edges(tokens)
    made, notes = budgets(listing, view)
    return {
        "pool": {"fingerprint": fingerprint, "name": view.pool.name, "state": listing.state(view.pool)},
        "view": view.describe(),
        "views": [other.describe() for other in views_of(listing, listing.get(POOL_TABLE.name, fingerprint))],
        "questions": len(table.questions),
        "trajectories": len(table),
        "candidates": _spread(np.diff(table.start)),
        "counts": {
            key: value
            for key, value in view.pool.counts.items()
            if key not in ("teachers", "all", "candidates")
        },
        "bins": None if edges is None else rounded(edges),
        "teachers": [
            _teacher(i, name, table, view, tokens, cut, edges) for i, name in enumerate(table.teacher.values)
        ],
        "all": _teacher(None, "all", table, view, tokens, cut, edges),
        "budgets": made,
        "notes": notes,
        "scored": None if tokens is None else int(np.isfinite(tokens).sum()),
    }


def _edges(tokens: np.ndarray | None) -> np.ndarray | None:
    """Borders of the histogram's bins, evenly spaced on a logarithmic axis."""
    if tokens is None:
        return None
    known = tokens[np.isfinite(tokens) & (tokens > 0)]
    if not len(known):
        return None
    return np.geomspace(max(1.0, known.min()), known.max() + 1, BINS + 1)


def _teacher(
    code: int | None,
    name: str,
    table: PoolTable,
    view: View,
    tokens: np.ndarray | None,
    cut: np.ndarray | None,
    edges: np.ndarray | None,
) -> dict[str, Any]:
    mine = np.ones(len(table), dtype=bool) if code is None else table.teacher.code == code
    correct = table.correct[mine]
    stated = (
        view.pool.counts.get("all", {})
        if code is None
        else view.pool.counts.get("teachers", {}).get(name, {})
    )
    found: dict[str, Any] = {
        "teacher": name,
        "trajectories": int(mine.sum()),
        "characters": stated.get("characters") if isinstance(stated, dict) else None,
        "correct": _share(correct, stated),
    }
    if tokens is not None:
        own = tokens[mine]
        own = own[np.isfinite(own)]
        found["tokens"] = _spread(own)
        found["histogram"] = [] if edges is None else np.histogram(own, edges)[0].tolist()
    if cut is not None:
        found["truncated"] = number(np.nanmean(cut[mine])) if np.isfinite(cut[mine]).any() else None
    return found


def _share(correct: np.ndarray, stated: Any) -> float | None:
    """The share of correct trajectories: as the pool stage graded them, or from the rows that have a
    verdict.
    """
    said = stated.get("correct") if isinstance(stated, dict) else None
    if isinstance(said, int | float):
        return float(said)
    known = correct >= 0
    return float((correct[known] == 1).mean()) if known.any() else None


def _spread(values: np.ndarray) -> dict[str, Any] | None:
    if not len(values):
        return None
    marks = np.quantile(values, QUANTILES)
    return {
        "quantiles": plain(marks),
        "mean": float(np.mean(values)),
        "min": float(np.min(values)),
        "max": float(np.max(values)),
    }


def budgets(listing: Listing, view: View) -> tuple[list[dict[str, str]], list[str]]:
    """The budgets of the selections that exist, as `shares` takes them, and what is wrong with selections
    that cannot be read.
    """
    found: dict[str, dict[str, Any]] = {}
    notes = []
    for entry in selections_of(listing, view):
        try:
            said = selected_by(entry, listing)
            found.setdefault(said["amount_key"], said)
        except LarkError as problem:
            notes.append(str(problem))
    ordered = sorted(
        found.items(), key=lambda item: (item[1]["budget"] is None, item[1]["budget"] or 0, item[0])
    )
    return [{"key": key, "label": said["amount"]} for key, said in ordered], notes


def shares(context: Context, fingerprint: str, view_id: str, budget: str) -> dict[str, Any]:
    """How often each method's selection at this budget chose each teacher. The weighting does not change
    what is chosen, so one selection of each method is read.
    """
    listing = context.listing()
    view, table = context.view(listing, fingerprint, view_id)
    found: dict[str, dict[str, Any]] = {}
    notes = []
    for entry in selections_of(listing, view):
        try:
            said = selected_by(entry, listing)
            if said["amount_key"] == budget and said["ranking"] not in found:
                found[said["ranking"]] = _shares(context, said, entry, table)
        except LarkError as problem:
            notes.append(str(problem))
    names = list(METHODS)
    ordered = sorted(found.values(), key=lambda said: (names.index(said["method"]), said["ranking"]))
    return {"budget": budget, "selections": ordered, "notes": notes}


def _shares(context: Context, said: dict[str, Any], entry: Entry, table: PoolTable) -> dict[str, Any]:
    rows = chosen(entry, table, context.cache).row
    counts = np.bincount(table.teacher.code[rows], minlength=len(table.teacher.values))
    return {**said, "teachers": counts.tolist(), "trajectories": len(rows)}


def questions(context: Context, fingerprint: str, view_id: str) -> Rows:
    """The questions of a pool, in its order."""
    listing = context.listing()
    view, table = context.view(listing, fingerprint, view_id)
    known = columns(view, table, ["n_tokens", "truncated"], context.cache)
    size = np.diff(table.start)
    tokens = _by_question(table, known.get("n_tokens"))
    cut = _by_question(table, known.get("truncated"))
    right, wrong = (np.bincount(table.question[table.correct == v], minlength=len(size)) for v in (1, 0))
    with np.errstate(invalid="ignore", divide="ignore"):
        correct = right / (right + wrong)
    kept = questions_with_tokens(view, context.cache)
    has_tokens = (
        np.array([question in kept for question in table.questions], dtype=bool)
        if kept
        else np.zeros(len(size), dtype=bool)
    )

    def row(i: int) -> dict[str, Any]:
        text = table.texts[i]
        return {
            "n": i,
            "id": table.questions[i],
            "text": text[:PREVIEW] + ("…" if len(text) > PREVIEW else ""),
            "candidates": int(size[i]),
            "tokens": number(tokens[i]),
            "correct": number(correct[i]),
            "truncated": number(cut[i]),
            "has_tokens": bool(has_tokens[i]),
        }

    flags = {
        "tokens": has_tokens,
        "wrong": wrong > 0,
        "all_wrong": (wrong > 0) & (right == 0),
        "truncated": np.nan_to_num(cut) > 0,
    }
    sorts = {"candidates": size.astype(float), "tokens": tokens, "correct": correct, "truncated": cut}
    return Rows(len(size), row, lambda i: f"{table.questions[i]} {table.texts[i]}", flags, sorts)


def _by_question(table: PoolTable, values: np.ndarray | None) -> np.ndarray:
    """[N] The mean over each question's candidates; NaN where nothing is known."""
    if values is None:
        return np.full(len(table.questions), np.nan)
    known = np.isfinite(values)
    count = np.bincount(table.question[known], minlength=len(table.questions))
    total = np.bincount(table.question[known], weights=values[known], minlength=len(table.questions))
    with np.errstate(invalid="ignore", divide="ignore"):
        return total / count
