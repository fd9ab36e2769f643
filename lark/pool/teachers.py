"""Rows with columns for each teacher or rollout: `deepseek_attempt`, `gemini_attempt`; `r1_solution_1`."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from lark.pool.columns import Columns

THOUGHTS = ("thinking_trajectory", "thinking", "reasoning_content", "reasoning")
RESPONSES = ("attempt", "response", "solution", "completion", "generation", "output")
GRADES = ("grade", "correct")
"""Endings of one teacher's columns: `deepseek_thinking_trajectory`, `deepseek_attempt`, `deepseek_grade`."""
KINDS = "|".join((*THOUGHTS, *RESPONSES))
NAME = re.compile(rf"(?:(?P<teacher>.+)_)?(?P<kind>{KINDS})(?:_?(?P<number>\d{{1,3}}))?")
LAST = re.compile(rf"(?P<kind>{'|'.join(RESPONSES)})s?_(?P<teacher>[A-Za-z].*)")
LABELS = {
    "id",
    "ids",
    "length",
    "len",
    "tokens",
    "score",
    "reward",
    "time",
    "type",
    "format",
    "model",
    "text",
}
"""Words after `response_` that say something about a response instead of naming its teacher."""
GOLD = {"reference", "ground_truth", "gold", "golden", "gt", "expected", "original", "official"}
OTHERS = GOLD | {"human", "chosen", "rejected", "raw"}
"""Names before an ending that are not a teacher's."""


@dataclass(frozen=True)
class TeacherColumns:
    """The columns of one trajectory."""

    teacher: str | None
    attempt: str
    thought: str | None = None
    number: int | None = None
    """The rollout, if a teacher has several."""
    grade: str | None = None

    @property
    def names(self) -> set[str]:
        """The columns' names."""
        return {name for name in (self.thought, self.attempt, self.grade) if name}

    @property
    def candidate(self) -> str:
        """The trajectory's candidate_id: the teacher, the number, or both."""
        return ".".join(str(part) for part in (self.teacher, self.number) if part is not None)


def find_teachers(columns: Columns) -> list[TeacherColumns]:
    """The trajectories in a row's columns: those of pool.responses; or else pairs of reasoning and response;
    or, if there are none, several responses that are numbered or named after their teachers.
    """
    if columns.responses:
        return [TeacherColumns(name, name) for name in columns.responses if name in columns.row.values]
    return list(_pairs(columns)) or list(_several(columns)) or list(_named_last(columns))


def _pairs(columns: Columns) -> Iterator[TeacherColumns]:
    teachers: set[str] = set()
    for ending in THOUGHTS:
        for name in columns.row.values:
            teacher = name.removesuffix(f"_{ending}") if isinstance(name, str) else ""
            if not teacher or teacher == name or teacher in teachers:
                continue
            attempt = _column(columns, teacher, RESPONSES)
            if attempt is not None:
                teachers.add(teacher)
                yield TeacherColumns(teacher, attempt, name, grade=_grade(columns, teacher))


def _several(columns: Columns) -> Iterator[TeacherColumns]:
    """Responses without reasoning. One alone may be anything, so there must be two that differ only in
    teacher or number.
    """
    matches = list(_responses(columns))
    numbered = Counter((match["teacher"], match["kind"]) for match in matches if match["number"])
    named = Counter(match["kind"] for match in matches if _is_named(match))
    for match in matches:
        teacher = match["teacher"]
        number = match["number"]
        if number and numbered[teacher, match["kind"]] > 1:
            yield TeacherColumns(teacher, match[0], number=int(number))
        elif _is_named(match) and named[match["kind"]] > 1:
            yield TeacherColumns(teacher, match[0], grade=_grade(columns, teacher))


def _named_last(columns: Columns) -> Iterator[TeacherColumns]:
    """Several responses with the teacher at the end: `response_qwq`, `response_r1`."""
    matches = [LAST.fullmatch(name) for name in columns.row.values if isinstance(name, str)]
    named = [match for match in matches if match and match["teacher"] not in OTHERS | LABELS]
    kinds = Counter(match["kind"] for match in named)
    for match in named:
        if kinds[match["kind"]] > 1 and isinstance(columns.row.values[match[0]], str):
            yield TeacherColumns(match["teacher"], match[0])


def _responses(columns: Columns) -> Iterator[re.Match[str]]:
    for name in columns.row.values:
        match = NAME.fullmatch(name) if isinstance(name, str) else None
        if match and match["kind"] in RESPONSES and match["teacher"] not in OTHERS:
            yield match


def _is_named(match: re.Match[str]) -> bool:
    """Whether a column is named after its teacher. A `..._solution` is more often the gold solution."""
    return bool(match["teacher"]) and not match["number"] and match["kind"] != "solution"


def _column(columns: Columns, teacher: str, endings: tuple[str, ...]) -> str | None:
    names = (f"{teacher}_{ending}" for ending in endings)
    return next((name for name in names if name in columns.row.values), None)


def _grade(columns: Columns, teacher: str) -> str | None:
    """The column of the teacher's verdict, if it has a value in this row."""
    names = (f"{teacher}_{ending}" for ending in GRADES)
    return next((name for name in names if columns.row.values.get(name) is not None), None)
