"""A trajectory as a layout reads it from a row, before it is checked."""

from dataclasses import dataclass
from typing import Any

from lark.pool.columns import Columns
from lark.pool.messages import Turns


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


LABELS = ("question_id", "candidate_id", "teacher", "rollout", "answer", "correct")
"""Columns with the labels of a row that is one trajectory."""


def one(columns: Columns, exchange: Turns) -> DraftTrajectory:
    """A row that is one trajectory."""
    return DraftTrajectory(exchange, **{name: columns.label(name) for name in LABELS})
