"""The summary of a pool as text: a table of its teachers, and notes on what often causes problems later."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lark.pool.finding_text import finding_hints, shown
from lark.printing import counted, some, text_table

Counts = Mapping[str, Any]
"""A pool's entries in its manifest (`Summary.to_dict` and `Tally.to_dict`)."""
TEXT_HINTS = {
    "cut": "{:,} conversations end with a user or tool turn, which is left out.",
    "weighted": (
        "{:,} trajectories have weights of turns (weight, loss_scale, loss_weight, loss, train, trainable)."
        " Training uses them; turns with 0 are not scored either."
    ),
    "masked": "{:,} trajectories are left out, because none of their assistant turns is to be trained on.",
    "incomplete": "{:,} trajectories are marked as cut off or have no response (see pool.incomplete).",
    "special_tokens": (
        "{:,} trajectories contain text like a control token: {examples} (see pool.special_tokens)."
    ),
    "instruction_as_system": (
        "{:,} trajectories have the instruction as their system message. It is left out where the instruction"
        " ends the user turn (student.instruction), so that prompts contain it once."
    ),
}
"""Sentences about counts of trajectories, by their entries in the manifest."""
QUESTION_HINTS = {
    "same_text": (
        "{questions:,} questions have the text of another question, so their candidates are not compared with"
        " each other: {examples}. Give rows with the same question the same question_id, or none."
    ),
    "contradicted": (
        "{questions:,} questions have different answers in different rows: {examples}. Each row is compared"
        " with its own."
    ),
    "near_duplicates": (
        "{trajectories:,} trajectories of {questions:,} questions are nearly identical to another candidate:"
        " {examples}."
    ),
}
"""Sentences about groups of questions, by their entries in the manifest."""


def pool_summary(counts: Counts) -> str:
    """The summary as text: one line per teacher, and one for all."""
    rows = [_pool_row(name, part) for name, part in counts["teachers"].items()]
    rows.append(_pool_row("all", counts["all"]))
    table = text_table(["teacher", "trajectories", "median length", "mean", "longest", "correct"], rows)
    hints = "".join(f"Note: {hint}\n" for hint in _hints(counts))
    questions = counted(counts["questions"], "question")
    return f"\n{questions}, {_candidates(counts['candidates'])}\n\n{table}\n\n{hints}{_remarks(counts)}\n"


def _candidates(sizes: Mapping[str, int]) -> str:
    if sizes["min"] == sizes["max"]:
        return f"{sizes['min']} candidates each"
    return f"{sizes['min']} to {sizes['max']} candidates each (median {sizes['median']})"


def _remarks(counts: Counts) -> str:
    """How to read the table."""
    remarks = ["Lengths in characters."]
    if "thinking" in counts:
        remarks.append(f"{counts['thinking']:,} trajectories have separate reasoning.")
    if "conversations" in counts:
        remarks.append(f"{counts['conversations']:,} trajectories are conversations of several turns.")
    is_known = counts["all"]["correct"] is not None
    remarks.append(f"Correct by {counts['verdicts']}." if is_known else "Correctness is not known.")
    if "verdict_columns" in counts:
        remarks.append(
            f"The pool's verdicts come from {_some(counts['verdict_columns'])} (pool.correct_from)."
        )
    return " ".join(remarks)


def _pool_row(name: str, part: Mapping[str, Any]) -> list[str]:
    lengths = [f"{part['characters'][key]:,.0f}" for key in ("median", "mean", "max")]
    correct = "–" if part["correct"] is None else f"{part['correct']:.1%}"
    return [shown(name), f"{part['trajectories']:,}", *lengths, correct]


def _some(names: Sequence[str]) -> str:
    return some(shown(name) for name in names)


def _hints(counts: Counts) -> Iterator[str]:
    """Properties of the pool that often cause problems later."""
    stopped = counts.get("heats", {}).get("stopped", {})
    if stopped:
        names = ", ".join(f"{name} after {why['questions']:,} questions" for name, why in stopped.items())
        yield f"teachers were stopped ({names}), so the pool is unbalanced over teachers on purpose."
    yield from _removed_hints(counts)
    yield from _file_hints(counts)
    yield from _column_hints(counts)
    for name, hint in TEXT_HINTS.items():
        if name in counts:
            yield hint.format(counts[name], examples=_some(counts.get("special_examples", [])))
    yield from _cleaning_hints(counts)
    for name, hint in QUESTION_HINTS.items():
        if name in counts:
            group = counts[name]
            yield hint.format(**{**group, "examples": _some(group["examples"])})
    yield from finding_hints(counts)
    yield from _answer_hints(counts)


