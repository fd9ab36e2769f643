"""Compare two statements: their names, their values with units, or the equations that they are."""

import re
from collections.abc import Sequence
from itertools import combinations, product, starmap

from lark.grading.strict.answer_tokens import Token, mark, number
from lark.grading.strict.expressions import INFINITIES, Expression
from lark.grading.strict.matching import same_in_any_order, same_in_order
from lark.grading.strict.mathematics import (
    is_rounding,
    parse,
    same_equation,
    same_expression,
    same_inequality,
    same_number,
)
from lark.grading.strict.sets import is_in_radians, is_nothing, positive, same_set
from lark.grading.strict.structure import (
    Bracketed,
    Inequality,
    Matrix,
    Quantity,
    Statement,
    Value,
    Words,
    normalised_words,
    value_letters,
)
from lark.grading.strict.units import DEGREE, are_compatible, is_percentage
from lark.grading.strict.unreadable import UnreadableError, require
from lark.grading.strict.variables import same_names

_PERCENTS = re.compile(r"(?:- )?(?!1\b)[0-9]+(?:\.0*)?|(?:- )?(?![01]\.)[0-9]+\.[0-9]+")
"""Numbers that may be meant in percent: whole ones other than 1, and decimals from 2."""
_MINUTES = re.compile(r"[0-5][0-9]")


def same_statement(predicted: Statement, expected: Statement, has_number: bool = False) -> bool:
    """True if every value equals the expected one. Equations that are not solved for a name are compared as
    equations.

    `has_number`: another statement of the answer has the value without a percent sign.
    """
    if not same_names(predicted, expected) or not all(
        starmap(are_compatible, combinations(predicted.units, 2))
    ):
        return False
    if len(expected.quantities) == 1:
        gold = expected.quantities[0]
        if not predicted.quantities:
            return _is_approximation(predicted, gold)
        if _has_only(predicted, gold, has_number):
            return _are_roundings(predicted)
    return _same_equations(predicted, expected)


def _has_only(predicted: Statement, gold: Quantity, has_number: bool) -> bool:
    """True if every value is the gold one. Percentages must agree with the other values."""
    has_number = has_number or has_plain_number(predicted)
    for quantity in predicted.quantities:
        if not _same_quantity(quantity, gold, has_number):
            return False
    return agree_in_percent(predicted.quantities)


def _are_roundings(statement: Statement) -> bool:
    """True if the values after `\\approx` are roundings of the value before it."""
    value, unit = statement.quantities[0]
    for rounded, rounded_unit in statement.rounded:
        is_rounded = isinstance(value, Expression) and is_rounding(rounded, value)
        if not is_rounded or rounded_unit not in {unit, None}:
            return False
    return True


def _is_approximation(predicted: Statement, gold: Quantity) -> bool:
    """True if values that are only approximate are right: the gold answer is rounded as well."""
    is_decimal = isinstance(gold[0], Expression) and gold[0].is_decimal
    return is_decimal and all(_same_quantity(quantity, gold) for quantity in predicted.rounded)


def _same_equations(predicted: Statement, expected: Statement) -> bool:
    if not all(starmap(are_compatible, product(predicted.units, expected.units))):
        return False
    is_equation = len(expected.quantities) == 2 or bool(expected.names and value_letters(expected))
    have_two_sides = bool(predicted.members and expected.members)
    return is_equation and have_two_sides and same_equation(predicted.members, expected.members)


def _same_quantity(predicted: Quantity, expected: Quantity, has_number: bool = False) -> bool:
    """Compare values with units.

    A gold answer that is a whole number other than 1 and -1, or a decimal from 2, may be a number of
    percent. For any other one a percentage is a number of hundredths, and it is right only next to the
    number itself (`has_number`): `0.33 = 33\\%`. Otherwise `33\\%` would be right for both 33 and 0.33. A
    gold answer in percent may be answered without the sign.
    """
    ours, our_unit = predicted
    theirs, their_unit = expected
    if is_percentage(our_unit) and not is_percentage(their_unit):
        if their_unit is not None or not (isinstance(ours, Expression) and isinstance(theirs, Expression)):
            return False
        if _PERCENTS.fullmatch(theirs.latex):
            return same_value(ours, theirs)
        return has_number and same_value(_hundredth(ours), theirs)
    is_only_gold_in_percent = is_percentage(their_unit) and not is_percentage(our_unit)
    if is_only_gold_in_percent and isinstance(ours, Expression) and isinstance(theirs, Expression):
        return our_unit is None and (same_value(ours, theirs) or same_value(ours, _hundredth(theirs)))
    if our_unit == DEGREE and their_unit is None and is_in_radians(ours):
        return False
    return are_compatible(our_unit, their_unit) and same_value(ours, theirs)


def has_plain_number(statement: Statement) -> bool:
    """True if it has a value that is not in percent."""
    return not all(is_percentage(unit) for _, unit in statement.quantities)


