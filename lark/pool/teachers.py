"""Rows with a column for each teacher or rollout: `deepseek_attempt` and `gemini_attempt`, or
`r1_solution_1` to `_3`.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from lark.pool.columns import Columns

THOUGHTS = ("thinking_trajectory", "thinking", "reasoning_content", "reasoning")
RESPONSES = ("attempt", "response", "solution", "completion", "generation", "output")
GRADES = ("grade", "correct")
"""Endings of the columns of one teacher: `deepseek_thinking_trajectory`, `deepseek_attempt`,
`deepseek_grade`.
"""
NAME = re.compile(
    rf"(?:(?P<teacher>.+)_)?(?P<kind>{'|'.join((*THOUGHTS, *RESPONSES))})(?:_?(?P<number>\d{{1,3}}))?"
)
OTHERS = {
    "reference",
    "ground_truth",
    "gold",
    "golden",
    "gt",
    "expected",
    "original",
    "official",
    "human",
    "chosen",
    "rejected",
    "raw",
}
"""Names before an ending that are not a teacher's."""


@dataclass(frozen=True)
class TeacherColumns:
    """The columns of one trajectory."""

    teacher: str | None
    attempt: str
    thought: str | None = None
    number: int | None = None
    """Of several rollouts of the teacher."""
    grade: str | None = None


def find_teachers(columns: Columns) -> list[TeacherColumns]:
    """The trajectories in a row's columns: pairs of reasoning and response; or, if there are none, several
    responses that are numbered or named after their teachers.
    """
    return list(_pairs(columns)) or list(_several(columns))


def _pairs(columns: Columns) -> Iterator[TeacherColumns]:
    values, found = columns.row.values, set()
    for ending in THOUGHTS:
        for name in values:
            teacher = name.removesuffix(f"_{ending}") if isinstance(name, str) else ""
            attempt = next((f"{teacher}_{end}" for end in RESPONSES if f"{teacher}_{end}" in values), None)
            if teacher and teacher != name and attempt and teacher not in found:
                found.add(teacher)
                yield TeacherColumns(teacher, attempt, name, grade=_grade(columns, teacher))


def _several(columns: Columns) -> Iterator[TeacherColumns]:
    """Responses without reasoning. One alone may be anything, so there must be two that differ only in
    teacher or number.
    """
    matches = [
        match for name in columns.row.values if isinstance(name, str) and (match := NAME.fullmatch(name))
    ]
    matches = [match for match in matches if match["kind"] in RESPONSES and match["teacher"] not in OTHERS]
    numbered = Counter((match["teacher"], match["kind"]) for match in matches if match["number"])
    named = Counter(
        match["kind"]
        for match in matches
        if match["teacher"] and not match["number"] and match["kind"] != "solution"
    )
    for match in matches:
        teacher, kind, number = match["teacher"], match["kind"], match["number"]
        if number and numbered[teacher, kind] > 1:
            yield TeacherColumns(teacher, match[0], number=int(number))
        elif not number and teacher and kind != "solution" and named[kind] > 1:
            yield TeacherColumns(teacher, match[0], grade=_grade(columns, teacher))


def _grade(columns: Columns, teacher: str) -> str | None:
    return next(
        (f"{teacher}_{end}" for end in GRADES if columns.row.values.get(f"{teacher}_{end}") is not None), None
    )
