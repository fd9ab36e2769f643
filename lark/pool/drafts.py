"""A trajectory as a layout reads it from a row, before it is checked."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lark.pool.checks import not_a_log
from lark.pool.columns import Columns
from lark.pool.messages import Turns
from lark.reading.untrusted import parsed


@dataclass(frozen=True)
class DraftTrajectory:
    """A trajectory as a layout reads it, before its ids and verdicts are checked."""

    turns: Turns
    question_id: Any = None
    candidate_id: Any = None
    teacher: Any = None
    rollout: Any = None
    answer: Any = None
    correct: Any = None
    complete: bool = True
    """False: the teacher was cut off."""
    pass_rate: float | None = None
    """Share of the student's own samples for the question that are correct."""


LABELS = ("question_id", "candidate_id", "teacher", "rollout", "answer", "correct")
"""Columns with the labels of a row that is one trajectory."""


Read = Callable[[Columns], Iterator[DraftTrajectory]]
"""Reads the trajectories of a row."""


def one(columns: Columns, exchange: Turns) -> DraftTrajectory:
    """A row that is one trajectory."""
    return DraftTrajectory(exchange, **{name: columns.label(name) for name in LABELS})


def shaped(read: Read, *needs: str) -> Read:
    """The reader of a log that has these columns. Its parts are objects of other tools, whose types are not
    checked one by one: a part of another type is reported as such.
    """

    def checked(columns: Columns) -> Iterator[DraftTrajectory]:
        columns.require_names(needs)
        try:
            yield from read(columns)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise not_a_log(error, columns.where) from error

    return checked


def as_object(value: Any) -> Mapping[str, Any]:
    """A value as an object, which may be stored as JSON text; empty if it is something else."""
    if isinstance(value, str):
        value = parsed(value)
    return value if isinstance(value, dict) else {}


def first(value: Any) -> Any:
    """The first value of a list, or the value itself."""
    if isinstance(value, list):
        return value[0] if value else None
    return value


def or_else(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value
