"""A question: its candidates under every method, what was selected from it, and the texts and tokens of
single candidates.
"""

import json
from typing import Any

import numpy as np

from lark.errors import LarkError
from lark.explorer.context import Context
from lark.explorer.listing import Listing
from lark.explorer.pool_table import PoolTable
from lark.explorer.problems import PageError, reading
from lark.explorer.rankings import rank, rankings_of, scores, selected_by
from lark.explorer.selections import chosen
from lark.explorer.tables import columns
from lark.explorer.tokens import (
    candidates_with_tokens,
    describe_alternatives,
    describe_tokens,
    trajectory_tokens,
)
from lark.explorer.values import number, plain
from lark.explorer.views import View, selections_of, views_of
from lark.grading.answers import AnswerFormat, extract_boxed, grade_paper
from lark.models.dialogue import dialogue_of, split_thinking
from lark.pool.trajectories import TEXT_COLUMNS
from lark.pool.trajectory import Trajectory, is_compared
from lark.scoring.methods import METHODS

STATISTICS = ("n_tokens", "truncated", "nll", "brier", "rank_sum")
SHOWN_ANSWER = 200


def question(context: Context, pool: str, view_id: str, n: int) -> dict[str, Any]:
    """The candidates of a question × all methods, and the selections that exist."""
    listing = context.listing()
    view, table = context.view(listing, pool, view_id)
    rows = table.rows(n)
    known = {name: values[rows] for name, values in columns(view, table, STATISTICS, context.cache).items()}
    rankings = rankings_of(listing, view, table, context.cache)
    numbers = {ranking.key: scores(ranking, view, table, context.cache, rows) for ranking in rankings}
    selections, notes = _selections(context, listing, view, table, n, numbers)
    ranked = {ranking.key: rank(numbers[ranking.key], ranking, table, rows) for ranking in rankings}
    kept = candidates_with_tokens(view, table.questions[n], context.cache)
    texts = table.read(rows, [*TEXT_COLUMNS, "teacher", "rollout", "answer", "correct"])
    return {
        "n": n,
        "count": len(table.questions),
        **neighbours(n, len(table.questions)),
        "id": table.questions[n],
        "text": table.texts[n],
        "answer": table.answer[rows[0]] if len(rows) else None,
        "view": view.describe(),
        "views": [other.describe() for other in views_of(listing, view.pool)],
        "rankings": [ranking.describe() for ranking in rankings],
        "candidates": [
            _candidate(context, listing, view, table, int(row), i, texts[i], known, kept)
            for i, row in enumerate(rows)
        ],
        "place": table.candidate.place[rows].tolist(),
        "scores": {key: plain(values) for key, values in numbers.items()},
        "ranks": {key: values.tolist() for key, values in ranked.items()},
        "selections": selections,
        "notes": notes,
    }


def neighbours(n: int, count: int) -> dict[str, int | None]:
    """What the keys [ and ] lead to."""
    return {"previous": n - 1 if n > 0 else None, "next": n + 1 if n + 1 < count else None}


def _candidate(
    context: Context, listing: Listing, view: View, table: PoolTable, row: int, i: int, text: dict[str, Any],
    known: dict[str, np.ndarray], kept: frozenset[str],
) -> dict[str, Any]:  # fmt: skip
    found = {name: number(values[i]) for name, values in known.items()}
    tokens, nll, brier = found.get("n_tokens"), found.get("nll"), found.get("brier")
    boxed = extract_boxed(str(text["response"] or ""))
    return {
        "c": i,
        "id": table.candidate[row],
        "teacher": table.teacher[row],
        "rollout": text["rollout"],
        "tokens": tokens,
        "truncated": bool(found.get("truncated")),
        "loss": nll / tokens if nll is not None and tokens else None,
        "rho": brier / nll if brier is not None and nll else None,
        "boxed": None if boxed is None else boxed[:SHOWN_ANSWER],
        "correct": verdict(text, table.candidate[row], _answer_format(listing, view)),
        "characters": len(text["response"] or "") + len(text["thinking"] or ""),
        "has_tokens": table.candidate[row] in kept,
    }


