"""Answers to benchmarks: the base and a trained student side by side, seed by seed, with both graders'
verdicts.
"""

from typing import Any

import numpy as np

from lark.config import GRADERS
from lark.explorer.answers_table import Answers, answers_of
from lark.explorer.context import Context
from lark.explorer.evaluated import Evaluation, evaluations, models_of
from lark.explorer.lists import Rows
from lark.explorer.pages.overview import task_label
from lark.explorer.pages.pool import PREVIEW
from lark.explorer.pages.question import neighbours
from lark.explorer.problems import PageError

HALF = 0.5
"""A problem counts as solved if a student solves it in at least this share of the seeds."""
ENDING = 400
"""Characters of an answer's end that are shown in the list of samples."""


def benchmarks(context: Context) -> dict[str, Any]:
    """The benchmarks, and the models that were evaluated on each."""
    found = evaluations(context.listing())
    groups: dict[str, list[Evaluation]] = {}
    for evaluation in found:
        groups.setdefault(evaluation.group, []).append(evaluation)
    return {
        "graders": list(GRADERS),
        "benchmarks": [
            {
                "group": group,
                "name": members[0].task,
                "label": task_label(members[0].task),
                "models": [model.describe() for model in models_of(members)],
            }
            for group, members in groups.items()
        ],
    }


def _find(context: Context, group: str, *models: str) -> list[Evaluation]:
    members = [e for e in evaluations(context.listing()) if e.group == group]
    if not members:
        raise PageError(
            f"There are no graded answers to the benchmark {group[:20]} in this store (any more)."
        )
    found = []
    for model in models:
        match = next((e for e in members if e.model.id == model), None)
        if match is None:
            raise PageError(
                f"The student {model[:20]} has no graded answers to {members[0].task} in this store (any"
                " more)."
            )
        found.append(match)
    return found


def _pair(context: Context, group: str, base: str, trained: str) -> tuple[Answers, Answers]:
    first, second = (answers_of(e, context) for e in _find(context, group, base, trained))
    if [p["id"] for p in first.problems] != [p["id"] for p in second.problems]:
        raise PageError("The two students answered different problems.")
    return first, second


def problems(context: Context, group: str, base: str, trained: str, grader: str) -> Rows:
    """The problems of a benchmark under two models."""
    first, second = _pair(context, group, base, trained)
    if grader not in GRADERS:
        raise PageError(f"There is no grader {grader[:20]}: use {' or '.join(GRADERS)}.", 400)
    before, after = first.solved(grader), second.solved(grader)
    disagree, cut, unboxed = (
        np.logical_or(*(side.any(flag(side)) for side in (first, second)))
        for flag in (
            lambda side: side.correct["paper"] != side.correct["verify"],
            lambda side: side.truncated,
            lambda side: ~side.boxed,
        )
    )

    def row(i: int) -> dict[str, Any]:
        problem = first.problems[i]
        text = str(problem["question"])
        return {
            "n": i,
            "id": str(problem["id"]),
            "text": text[:PREVIEW] + ("…" if len(text) > PREVIEW else ""),
            "answer": str(problem["answer"]),
            "level": problem.get("level"),
            "before": float(before[i]),
            "after": float(after[i]),
            "disagree": bool(disagree[i]),
            "truncated": bool(cut[i]),
            "unboxed": bool(unboxed[i]),
        }

    flags = {
        "fixed": (before < HALF) & (after >= HALF),
        "broken": (before >= HALF) & (after < HALF),
        "solved": after >= HALF,
        "unsolved": after < HALF,
        "disagree": disagree,
        "truncated": cut,
        "unboxed": unboxed,
    }
    sorts = {"before": before, "after": after, "change": after - before}
    return Rows(len(first.problems), row, lambda i: _searched(first.problems[i]), flags, sorts)


def _searched(problem: dict[str, Any]) -> str:
    return f"{problem['id']} {problem['question']} {problem['answer']}"


def problem(context: Context, group: str, base: str, trained: str, n: int) -> dict[str, Any]:
    """One problem with all samples of two models."""
    found = _find(context, group, base, trained)
    first, second = _pair(context, group, base, trained)
    if not 0 <= n < len(first.problems):
        raise PageError(f"This benchmark has {len(first.problems)} problems; there is no number {n}.")
    values = first.problems[n]
    return {
        "n": n,
        "count": len(first.problems),
        **neighbours(n, len(first.problems)),
        "id": str(values["id"]),
        "text": str(values["question"]),
        "answer": str(values["answer"]),
        "level": values.get("level"),
        "task": found[0].task,
        "sides": [
            {**e.model.describe(), "samples": _samples(side, n)}
            for e, side in zip(found, (first, second), strict=True)
        ],
    }


def _samples(side: Answers, n: int) -> list[dict[str, Any]]:
    chosen = np.flatnonzero(side.problem == n)
    order = chosen[np.lexsort((side.sample[chosen], side.seed[chosen]))]
    return [
        {
            "i": int(i), "seed": int(side.seed[i]), "sample": int(side.sample[i]), "answer": side.answer[i],
            "answer_verify": None if side.answer_verify[i] is None else str(side.answer_verify[i]),
            **{grader: bool(side.correct[grader][i]) for grader in GRADERS},
            "truncated": bool(side.truncated[i]), "boxed": bool(side.boxed[i]), "tokens": int(side.n_tokens[i]),
            "ending": side.text(int(i))[-ENDING:],
        }
        for i in order
    ]  # fmt: skip


def sample(context: Context, group: str, model: str, i: int) -> dict[str, Any]:
    """The whole text of one sample."""
    (evaluation,) = _find(context, group, model)
    side = answers_of(evaluation, context)
    if not 0 <= i < len(side.problem):
        raise PageError(f"There are {len(side.problem)} answers; there is no number {i}.")
    return {"text": side.text(i), "seed": int(side.seed[i]), "sample": int(side.sample[i])}
