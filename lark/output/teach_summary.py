"""The teachers of a run in its summary: what each has written, how much of it is correct, and its cost."""

from collections.abc import Mapping, Sequence
from typing import Any

from lark.printing import text_table
from lark.store.store import Store
from lark.work.operation import Step

HEADER = ["teacher", "rollouts", "correct", "different", "mean tokens", "cut off", "cost", "per correct"]


def teachers_table(store: Store, steps: Sequence[Step]) -> str:
    """One row per teacher; empty if the run has none. `per correct`: the cost of each correct rollout with a
    text of its own.
    """
    counts: dict[str, dict[str, Any]] = {}
    unanswered: list[str] = []
    for step in steps:
        if step.teacher:
            made = store.manifest(step.artifacts[0]).counts
            counts.setdefault(step.teacher, {}).update(made)
            unanswered += [f"{step.teacher}: {reason} {number:,}" for reason, number in _failures(made)]
    if not counts:
        return ""
    table = text_table(HEADER, [_row(teacher, made) for teacher, made in counts.items()], right=1)
    return table + (f"\n\nQuestions without an answer: {', '.join(unanswered)}" if unanswered else "")


def _failures(counts: Mapping[str, Any]) -> list[tuple[str, int]]:
    failures = list(counts.get("failures", {}).items())
    if counts.get("not_asked"):
        failures.append(("not asked, a limit was reached", counts["not_asked"]))
    return failures


def _row(teacher: str, counts: Mapping[str, Any]) -> list[str]:
    rollouts = counts.get("rollouts", 0)
    judged = counts.get("right", 0) + counts.get("wrong", 0)
    distinct = counts.get("distinct", 0)
    cost = counts.get("cost", 0.0)
    return [
        teacher,
        f"{rollouts:,}",
        f"{100 * counts['right'] / judged:.1f}%" if judged else "–",
        f"{distinct:,}" if judged else "–",
        f"{counts['tokens'] / rollouts:,.0f}" if rollouts else "–",
        f"{100 * counts['cut'] / rollouts:.1f}%" if rollouts else "–",
        f"{cost:,.2f}" if cost else "–",
        f"{cost / distinct:.4g}" if cost and distinct else "–",
    ]
