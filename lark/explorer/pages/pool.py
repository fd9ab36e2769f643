"""The pool: teachers, lengths, correctness, and the list of questions."""

from typing import Any

import numpy as np

from lark.errors import LarkError
from lark.explorer.context import Context
from lark.explorer.lists import Rows
from lark.explorer.pages.taught import taught
from lark.explorer.pool_table import PoolTable
from lark.explorer.selections import chosen, selections
from lark.explorer.tables import OpenView
from lark.explorer.tokens import questions_with_tokens
from lark.explorer.values import number, plain, preview, rounded
from lark.scoring.methods import METHODS

BINS = 40
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
GROUPS = ("teachers", "all", "candidates")
"""Counts of the manifest that are shown with the teachers."""


def pool(context: Context, fingerprint: str, view_id: str) -> dict[str, Any]:
    """Teachers and lengths."""
    opened = context.open(fingerprint, view_id)
    view = opened.view
    table = opened.pool
    columns = opened.columns(["n_tokens", "truncated"])
    tokens = columns.get("n_tokens")
    edges = _edges(tokens)
    amounts, notes = _budgets(opened)
    counts = view.pool.counts
    teachers = []
    for code, name in enumerate(table.teacher.values):
        stated = counts.get("teachers", {}).get(name, {})
        teachers.append(_teacher(name, table.teacher.code == code, table, stated, columns, edges))
    everyone = np.ones(len(table), dtype=bool)
    return {
        "pool": {
            "fingerprint": fingerprint,
            "name": view.pool.name,
            "state": opened.listing.state(view.pool),
        },
        **opened.describe(),
        "questions": len(table.questions),
        "trajectories": len(table),
        "candidates": _spread(np.diff(table.start)),
        "counts": {key: value for key, value in counts.items() if key not in GROUPS},
        "bins": None if edges is None else rounded(edges),
        "teachers": teachers,
        "all": _teacher("all", everyone, table, counts.get("all", {}), columns, edges),
        "taught": taught(view.pool),
        "budgets": amounts,
        "notes": notes,
        "scored": None if tokens is None else int(np.isfinite(tokens).sum()),
    }


def _edges(tokens: np.ndarray | None) -> np.ndarray | None:
    """Borders of the histogram's bins, evenly spaced on a logarithmic axis."""
    if tokens is None:
        return None
    lengths = tokens[np.isfinite(tokens) & (tokens > 0)]
    if not len(lengths):
        return None
    return np.geomspace(max(1.0, lengths.min()), lengths.max() + 1, BINS + 1)


def _teacher(
    name: str,
    rows: np.ndarray,
    table: PoolTable,
    stated: Any,
    columns: dict[str, np.ndarray],
    edges: np.ndarray | None,
) -> dict[str, Any]:
    """Statistics of a teacher's rows. `stated`: its counts in the manifest."""
    if not isinstance(stated, dict):
        stated = {}
    values: dict[str, Any] = {
        "teacher": name,
        "trajectories": int(rows.sum()),
        "characters": stated.get("characters"),
        "correct": _share(table.correct[rows], stated.get("correct")),
    }
    if "n_tokens" in columns:
        tokens = columns["n_tokens"][rows]
        tokens = tokens[np.isfinite(tokens)]
        values["tokens"] = _spread(tokens)
        values["histogram"] = [] if edges is None else np.histogram(tokens, edges)[0].tolist()
    if "truncated" in columns:
        truncated = columns["truncated"][rows]
        values["truncated"] = number(np.nanmean(truncated)) if np.isfinite(truncated).any() else None
    return values


def _share(correct: np.ndarray, stated: Any) -> float | None:
    """The share of correct trajectories: as the pool stage graded them, or from the rows that have a
    verdict.
    """
    if isinstance(stated, int | float):
        return float(stated)
    graded = correct[correct >= 0]
    return float((graded == 1).mean()) if len(graded) else None


