"""Lists next to the generations of a row, one value for each: ids, teachers, verdicts, finish reasons."""

from dataclasses import dataclass
from typing import Any

from lark.pool.checks import check_length
from lark.pool.columns import Columns
from lark.reading.fields import Fields

CUT_OFF = ("length", "max_tokens")
"""Finish reasons of a generation that reached the limit, as OpenAI and Anthropic write them."""
VERDICT_COLUMNS = ("correct", "verdicts", "more_verdicts")
LISTS = ("candidate_id", "teacher", *VERDICT_COLUMNS, "complete", "finish_reasons")
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
    if value is None or is_for_all:
        return [value] * length
    values = listed(columns, name)
    check_length(values, length, str(columns.stored(name)), columns.where)
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
        verdicts = [self._truth(name) for name in VERDICT_COLUMNS]
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
        stored = str(self.columns.stored(name))
        return Fields({stored: self.values[name]}, self.where).truth(stored)