def agree_in_percent(quantities: Sequence[Quantity]) -> bool:
    """True if percentages and other numbers of one answer are equal: `0.5 = 50\\%`, not `6 = 6\\%`."""
    percents: list[Expression] = []
    others: list[Expression] = []
    for value, unit in quantities:
        if isinstance(value, Expression) and is_percentage(unit):
            percents.append(_hundredth(value))
        elif isinstance(value, Expression):
            others.append(value)
    pairs = product(percents, others)
    return all(same_expression(ours, theirs) or same_expression(theirs, ours) for ours, theirs in pairs)


def _hundredth(value: Expression) -> Expression:
    return Expression((mark("("), *value.tokens, mark(")"), mark("/"), number("100")))


def same_value(predicted: Value, expected: Value) -> bool:
    """Compare two values. Different kinds are equal only as sets, as words, or as a ratio and a fraction."""
    # The order matters: a ratio is in brackets as well, and everything that is left may still be a set.
    match predicted, expected:
        case Expression(), Expression():
            same = same_expression(predicted, expected)
        case ((Words() | Expression()), Words()):
            same = _same_words(predicted, expected)
        case Bracketed(opening=":"), Bracketed(opening=":"):
            same = _same_ratio(predicted, expected)
        case Bracketed(), Bracketed() if _brackets(predicted) == _brackets(expected):
            same_items = same_in_any_order if expected.opening == r"\{" else same_in_order
            same = same_items(predicted.items, expected.items, same_statement)
        case Matrix(), Matrix():
            same = same_in_order(predicted.rows, expected.rows, _same_row)
        case (Bracketed(opening=r"\langle"), Matrix()) | (Matrix(), Bracketed(opening=r"\langle")):
            same = same_in_order(_column(predicted), _column(expected), same_expression)
        case Bracketed(opening=":", closing=":"), Expression():
            same = same_expression(_quotient(predicted), expected)
        case Expression(), Bracketed(opening=":"):
            same = not _is_time(expected) and same_expression(predicted, _quotient(expected))
        case Inequality(), Inequality():
            same = _same_inequalities(predicted, expected) or same_set(predicted, expected)
        case _:
            same = same_set(predicted, expected)
    return same


def _same_words(predicted: Words | Expression, expected: Words) -> bool:
    words = predicted.words if isinstance(predicted, Words) else normalised_words(predicted.tokens)
    if words == expected.words or (is_nothing(predicted) and is_nothing(expected)):
        return True
    # One word, without the spaces between the expected ones: `RugB` for `Rug B`.
    return words == ("".join(expected.words),) and all(word.isalpha() for word in expected.words)


def _same_row(ours: tuple[Expression, ...], theirs: tuple[Expression, ...]) -> bool:
    return same_in_order(ours, theirs, same_expression)


def _same_inequalities(predicted: Inequality, expected: Inequality) -> bool:
    """True if each inequality is a positive multiple of one on the other side. Infinite ones are sets."""
    members = (*predicted.members, *expected.members)
    if any(member.latex in INFINITIES for member in members):
        return False
    return same_in_any_order(positive(predicted), positive(expected), same_inequality)


def _brackets(value: Bracketed) -> tuple[str, str]:
    """The brackets around values. `\\langle 1,2\\rangle` is a tuple."""
    brackets = (value.opening, value.closing)
    return ("(", ")") if brackets == (r"\langle", r"\rangle") else brackets


def _column(value: Value) -> list[Expression]:
    """The numbers of a vector, which is a column or in angle brackets."""
    if isinstance(value, Bracketed):
        return _parts(value)
    if not isinstance(value, Matrix) or any(len(row) != 1 for row in value.rows):
        raise UnreadableError("not a column")
    return [row[0] for row in value.rows]


def _same_ratio(predicted: Bracketed, expected: Bracketed) -> bool:
    """Compare ratios, of which one may be a multiple of the other: `2:4` is `1:2`. A ratio that can be a
    time, `3:00`, equals only itself.
    """
    if len(predicted.items) != len(expected.items):
        return False
    if all(map(same_statement, predicted.items, expected.items)):
        return predicted.closing == ":" or not _is_time(expected)
    has_unit = any(any(item.units) for item in (*predicted.items, *expected.items))
    if has_unit or _is_time(expected):
        return False
    ours = [parse(part) for part in _parts(predicted)]
    theirs = [parse(part) for part in _parts(expected)]
    if not all(part.is_positive for part in (*ours, *theirs)):
        return False
    for our_part, their_part in zip(ours[1:], theirs[1:], strict=True):
        if not same_number(ours[0] * their_part, theirs[0] * our_part, may_round=False):
            return False
    return True


def _is_time(ratio: Bracketed) -> bool:
    return all(_MINUTES.fullmatch(part.latex) for part in _parts(ratio)[1:])


def _parts(values: Bracketed) -> list[Expression]:
    """The numbers in a ratio or a vector."""
    parts: list[Expression] = []
    for item in values.items:
        value = item.only_value
        if item.names or not isinstance(value, Expression):
            raise UnreadableError("a ratio or a vector of something that is not a number")
        parts.append(value)
    return parts


def _quotient(ratio: Bracketed) -> Expression:
    require(len(ratio.items) == 2, "a ratio of more than two numbers")
    tokens: list[Token] = []
    for part in _parts(ratio):
        tokens += [mark("/"), mark("("), *part.tokens, mark(")")]
    return Expression(tuple(tokens[1:]))
