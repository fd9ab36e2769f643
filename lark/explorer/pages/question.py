"""A question: its candidates under every method, the selected ones, and the texts and tokens of single
candidates.
"""

import json
from typing import Any

import numpy as np

from lark.config import Pool
from lark.errors import LarkError
from lark.explorer.context import Context
from lark.explorer.listing import Entry
from lark.explorer.problems import check_number, reading
from lark.explorer.rankings import rank, rankings_of, scores
from lark.explorer.selections import Chosen, chosen, selections
from lark.explorer.tables import OpenView
from lark.explorer.tokens import (
    candidates_with_tokens,
    describe_alternatives,
    describe_tokens,
    trajectory_tokens,
)
from lark.explorer.values import number, plain
from lark.models.dialogue import dialogue_of, split_thinking
from lark.pool.trajectories import TEXT_COLUMNS
from lark.pool.trajectory import Trajectory, verdict
from lark.scoring.methods import METHODS
from lark.scoring.tokens import TrajectoryTokens

STATISTICS = ("n_tokens", "truncated", "nll", "brier", "rank_sum")
READ = [*TEXT_COLUMNS, "teacher", "rollout", "answer", "correct"]
"""The fields of a Trajectory."""
PICKED = ("rank", "score", "weight", "training_weight")
"""Numbers of a selected trajectory."""
SHOWN_ANSWER = 200


def question(context: Context, pool: str, view_id: str, n: int) -> dict[str, Any]:
    """The candidates of a question × all methods, and the selections that exist."""
    opened = context.open(pool, view_id)
    table = opened.pool
    rows = table.rows(n)
    rankings = rankings_of(opened)
    numbers = {ranking.key: scores(ranking, opened, rows) for ranking in rankings}
    made, notes = _selections(opened, n, numbers)
    ranks = {r.key: rank(numbers[r.key], r, table, rows).tolist() for r in rankings}
    return {
        "n": n,
        "count": len(table.questions),
        **neighbours(n, len(table.questions)),
        "id": table.questions[n],
        "text": table.texts[n],
        "answer": table.answer[rows[0]],
        **opened.describe(),
        "rankings": [ranking.describe() for ranking in rankings],
        "candidates": _candidates(opened, n, rows),
        "place": table.candidate.place[rows].tolist(),
        "scores": {key: plain(values) for key, values in numbers.items()},
        "ranks": ranks,
        "selections": made,
        "notes": notes,
    }


def neighbours(n: int, count: int) -> dict[str, int | None]:
    """The pages to which the keys [ and ] lead."""
    return {"previous": n - 1 if n > 0 else None, "next": n + 1 if n + 1 < count else None}


def _candidates(opened: OpenView, n: int, rows: np.ndarray) -> list[dict[str, Any]]:
    table = opened.pool
    columns = opened.columns(STATISTICS)
    with_tokens = candidates_with_tokens(opened, n)
    settings = _answer_settings(opened)
    candidates = []
    for c, (row, values) in enumerate(zip(rows, table.read(rows, READ), strict=True)):
        trajectory = Trajectory(**values)
        boxed = trajectory.boxed
        candidates.append(
            {
                "c": c,
                "id": trajectory.candidate_id,
                "teacher": trajectory.teacher,
                **_statistics({name: number(column[row]) for name, column in columns.items()}),
                "boxed": None if boxed is None else boxed[:SHOWN_ANSWER],
                "correct": verdict(trajectory, settings),
                "characters": len(trajectory.response) + len(trajectory.thinking or ""),
                "has_tokens": trajectory.candidate_id in with_tokens,
            }
        )
    return candidates


def _statistics(values: dict[str, float | None]) -> dict[str, Any]:
    """Length, loss per token and rho of a trajectory, as far as they are known."""
    tokens = values.get("n_tokens")
    nll = values.get("nll")
    brier = values.get("brier")
    return {
        "tokens": tokens,
        "truncated": bool(values.get("truncated")),
        "loss": nll / tokens if nll is not None and tokens else None,
        "rho": brier / nll if brier is not None and nll else None,
    }


