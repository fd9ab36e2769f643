"""Lists next to the generations of a row, one value for each: ids, teachers, verdicts, finish reasons."""

from dataclasses import dataclass
from typing import Any

from lark.pool.checks import check_length
from lark.pool.columns import KINDS, Columns
from lark.reading.fields import Fields

CUT_OFF = ("length", "max_tokens")
"""Finish reasons of a generation that reached the limit, as OpenAI and Anthropic write them."""
MORE_VERDICTS = ("verdicts", "more_verdicts")
LISTS = ("candidate_id", "teacher", "correct", *MORE_VERDICTS, "complete", "finish_reasons")
"""Columns with one value per generation. `teacher` and `correct` may also be one value for all."""


def listed(columns: Columns, name: str) -> list[Any]:
    """The list in a column; empty without the column."""
    value = columns.get(name)
    if value is None:
        return []
    stored = str(columns.stored(name))
    return Fields({stored: value}, columns.where).json_list(stored)


def aligned(columns: Columns, name: str, length: int) -> list[Any]:
    """One value for each generation; None without the column."""
    value = columns.get(name)
    is_for_all = name in ("teacher", "correct") and not isinstance(value, list)
    stored = str(columns.stored(name))
    is_uncertain = name in KINDS and not columns.is_certain(name, stored)
    if is_for_all and name == "correct" and is_uncertain:
        return [None] * length  # the score of a question, such as its pass rate
    if value is None or is_for_all:
        return [value] * length
    values = listed(columns, name)
    if is_uncertain and len(values) != length:
        return [None] * length
    check_length(values, length, stored, columns.where)
    return values


@dataclass(frozen=True)
class Labels:
    """The values of one generation in the lists of its row."""

    columns: Columns
    values: dict[str, Any]
    where: str

    @property
    def verdict(self) -> bool | None:
        """Right if one of the verdicts says so; None without verdicts."""
        stored = self._stored("correct")
        ours = self._fields("correct").verdict(stored, self.columns.correct_from)
        verdicts = [ours, *(self._truth(name) for name in MORE_VERDICTS)]
        if True in verdicts:
            return True
        return False if False in verdicts else None

    @property
    def is_complete(self) -> bool:
        complete = self._truth("complete")
        if complete is not None:
            return complete
        return str(self.values["finish_reasons"]).lower() not in CUT_OFF

    def _truth(self, name: str) -> bool | None:
        return self._fields(name).truth(self._stored(name))

    def _stored(self, name: str) -> str:
        return str(self.columns.stored(name))

    def _fields(self, name: str) -> Fields:
        return Fields({self._stored(name): self.values[name]}, self.where)