def _answer_format(listing: Listing, view: View) -> str:
    try:
        return str(listing.config(view.pool)["depends"].get("answer_format", AnswerFormat.FREE_FORM.value))
    except LarkError:
        return AnswerFormat.FREE_FORM.value


def verdict(text: dict[str, Any], candidate: str | None, form: str) -> bool | None:
    """Whether a trajectory is correct, by the rule of the pool stage."""
    trajectory = Trajectory(
        str(text["question_id"]), str(candidate), str(text["teacher"]), int(text["rollout"] or 0), text["system"],
        str(text["question"] or ""), str(text["response"] or ""), text["answer"], text["correct"],
    )  # fmt: skip
    if not is_compared(trajectory):
        return trajectory.correct
    known = AnswerFormat(form) if form in {item.value for item in AnswerFormat} else AnswerFormat.FREE_FORM
    return grade_paper(trajectory.boxed, str(trajectory.answer), known)


def _selections(
    context: Context, listing: Listing, view: View, table: PoolTable, n: int, numbers: dict[str, np.ndarray]
) -> tuple[list[dict[str, Any]], list[str]]:
    """What each finished selection took from this question. Scores of another tool are known for these
    candidates only.
    """
    rows = table.rows(n)
    place = {int(row): i for i, row in enumerate(rows)}
    found, notes = [], []
    for entry in selections_of(listing, view):
        try:
            made = chosen(entry, table, context.cache)
            said = selected_by(entry, listing)
        except LarkError as problem:
            notes.append(str(problem))
            continue
        part = made.of(n)
        values = {name: column[part] for name, column in made.numbers.items()}
        picked = [place[int(row)] for row in made.row[part]]
        if "external" in METHODS[said["method"]].needs and said["ranking"] in numbers:
            numbers[said["ranking"]][picked] = values["score"]
        found.append(
            {
                **said,
                "threshold": number(values["threshold"][0]) if picked else None,
                "tau": number(values["tau"][0]) if picked else None,
                "chosen": [
                    {
                        "c": c,
                        **{
                            name: number(values[name][i])
                            for name in ("rank", "score", "weight", "training_weight")
                        },
                    }
                    for i, c in enumerate(picked)
                ],
            }
        )
    return found, notes


def text(context: Context, pool: str, n: int, c: int) -> dict[str, Any]:
    """The messages of one candidate."""
    listing = context.listing()
    _, table = context.view(listing, pool, "-")
    row = _row(table, n, c)
    (values,) = table.read([row], [*TEXT_COLUMNS, "teacher", "rollout", "answer", "correct"])
    with reading(table.path):
        messages = dialogue_of(values, instruction=None).messages
        return {
            "id": table.candidate[row],
            "teacher": table.teacher[row],
            "messages": [_message(message) for message in messages],
        }


def _message(message: Any) -> dict[str, Any]:
    thinking, content = (
        split_thinking(message) if message["role"] == "assistant" else (None, message.get("content") or "")
    )
    calls = message.get("tool_calls")
    return {
        "role": str(message["role"]),
        "content": content if isinstance(content, str) else json.dumps(content, ensure_ascii=False),
        "thinking": thinking,
        "calls": json.dumps(calls, ensure_ascii=False, indent=2) if calls else None,
    }


def tokens(context: Context, pool: str, view_id: str, n: int, c: int) -> dict[str, Any]:
    """The tokens of one candidate, without the alternatives."""
    listing = context.listing()
    view, table = context.view(listing, pool, view_id)
    row = _row(table, n, c)
    return describe_tokens(
        *trajectory_tokens(view, table.questions[n], str(table.candidate[row]), context.cache)
    )


def alternatives(context: Context, pool: str, view_id: str, n: int, c: int, part: int) -> dict[str, Any]:
    """The alternatives at some positions of one candidate."""
    listing = context.listing()
    view, table = context.view(listing, pool, view_id)
    row = _row(table, n, c)
    return describe_alternatives(
        *trajectory_tokens(view, table.questions[n], str(table.candidate[row]), context.cache), part
    )


def _row(table: PoolTable, n: int, c: int) -> int:
    rows = table.rows(n)
    if not 0 <= c < len(rows):
        raise PageError(f"Question {table.questions[n]} has {len(rows)} candidates; there is no number {c}.")
    return int(rows[c])
