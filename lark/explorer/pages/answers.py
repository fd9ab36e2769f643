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
from lark.explorer.pages.question import neighbours
from lark.explorer.problems import PageError, check_number
from lark.explorer.values import preview

HALF = 0.5
"""A problem counts as solved if a student solves it in at least this share of the seeds."""
ENDING = 400
"""Characters of an answer's end that are shown in the list of samples."""


def benchmarks(context: Context) -> dict[str, Any]:
    """The benchmarks, and the models that were evaluated on each."""
    groups: dict[str, list[Evaluation]] = {}
    for evaluation in evaluations(context.listing()):
        groups.setdefault(evaluation.group, []).append(evaluation)
    rows = []
    for group, members in groups.items():
        task = members[0].task
        models = [model.describe() for model in models_of(members)]
        rows.append({"group": group, "name": task, "label": task_label(task), "models": models})
    return {"graders": list(GRADERS), "benchmarks": rows}


def _find(context: Context, group: str, *models: str) -> list[Evaluation]:
    """The evaluations of these models on a benchmark."""
    members: dict[str, Evaluation] = {}
    for evaluation in evaluations(context.listing()):
        if evaluation.group == group:
            members.setdefault(evaluation.model.id, evaluation)
    missing = next((model for model in models if model not in members), None)
    if missing is not None:
        raise _missing(group, missing, members)
    return [members[model] for model in models]


def _missing(group: str, model: str, members: dict[str, Evaluation]) -> PageError:
    """No answers to the benchmark, or not of this student."""
    if not members:
        return PageError(
            f"There are no graded answers to the benchmark {group[:20]} in this store (any more)."
        )
    task = next(iter(members.values())).task
    return PageError(f"The student {model[:20]} has no graded answers to {task} in this store (any more).")


def _pair(context: Context, group: str, base: str, trained: str) -> list[tuple[Evaluation, Answers]]:
    """Two models with their answers to the same problems."""
    first, second = ((e, answers_of(e, context)) for e in _find(context, group, base, trained))
    if _ids(first[1]) != _ids(second[1]):
        raise PageError("The two students answered different problems.")
    return [first, second]


def _ids(answers: Answers) -> list[Any]:
    return [problem["id"] for problem in answers.problems]


def problems(context: Context, group: str, base: str, trained: str, grader: str) -> Rows:
    """The problems of a benchmark under two models."""
    _check_grader(grader)
    first, second = (answers for _, answers in _pair(context, group, base, trained))
    before = first.solved(grader)
    after = second.solved(grader)
    counts = {
        "before_correct": first.correct_samples(grader),
        "before_samples": first.samples,
        "after_correct": second.correct_samples(grader),
        "after_samples": second.samples,
    }
    # Shares, because the two students may have different numbers of samples.
    share_before = counts["before_correct"] / np.maximum(first.samples, 1)
    share_after = counts["after_correct"] / np.maximum(second.samples, 1)
    change = share_after - share_before
    marks = {
        "disagree": first.disagree | second.disagree,
        "truncated": first.any(first.truncated) | second.any(second.truncated),
        "unboxed": first.any(~first.boxed) | second.any(~second.boxed),
    }

    def row(i: int) -> dict[str, Any]:
        problem = first.problems[i]
        return {
            "n": i,
            "id": str(problem["id"]),
            "text": preview(str(problem["question"])),
            "answer": str(problem["answer"]),
            "level": problem.get("level"),
            "before": float(before[i]),
            "after": float(after[i]),
            **{name: int(values[i]) for name, values in counts.items()},
            **{name: bool(values[i]) for name, values in marks.items()},
        }

    flags = {
        "more": change > 0,
        "fewer": change < 0,
        "fixed": (before < HALF) & (after >= HALF),
        "broken": (before >= HALF) & (after < HALF),
        "solved": after >= HALF,
        "unsolved": after < HALF,
        **marks,
    }
    sorts = {"before": share_before, "after": share_after, "change": change}
    return Rows(len(first.problems), row, lambda i: _searched(first.problems[i]), flags, sorts)


def _check_grader(grader: str) -> None:
    if grader not in GRADERS:
        raise PageError(f"There is no grader {grader[:20]}: use {' or '.join(GRADERS)}.", 400)


def _searched(problem: dict[str, Any]) -> str:
    return f"{problem['id']} {problem['question']} {problem['answer']}"


def problem(context: Context, group: str, base: str, trained: str, n: int) -> dict[str, Any]:
    """One problem with all samples of two models."""
    pair = _pair(context, group, base, trained)
    evaluation, answers = pair[0]
    count = len(answers.problems)
    check_number(n, count, f"This benchmark has {count} problems")
    values = answers.problems[n]
    return {
        "n": n,
        "count": count,
        **neighbours(n, count),
        "id": str(values["id"]),
        "text": str(values["question"]),
        "answer": str(values["answer"]),
        "level": values.get("level"),
        "task": evaluation.task,
        "sides": [{**e.model.describe(), "samples": _samples(side, n)} for e, side in pair],
    }


def _samples(side: Answers, n: int) -> list[dict[str, Any]]:
    """The samples of one problem by seed, without their texts."""
    chosen = np.flatnonzero(side.problem == n)
    samples = []
    for i in chosen[np.lexsort((side.sample[chosen], side.seed[chosen]))].tolist():
        verify = side.answer_verify[i]
        samples.append(
            {
                "i": i,
                "seed": int(side.seed[i]),
                "sample": int(side.sample[i]),
                "answer": side.answer[i],
                "answer_verify": None if verify is None else str(verify),
                **{grader: bool(side.correct[grader][i]) for grader in GRADERS},
                "truncated": bool(side.truncated[i]),
                "boxed": bool(side.boxed[i]),
                "tokens": int(side.n_tokens[i]),
                "ending": side.text(i)[-ENDING:],
            }
        )
    return samples


def sample(context: Context, group: str, model: str, i: int) -> dict[str, Any]:
    """The whole text of one sample."""
    (evaluation,) = _find(context, group, model)
    side = answers_of(evaluation, context)
    check_number(i, len(side.problem), f"There are {len(side.problem)} answers")
    return {"text": side.text(i), "seed": int(side.seed[i]), "sample": int(side.sample[i])}