def _answer_settings(opened: OpenView) -> Pool:
    """How the pool's answers are read. Pools of earlier versions do not state it."""
    names = ("answer_format", "answer_from")
    try:
        depends = opened.listing.config(opened.view.pool)["depends"]
        stated = {name: depends[name] for name in names if name in depends}
        return Pool(name="shown", format="rows", path="shown", **stated)
    except (LarkError, KeyError, TypeError):
        return Pool(name="shown", format="rows", path="shown")


def _selections(
    opened: OpenView, n: int, numbers: dict[str, np.ndarray]
) -> tuple[list[dict[str, Any]], list[str]]:
    """What each finished selection took from this question. Adds to `numbers` the scores of another tool,
    which are known for the selected candidates only.
    """
    place = {row: c for c, row in enumerate(opened.pool.rows(n).tolist())}
    described, notes = selections(opened)
    taken = []
    for entry, made in described:
        try:
            selection = chosen(entry, opened)
        except LarkError as problem:
            notes.append(str(problem))
            continue
        part = selection.of(n)
        picked = [place[row] for row in selection.row[part].tolist()]
        method = METHODS.get(made["method"])
        is_external = method is not None and "external" in method.needs
        if is_external and made["ranking"] in numbers:
            numbers[made["ranking"]][picked] = selection.numbers["score"][part]
        taken.append({**made, **_taken(selection, part, picked)})
    return taken, notes


def _taken(selection: Chosen, part: slice, picked: list[int]) -> dict[str, Any]:
    """The chosen candidates of one question, with their numbers. The threshold and tau are the question's."""
    values = {name: column[part] for name, column in selection.numbers.items()}
    candidates = [
        {"c": c, **{name: number(values[name][i]) for name in PICKED}} for i, c in enumerate(picked)
    ]
    return {
        "threshold": number(values["threshold"][0]) if picked else None,
        "tau": number(values["tau"][0]) if picked else None,
        "chosen": candidates,
    }


def text(context: Context, pool: str, n: int, c: int) -> dict[str, Any]:
    """The messages of one candidate."""
    opened = context.open(pool, "-")
    table = opened.pool
    row = _row(opened, n, c)
    (values,) = table.read([row], READ)
    with reading(table.path):
        messages = dialogue_of(values, instruction=None).messages
        return {
            "id": table.candidate[row],
            "teacher": table.teacher[row],
            "messages": [_message(message) for message in messages],
        }


def _message(message: Any) -> dict[str, Any]:
    if message["role"] == "assistant":
        thinking, content = split_thinking(message)
    else:
        thinking = None
        content = message.get("content") or ""
    calls = message.get("tool_calls")
    return {
        "role": str(message["role"]),
        "content": content if isinstance(content, str) else json.dumps(content, ensure_ascii=False),
        "thinking": thinking,
        "calls": json.dumps(calls, ensure_ascii=False, indent=2) if calls else None,
    }


def tokens(context: Context, pool: str, view_id: str, n: int, c: int) -> dict[str, Any]:
    """The tokens of one candidate, without the alternatives."""
    return describe_tokens(*_tokens(context.open(pool, view_id), n, c))


def alternatives(context: Context, pool: str, view_id: str, n: int, c: int, part: int) -> dict[str, Any]:
    """The alternatives at some positions of one candidate."""
    return describe_alternatives(*_tokens(context.open(pool, view_id), n, c), part)


def _tokens(opened: OpenView, n: int, c: int) -> tuple[Entry, TrajectoryTokens]:
    candidate = str(opened.pool.candidate[_row(opened, n, c)])
    return trajectory_tokens(opened, n, candidate)


def _row(opened: OpenView, n: int, c: int) -> int:
    """The row of a candidate of a question."""
    rows = opened.pool.rows(n)
    check_number(c, len(rows), f"Question {opened.pool.questions[n]} has {len(rows)} candidates")
    return int(rows[c])
