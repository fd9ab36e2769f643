"""Answers that are sets of real numbers: intervals, solved inequalities, sets in braces, and their unions."""

import re
from itertools import pairwise

import sympy  # type: ignore[import-untyped]
from sympy import FiniteSet, Interval, S, Set

from lark.grading.strict import labels
from lark.grading.strict.expressions import INFINITIES, Expression
from lark.grading.strict.lexer import UnreadableError
from lark.grading.strict.mathematics import parse
from lark.grading.strict.structure import Group, Inequality, SetExpression, Statement, Value, Words

_NOTHING = re.compile(
    r"(?:there (?:is|are) |(?:the )?(?:equation|system|inequality) has )?no (?:real )?solutions?(?:"
    r" exists?)?|empty set"
)


def same_set(predicted: Value, expected: Value) -> bool:
    if (isinstance(predicted, Expression) and not predicted.is_set) or (
        isinstance(expected, Expression) and not expected.is_set
    ):
        return False
    ours, theirs = _set(predicted), _set(expected)
    return bool(ours == theirs or ours.symmetric_difference(theirs).is_empty)


def _set(value: Value) -> Set:
    """The set of real numbers that a value describes."""
    match value:
        case SetExpression():
            found = _set(value.first)
            for operator, other in value.rest:
                right = _set(other)
                found = (
                    found | right
                    if operator == r"\cup"
                    else found & right
                    if operator == r"\cap"
                    else found - right
                )
            return found
        case Expression() if value.is_set:
            return {r"\mathbb{R}": S.Reals, r"\mathbb{Z}": S.Integers, r"\emptyset": S.EmptySet}[value.latex]
        case Group(opening=r"\{", closing=r"\}"):
            return FiniteSet(*(_end(item) for item in value.items))
        case Group(items=(start, end)) if value.opening in "([" and value.closing in ")]":
            return _interval(_end(start), _end(end), value.opening == "(", value.closing == ")")
        case Inequality():
            return _solution(value)
        case Words() if is_nothing(value):
            return S.EmptySet
    raise UnreadableError("not a set of numbers")


def _end(statement: Statement) -> sympy.Expr:
    if (
        statement.names
        or len(statement.values) != 1
        or not isinstance(value := statement.values[0], Expression)
    ):
        raise UnreadableError("not a number")
    if any(
        is_percentage(unit) or (unit == labels.DEGREE and is_in_radians(value)) for unit in statement.units
    ):
        raise UnreadableError("a unit that changes the number")
    return _real(value)


def _real(value: Expression) -> sympy.Expr:
    if value.latex in INFINITIES:
        return sympy.oo * INFINITIES[value.latex]
    number = parse(value)
    if not (number.is_number and number.is_real and number.is_finite):
        raise UnreadableError("not a real number")
    return number.doit()


def _interval(start: sympy.Expr, end: sympy.Expr, left_open: bool, right_open: bool) -> Set:
    if not start < end:
        raise UnreadableError("an interval without numbers")
    return Interval(start, end, left_open, right_open)


def variable_of(inequality: Inequality) -> str:
    """The variable that an inequality is solved for; empty if it is not solved."""
    names = [member.latex for member in inequality.members if member.letters]
    return (
        names[0]
        if len(names) == 1 and re.fullmatch(r"[A-Za-z](?: _ \{ [^{}]* \}| \( [a-z] \))?|\\[a-z]+", names[0])
        else ""
    )


def _solution(inequality: Inequality) -> Set:
    if not (variable := variable_of(inequality)):
        raise UnreadableError("an inequality that is not solved for a variable")
    found: Set = S.Reals
    for (left, right), relation in zip(pairwise(inequality.members), inequality.relations, strict=True):
        if variable not in {left.latex, right.latex}:
            raise UnreadableError("an inequality between two numbers")
        number = _real(left if right.latex == variable else right)
        is_below = (relation in {"<", r"\le"}) == (left.latex == variable)
        if relation == r"\ne":
            found -= FiniteSet(number)
        else:
            is_open = relation in {"<", ">"}
            found &= (
                _interval(-sympy.oo, number, True, is_open)
                if is_below
                else _interval(number, sympy.oo, is_open, True)
            )
    return found


def positive(inequality: Inequality) -> list[tuple[sympy.Expr, str]]:
    """Each comparison as a difference that is positive (`>`), not negative (`\\ge`) or not zero (`\\ne`)."""
    found = []
    for (left, right), relation in zip(pairwise(inequality.members), inequality.relations, strict=True):
        if left.latex in INFINITIES or right.latex in INFINITIES:
            raise UnreadableError("an infinite bound")
        larger, smaller = (right, left) if relation in {"<", r"\le"} else (left, right)
        sign = {"<": ">", r"\le": r"\ge"}.get(relation, relation)
        found.append((parse(larger) - parse(smaller), sign))
    return found


def is_in_radians(value: Value) -> bool:
    members = value.members if isinstance(value, Inequality) else (value,)
    return any(isinstance(member, Expression) and r"\pi" in member.latex for member in members)


def is_percentage(unit: labels.Unit | None) -> bool:
    return unit is not None and "percent" in dict(unit)


def is_nothing(value: Value) -> bool:
    """Whether it is the empty set, also in words: `\\text{no solution}`."""
    if isinstance(value, Words):
        return _NOTHING.fullmatch(" ".join(value.words)) is not None
    return isinstance(value, Expression) and value.latex == r"\emptyset"
