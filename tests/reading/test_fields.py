"""The one place that refuses values of rows: what it accepts, and the sentence of every refusal."""

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from lark.errors import LarkError
from lark.reading.fields import Fields, is_blank

NAN = float("nan")
INFINITY = float("inf")


def fields(value: Any) -> Fields:
    return Fields({"x": value, "y": 1}, "a.jsonl, line 3")


@pytest.mark.parametrize(
    ("read", "value", "expected"),
    [
        (lambda row: row.text("x"), " a ", " a "),
        (lambda row: row.optional_text("x"), "", ""),
        (lambda row: row.optional_text("x"), None, None),
        (lambda row: row.scalar("x"), 5.0, "5"),
        (lambda row: row.scalar("x"), Decimal("2.50"), "2.5"),
        (lambda row: row.scalar("x"), "5.0", "5.0"),
        (lambda row: row.answer("x"), 0.00001, "0.00001"),
        (lambda row: row.option("x"), True, "True"),
        (lambda row: row.option("x"), 1.0, "1"),
        (lambda row: row.identity("x"), 7.0, "7"),
        (lambda row: row.identity("x"), "7 ", "7"),
        (lambda row: row.whole("x", largest=9), "-3.0", -3),
        (lambda row: row.whole("x", largest=2**60), 2**53 + 1, 2**53 + 1),
        (lambda row: row.number("x"), 0, 0.0),
        (lambda row: row.numbers("x", largest=2), [0, 1.5], (0.0, 1.5)),
        (lambda row: row.truth("x"), " Yes", True),
        (lambda row: row.truth("x"), 0.0, False),
        (lambda row: row.truth("x"), NAN, None),
        (lambda row: row.one_of("x", (0, 1)), 1, 1),
        (lambda row: row.objects("x"), [{"a": 1}], [{"a": 1}]),
        (lambda row: row.json_list("x"), "[1]", [1]),
    ],
)
def test_a_value_is_read_by_its_type(read: Callable[[Fields], Any], value: Any, expected: Any) -> None:
    assert read(fields(value)) == expected


@pytest.mark.parametrize(
    ("read", "value", "sentence"),
    [
        (lambda row: row.text("x"), None, "there is no `x`; the row has x, y."),
        (lambda row: row.text("x"), "\u200b", "there is no `x`; the row has x, y."),
        (lambda row: row.text("x"), 5, "`x` must be a string, not 5."),
        (lambda row: row.optional_text("x"), ["a"], "`x` must be a string, not a list."),
        (lambda row: row.scalar("x"), True, "`x` must be text or a number, not True."),
        (
            lambda row: row.scalar("x", "Write it."),
            ["5"],
            "`x` must be text or a number, not a list. Write it.",
        ),
        (lambda row: row.scalar("x"), INFINITY, "`x` must be text or a number, not inf."),
        (lambda row: row.scalar("x"), NAN, "`x` is nan (a missing value). Fill it in, or remove the row."),
        (
            lambda row: row.answer("x"),
            True,
            "`x` is the boolean True. Write the answer as it appears in a box, such as Yes.",
        ),
        (lambda row: row.identity("x"), " ", "`x` must be text or a number, not ' '."),
        (lambda row: row.identity("x"), {}, "`x` must be text or a number, not an object."),
        (lambda row: row.identity("x"), None, "there is no `x`; the row has x, y."),
        (lambda row: row.whole("x", largest=9), 1.7, "`x` must be a whole number, not 1.7."),
        (lambda row: row.whole("x", largest=9), "1_0", "`x` must be a whole number, not '1_0'."),
        (
            lambda row: row.whole("x", largest=9999),
            10**30,
            "`x` must be at most 9,999, not 1" + 30 * "0" + ".",
        ),
        (lambda row: row.number("x"), "1.0", "`x` must be a number that is not negative, not '1.0'."),
        (lambda row: row.number("x"), INFINITY, "`x` must be a number that is not negative, not inf."),
        (lambda row: row.number("x", largest=1), 2, "`x` must be a number from 0 to 1, not 2."),
        (lambda row: row.numbers("x"), 1.0, "`x` must be a list of numbers, not 1.0."),
        (
            lambda row: row.numbers("x", largest=1e6),
            [1, NAN],
            "`x` has nan at position 1; each value must be a number from 0 to 1e+06.",
        ),
        (lambda row: row.truth("x"), "maybe", "`x` must be true or false, not 'maybe'."),
        (lambda row: row.one_of("x", (0, 1)), 0.5, "`x` must be 0 or 1, not 0.5."),
        (lambda row: row.objects("x"), [None], "`x` must be a list of objects, not a list."),
        (lambda row: row.json_list("x"), "[", "`x` is a string: broken JSON (Expecting value at column 2)."),
        (lambda row: row.json_list("x"), {}, "`x` must be a list, not an object."),
    ],
)
def test_a_refusal_names_the_row_the_column_and_what_is_expected(
    read: Callable[[Fields], Any], value: Any, sentence: str
) -> None:
    with pytest.raises(LarkError, match=rf"\A{re.escape(f'a.jsonl, line 3: {sentence}')}\Z"):
        read(fields(value))


def test_a_missing_value_is_refused_with_advice() -> None:
    row = Fields({"problem": "?"}, "line 1", advice="Set answer_field.")
    with pytest.raises(
        LarkError, match=r"line 1: there is no `answer`; the row has problem\. Set answer_field\.$"
    ):
        row.answer("answer")


@pytest.mark.parametrize(
    ("value", "blank"),
    [(None, True), ("", True), ([], True), (NAN, True), (0, False), (False, False), (" ", False)],
)
def test_null_empty_and_nan_are_blank(value: Any, blank: bool) -> None:
    assert is_blank(value) is blank
