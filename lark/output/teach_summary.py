"""The teachers of a run in its summary: what each has written, how much of it is correct, and its cost."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lark.printing import counted, text_table
from lark.store.store import Store
from lark.teaching.artifacts import ROLLOUTS, STANDING
from lark.teaching.heats import Standing
from lark.work.operation import Step

HEADER = ["teacher", "rollouts", "correct", "different", "mean tokens", "cut off", "cost", "per correct"]


def teachers_table(store: Store, steps: Sequence[Step]) -> str:
    """One row per teacher; empty if the run has none. `per correct`: the cost of each correct rollout with a
    text of its own.
    """
    counts: dict[str, dict[str, Any]] = {}
    standing = Standing()
    for step in steps:
        made = store.manifest(step.artifacts[0]).counts
        if step.teacher:
            # The rollouts of a heat contain those of the heats before.
            kept = made if step.makes(ROLLOUTS) else {**counts.get(step.teacher, {}), **made}
            counts[step.teacher] = dict(kept)
        elif step.makes(STANDING) and made:
            standing = Standing.of(made)
    if not counts:
        return ""
    table = text_table(HEADER, [_row(teacher, made) for teacher, made in counts.items()], right=1)
    return "\n\n".join([table, *_unanswered(counts), *_spared(counts, standing)])


def _unanswered(counts: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    parts = []
    for teacher, made in counts.items():
        parts += [f"{teacher}: {reason} {number:,}" for reason, number in _failures(made)]
    if parts:
        yield f"Questions without an answer: {', '.join(parts)}"


def _spared(counts: Mapping[str, Mapping[str, Any]], standing: Standing) -> Iterator[str]:
    """What each teacher was not asked, why, and what that has saved."""
    lines = []
    for teacher, made in counts.items():
        why = standing.stopped.get(teacher)
        spared = made.get("spared", 0)
        if why is None and not spared:
            continue
        reason = "other teachers had enough rollouts for some questions"
        if why is not None:
            reason = f"stopped after heat {why.heat} ({counted(why.questions, 'question')}), {why}"
        lines.append(f"{teacher}: {reason}; {_saved(made, spared)}")
    if lines:
        yield "\n".join(["Not asked on purpose, so the pool is unbalanced over teachers:", *lines])


def _saved(made: Mapping[str, Any], questions: int) -> str:
    """The cost of questions that were not asked, if it is that of the others."""
    share = questions / max(1, made["questions"])
    parts = [counted(questions, "question"), f"about {made['tokens'] * share:,.0f} tokens"]
    if made["cost"]:
        parts.append(f"cost about {made['cost'] * share:,.2f}")
    return f"{', '.join(parts)} saved"


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
