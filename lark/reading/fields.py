"""The values of a row by their types: the one place that refuses values of the wrong type.

    fields = Fields(row.values, row.where, "Name the columns with pool.fields.")
    question = fields.text("question")
    level = fields.whole("level", largest=5) if fields.has("level") else None

A refusal names the row, the column, the value, and what the value must be. Text may still contain halves of
characters: `untrusted.require_characters` checks all texts of a row at once.
"""

import contextlib
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from lark.errors import LarkError
from lark.reading.untrusted import described, parse, quoted
from lark.reading.values import id_text, is_invisible, plain_text

TRUE = ("true", "1", "1.0", "yes")
FALSE = ("false", "0", "0.0", "no")
"""Verdicts as datasets write them, in lower case."""


def is_blank(value: Any) -> bool:
    """Whether a value is missing: null, empty, or NaN, which is how tables store a missing number."""
    return value is None or _is_nan(value) or value in ("", [], {})


@dataclass(frozen=True)
class Fields:
    """A row's values. Every method reads the column `name`; `remedy` is a sentence that ends its refusal."""

    values: Mapping[str, Any]
    where: str
    """The row's location, which begins every refusal."""
    advice: str = ""
    """Ends the refusal of a missing value: the columns of such a file, or the settings that name them."""

    def has(self, name: str) -> bool:
        """Whether the row has a value in this column. Null is not a value."""
        return self.values.get(name) is not None

    def get(self, name: str) -> Any:
        """A value of any type, but not null."""
        if not self.has(name):
            raise self._missing(name)
        return self.values[name]

    def text(self, name: str, remedy: str = "") -> str:
        """A string with at least one visible character."""
        value = self._visible(name)
        if not isinstance(value, str):
            raise self._refused(name, "a string", remedy)
        return value

    def optional_text(self, name: str, remedy: str = "") -> str | None:
        """A string, which may be blank, or None."""
        value = self.values.get(name)
        if not isinstance(value, str | None):
            raise self._refused(name, "a string", remedy)
        return value

    def scalar(self, name: str, remedy: str = "") -> str:
        """Text, or a number as an answer has it: 5.0 becomes `5` (`plain_text`)."""
        value = self._visible(name)
        if not _is_text_or_number(value):
            raise self._refused(name, "text or a number", remedy)
        return plain_text(value)

    def answer(self, name: str) -> str:
        """A gold answer. A boolean is refused: the box of a response may contain True, true or Yes."""
        value = self.get(name)
        if isinstance(value, bool):
            raise LarkError(
                f"{self.where}: `{name}` is the boolean {value}. Write the answer as it appears in a box,"
                " such as Yes."
            )
        return self.scalar(name)

    def option(self, name: str) -> str:
        """An option of a multiple-choice problem. It is shown to the student, so a boolean is a text too."""
        value = self.get(name)
        return str(value) if isinstance(value, bool) else self.scalar(name)

    def options(self, name: str) -> list[str]:
        """All options of a multiple-choice problem."""
        values = self.get(name)
        if not isinstance(values, list | tuple) or len(values) < 2:
            raise self._refused(name, "a list of at least two options")
        return [Fields({name: value}, self.where, self.advice).option(name) for value in values]

    def identity(self, name: str, remedy: str = "") -> str:
        """An id as text: 7, 7.0 and `7 ` are the same id (`id_text`)."""
        value = self.get(name)
        if not _is_text_or_number(value) or is_invisible(id_text(value)):
            raise self._refused(name, "text or a number", remedy)
        return id_text(value)

    def whole(self, name: str, largest: int, remedy: str = "") -> int:
        """A whole number between `-largest` and `largest`, which may be written as text or as a float."""
        number = _whole(self.get(name))
        if number is None or abs(number) > largest:
            kind = "a whole number" if number is None else f"at most {largest:,}"
            raise self._refused(name, kind, remedy)
        return number

    def number(self, name: str, largest: float = sys.float_info.max, remedy: str = "") -> float:
        """A finite number from 0 to `largest`. Text is not a number."""
        value = self.get(name)
        if not _is_number(value, largest):
            raise self._refused(name, _range(largest), remedy)
        return float(value)

    def numbers(self, name: str, largest: float = sys.float_info.max) -> tuple[float, ...]:
        """A list of numbers from 0 to `largest`."""
        values = self.get(name)
        if not isinstance(values, list):
            raise self._refused(name, "a list of numbers")
        self._check_numbers(name, values, largest)
        return tuple(map(float, values))

    def _check_numbers(self, name: str, values: Sequence[Any], largest: float) -> None:
        for position, value in enumerate(values):
            if not _is_number(value, largest):
                raise LarkError(
                    f"{self.where}: `{name}` has {quoted(value)} at position {position}; each value must be"
                    f" {_range(largest)}."
                )

    def truth(self, name: str) -> bool | None:
        """A verdict; None if it is missing. (`bool("false")` would be True.)"""
        value = self.values.get(name)
        if is_blank(value):
            return None
        text = str(value).strip().lower()
        if text not in (*TRUE, *FALSE):
            raise self._refused(name, "true or false")
        return text in TRUE

    def verdict(self, name: str, least: float) -> bool | None:
        """A verdict, or a number that is one: a reward or a score of at least `least`. None if missing."""
        value = self.values.get(name)
        number = None if isinstance(value, bool) else _float(value)
        if number is None:
            return self.truth(name)
        return number >= least

    def one_of(self, name: str, options: Sequence[Any], remedy: str = "") -> Any:
        """One of several values."""
        value = self.get(name)
        if value not in options:
            raise self._refused(name, " or ".join(map(str, options)), remedy)
        return value

    def objects(self, name: str, remedy: str = "") -> list[dict[str, Any]]:
        """A list of objects."""
        values = self.get(name)
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            raise self._refused(name, "a list of objects", remedy)
        return values

    def json_list(self, name: str) -> list[Any]:
        """A list, which may be stored as JSON text."""
        value = self.values.get(name)
        if isinstance(value, str):
            value = parse(value, f"{self.where}: `{name}` is a string")
        if not isinstance(value, list):
            raise LarkError(f"{self.where}: `{name}` must be a list, not {described(value)}.")
        return value

    def _visible(self, name: str) -> Any:
        """A value of any type. A text without a visible character is a missing value."""
        value = self.get(name)
        if isinstance(value, str) and is_invisible(value):
            raise self._missing(name)
        return value

    def _missing(self, name: str) -> LarkError:
        columns = ", ".join(map(str, self.values))
        sentence = f"{self.where}: there is no `{name}`; the row has {columns}. {self.advice}"
        return LarkError(sentence.rstrip())

    def _refused(self, name: str, expected: str, remedy: str = "") -> LarkError:
        """`expected` completes "must be": a kind of value."""
        value = self.values[name]
        if _is_nan(value):
            # Not the user's mistake of type: a table has NaN where a number is missing.
            return LarkError(
                f"{self.where}: `{name}` is nan (a missing value). Fill it in, or remove the row."
            )
        sentence = f"{self.where}: `{name}` must be {expected}, not {quoted(value)}. {remedy}"
        return LarkError(sentence.rstrip())


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | Decimal) and math.isnan(value)


def _float(value: Any) -> float | None:
    """A finite number, which may be written as text."""
    if isinstance(value, int | float | Decimal | str) and "_" not in str(value):
        with contextlib.suppress(ValueError, OverflowError):
            number = float(value)
            return number if math.isfinite(number) else None
    return None


def _is_text_or_number(value: Any) -> bool:
    if isinstance(value, bool):  # JSON's true may mean yes
        return False
    if isinstance(value, float | Decimal):
        return math.isfinite(value)
    return isinstance(value, str | int)


def _is_number(value: Any, largest: float) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= largest  # false for NaN


def _range(largest: float) -> str:
    if largest == sys.float_info.max:
        return "a number that is not negative"
    return f"a number from 0 to {largest:g}"


def _whole(value: Any) -> int | None:
    """The whole number that a value means: 3, 3.0 and `3` are 3."""
    if isinstance(value, bool) or "_" in str(value):  # Python reads 1_0 as 10
        return None
    if isinstance(value, int):
        return value  # not by way of a float, which is exact only up to 2^53
    try:
        number = float(value)
    except (OverflowError, TypeError, ValueError):
        return None
    return int(number) if number.is_integer() else None