def _spread(values: np.ndarray) -> dict[str, Any] | None:
    if not len(values):
        return None
    return {
        "quantiles": plain(np.quantile(values, QUANTILES)),
        "mean": float(np.mean(values)),
        "min": float(np.min(values)),
        "max": float(np.max(values)),
    }


def _budgets(opened: OpenView) -> tuple[list[dict[str, str]], list[str]]:
    """The budgets of the selections that exist, as `shares` takes them, and what is wrong with selections
    that cannot be read. Numbers per question come first.
    """
    described, problems = selections(opened)
    distinct = {made["amount_key"]: made for _, made in described}
    ordered = sorted(
        distinct.values(), key=lambda made: (made["budget"] is None, made["budget"] or 0, made["amount_key"])
    )
    return [{"key": made["amount_key"], "label": made["amount"]} for made in ordered], problems


def shares(context: Context, fingerprint: str, view_id: str, budget: str) -> dict[str, Any]:
    """How often each method's selection at this budget chose each teacher."""
    opened = context.open(fingerprint, view_id)
    teacher = opened.pool.teacher
    described, notes = selections(opened)
    by_ranking: dict[str, dict[str, Any]] = {}
    for entry, made in described:
        # The weighting does not change what is chosen, so one selection of each method is read.
        if made["amount_key"] != budget or made["ranking"] in by_ranking:
            continue
        try:
            rows = chosen(entry, opened).row
        except LarkError as problem:
            notes.append(str(problem))
            continue
        counts = np.bincount(teacher.code[rows], minlength=len(teacher.values))
        by_ranking[made["ranking"]] = {**made, "teachers": counts.tolist(), "trajectories": len(rows)}
    names = list(METHODS)
    ordered = sorted(by_ranking.values(), key=lambda made: (names.index(made["method"]), made["ranking"]))
    return {"budget": budget, "selections": ordered, "notes": notes}


def questions(context: Context, fingerprint: str, view_id: str) -> Rows:
    """The questions of a pool, in its order."""
    opened = context.open(fingerprint, view_id)
    table = opened.pool
    columns = opened.columns(["n_tokens", "truncated"])
    size = np.diff(table.start)
    tokens = _by_question(table, columns.get("n_tokens"))
    truncated = _by_question(table, columns.get("truncated"))
    right = np.bincount(table.question[table.correct == 1], minlength=len(size))
    wrong = np.bincount(table.question[table.correct == 0], minlength=len(size))
    with np.errstate(invalid="ignore", divide="ignore"):
        correct = right / (right + wrong)
    holders = questions_with_tokens(opened)
    has_tokens = np.array([question in holders for question in table.questions], dtype=bool)

    def row(i: int) -> dict[str, Any]:
        return {
            "n": i,
            "id": table.questions[i],
            "text": preview(table.texts[i]),
            "candidates": int(size[i]),
            "tokens": number(tokens[i]),
            "correct": number(correct[i]),
            "truncated": number(truncated[i]),
            "has_tokens": bool(has_tokens[i]),
        }

    flags = {
        "tokens": has_tokens,
        "wrong": wrong > 0,
        "all_wrong": (wrong > 0) & (right == 0),
        "truncated": np.nan_to_num(truncated) > 0,
    }
    sorts = {"candidates": size, "tokens": tokens, "correct": correct, "truncated": truncated}
    return Rows(len(size), row, table.text, flags, sorts)


def _by_question(table: PoolTable, values: np.ndarray | None) -> np.ndarray:
    """[N] The mean over each question's candidates; NaN where no value is known."""
    if values is None:
        return np.full(len(table.questions), np.nan)
    rows = np.isfinite(values)
    count = np.bincount(table.question[rows], minlength=len(table.questions))
    total = np.bincount(table.question[rows], weights=values[rows], minlength=len(table.questions))
    with np.errstate(invalid="ignore", divide="ignore"):
        return total / count
