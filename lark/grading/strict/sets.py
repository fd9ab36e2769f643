"""Answers that are sets of real numbers: intervals, solved inequalities, sets in braces, and their unions."""

import re
from itertools import pairwise

import sympy  # type: ignore[import-untyped]
from sympy import FiniteSet, Interval, S, Set

from lark.grading.strict.expressions import INFINITIES, Expression
from lark.grading.strict.mathematics import parse
from lark.grading.strict.structure import Bracketed, Inequality, SetExpression, Statement, Value, Words
from lark.grading.strict.units import DEGREE, is_percentage
from lark.grading.strict.unreadable import UnreadableError, require

_NO_SOLUTION = re.compile(
    r"(?:there (?:is|are) |(?:the )?(?:equation|system|inequality) has )?no (?:real )?solutions?"
    r"(?: exists?)?|empty set"
)
_SOLVED_VARIABLE = re.compile(r"[A-Za-z](?: _ \{ [^{}]* \}| \( [a-z] \))?|\\[a-z]+")
_NAMED_SETS = {r"\mathbb{R}": S.Reals, r"\mathbb{Z}": S.Integers, r"\emptyset": S.EmptySet}
_TURNED = {"<": ">", r"\le": r"\ge"}
"""Relations that hold with both sides exchanged."""


def same_set(predicted: Value, expected: Value) -> bool:
    for value in (predicted, expected):
        if isinstance(value, Expression) and not value.is_set:
            return False
    ours = _set(predicted)
    theirs = _set(expected)
    return bool(ours == theirs or ours.symmetric_difference(theirs).is_empty)


def _set(value: Value) -> Set:
    """The set of real numbers that a value describes."""
    match value:
        case SetExpression():
            return _combination(value)
        case Expression() if value.is_set:
            return _NAMED_SETS[value.latex]
        case Bracketed(opening=r"\{", closing=r"\}"):
            return FiniteSet(*map(_number, value.items))
        case Bracketed(items=(start, end)) if value.opening in "([" and value.closing in ")]":
            return _interval(_number(start), _number(end), value.opening == "(", value.closing == ")")
        case Inequality():
            return _solution(value)
        case Words() if is_nothing(value):
            return S.EmptySet
    raise UnreadableError("not a set of numbers")


def _combination(expression: SetExpression) -> Set:
    result = _set(expression.first)
    for operator, value in expression.rest:
        other = _set(value)
        if operator == r"\cup":
            result |= other
        elif operator == r"\cap":
            result &= other
        else:
            result -= other
    return result


def _number(statement: Statement) -> sympy.Expr:
    """The number that an item of a set or an end of an interval is."""
    value = statement.only_value
    if statement.names or not isinstance(value, Expression):
        raise UnreadableError("not a number")
    for unit in statement.units:
        changes_number = is_percentage(unit) or (unit == DEGREE and is_in_radians(value))
        require(not changes_number, "a unit that changes the number")
    return _real(value)


def _real(value: Expression) -> sympy.Expr:
    if value.latex in INFINITIES:
        return sympy.oo * INFINITIES[value.latex]
    number = parse(value)
    require(number.is_number and number.is_real and number.is_finite, "not a real number")
    return number.doit()


def _interval(start: sympy.Expr, end: sympy.Expr, left_open: bool, right_open: bool) -> Set:
    require(start < end, "an interval without numbers")
    return Interval(start, end, left_open, right_open)


def variable_of(inequality: Inequality) -> str:
    """The variable that an inequality is solved for; empty if it is not solved."""
    names = [member.latex for member in inequality.members if member.letters]
    is_solved = len(names) == 1 and _SOLVED_VARIABLE.fullmatch(names[0])
    return names[0] if is_solved else ""


def _solution(inequality: Inequality) -> Set:
    variable = variable_of(inequality)
    require(variable, "an inequality that is not solved for a variable")
    solution: Set = S.Reals
    for (left, right), relation in zip(pairwise(inequality.members), inequality.relations, strict=True):
        require(variable in {left.latex, right.latex}, "an inequality between two numbers")
        number = _real(left if right.latex == variable else right)
        is_below = (relation in {"<", r"\le"}) == (left.latex == variable)
        is_open = relation in {"<", ">"}
        if relation == r"\ne":
            solution -= FiniteSet(number)
        elif is_below:
            solution &= _interval(-sympy.oo, number, True, is_open)
        else:
            solution &= _interval(number, sympy.oo, is_open, True)
    return solution


def positive(inequality: Inequality) -> list[tuple[sympy.Expr, str]]:
    """Each comparison as a difference that is positive (`>`), not negative (`\\ge`) or not zero (`\\ne`)."""
    differences: list[tuple[sympy.Expr, str]] = []
    for (left, right), relation in zip(pairwise(inequality.members), inequality.relations, strict=True):
        if relation in _TURNED:
            differences.append((parse(right) - parse(left), _TURNED[relation]))
        else:
            differences.append((parse(left) - parse(right), relation))
    return differences


def is_in_radians(value: Value) -> bool:
    members = value.members if isinstance(value, Inequality) else (value,)
    return any(isinstance(member, Expression) and r"\pi" in member.latex for member in members)


def is_nothing(value: Value) -> bool:
    """True for the empty set, also in words: `\\text{no solution}`."""
    if isinstance(value, Words):
        return _NO_SOLUTION.fullmatch(" ".join(value.words)) is not None
    return isinstance(value, Expression) and value.latex == r"\emptyset"