def _removed_hints(counts: Counts) -> Iterator[str]:
    """Filters that remove a teacher, or most of the pool: the first thing to know."""
    removed = counts.get("removed")
    if removed is None:
        return
    share = removed["trajectories"] / removed["of"]
    sentence = (
        f"{' and '.join(removed['settings'])} left out {removed['trajectories']:,} of {removed['of']:,}"
        f" trajectories ({share:.0%})"
    )
    if removed["teachers"]:
        teachers = (f"{shown(name)} ({count:,})" for name, count in removed["teachers"].items())
        sentence += f", among them all of {some(teachers)}"
    if removed.get("nearly"):
        counted_of = removed["nearly"].items()
        teachers = (f"{shown(name)} ({count:,} of {total:,})" for name, (count, total) in counted_of)
        sentence += f", and nearly all of {some(teachers)}"
    yield f"{sentence}."


def _file_hints(counts: Counts) -> Iterator[str]:
    for note in counts.get("notes", []):
        yield shown(note, 200)
    skipped = counts.get("skipped_files", {})
    for reason in sorted(set(skipped.values())):
        names = [name for name in skipped if skipped[name] == reason]
        yield f"{counted(len(names), 'file')} not read: {_some(names)} ({reason})."
    for reason, rows in counts.get("without", {}).items():
        yield f"{rows:,} rows or parts of rows are not read: {shown(reason)}."
    if "named_by_file" in counts:
        yield (
            f"{counts['named_by_file']:,} trajectories have no teacher and are named after their files. To"
            " name"
            " another column, use pool.fields.teacher=<column>."
        )
    empty = counts.get("empty_files", [])
    if empty:
        yield f"{counted(len(empty), 'file')} without rows: {_some(empty)}."


def _column_hints(counts: Counts) -> Iterator[str]:
    lost = counts.get("lost", [])
    if lost:
        noun = "column" if len(lost) == 1 else "columns"
        yield (
            f"the {noun} {_some(lost)} may hold trajectories too, but the rows were read as"
            f" {' and '.join(counts['layouts'])}. To read them in another way, use pool.layout=<layout>."
        )
    unused = counts.get("unused", {})
    if unused:
        columns = (f"{shown(name)} ({rows:,} rows)" for name, rows in unused.items())
        yield f"columns that are not used: {some(columns, 12)}."


def _cleaning_hints(counts: Counts) -> Iterator[str]:
    """Trajectories that were removed, damaged or labelled on purpose."""
    if "contaminated" in counts:
        pairs = counts["contaminated"].items()
        examples = some(f"{shown(question)} (like {shown(problem)})" for question, problem in pairs)
        yield f"pool.decontaminate removed {len(pairs):,} questions: {examples}."
    if "damaged" in counts:
        yield _damage(counts["damaged"], counts["trajectories"])
    if "votes" in counts:
        votes = counts["votes"]
        yield (
            f"pool.labels=vote labelled {votes['decided']:,} questions by a majority of their candidates; "
            f"{votes['undecided']:,} have no majority, and {votes['given']:,} have their own answers."
        )


def _damage(damaged: Mapping[str, Any], total: int) -> str:
    count = damaged["trajectories"]
    is_less = count < round(damaged["share"] * total)
    reason = f", not {damaged['share']:.1%}: it would not change any other" if is_less else ""
    return (
        f"pool.noise={damaged['kind']} damaged {count:,} of {total:,} trajectories"
        f" ({count / total:.1%}){reason}."
    )


def _answer_hints(counts: Counts) -> Iterator[str]:
    if "dropped" in counts:
        dropped = counts["dropped"]
        yield (
            f"pool.correct_only dropped {dropped['trajectories']:,} wrong trajectories, and "
            f"{dropped['questions']:,} questions without a correct one."
        )
        for what, count in dropped.get("unknown", {}).items():
            other = "pool.unknown=drop drops them" if what == "kept" else "pool.unknown=keep keeps them"
            yield f"{count:,} trajectories whose correctness is not known were {what}: {other}."
    if counts["boxed"] < 0.5:
        share = f"only {counts['boxed']:.1%} of the responses have" if counts["boxed"] else "no response has"
        yield (
            f"{share} a \\boxed{{}} answer, and evaluation reads nothing else (but tags with answer_format:"
            " exact_text): a student trained on them may score 0. If answers are marked in another way, box"
            " them with a pattern, such as \"pool.answer_pattern='<answer>((?:(?!<answer>).)*?)</answer>'\""
            " (with both kinds of quotes)."
        )
    correct = counts["all"]["correct"]
    if correct is not None and correct < 1:
        yield (
            f"{1 - correct:.1%} are known to be wrong and can be selected: pool.correct_only=true drops them."
        )
