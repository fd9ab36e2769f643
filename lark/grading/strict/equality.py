"""Decide whether an answer is right: both answers are read into their structure, and the structures are
compared.

A box is right if everything in it agrees with the gold answer: every member of a chain of equalities, every
item of a list (as often as in the gold answer), every unit and name. An answer that cannot be read is right
only if it has the gold answer's tokens.
"""

import re
from dataclasses import dataclass, replace

import sympy  # type: ignore[import-untyped]

from lark.grading.strict.answer_tokens import TokenKind, Tokens, letters, mark, source, texts_of
from lark.grading.strict.bare_words import (
    has_factor_behind,
    is_one_letter,
    is_prose_of,
    with_words,
    without_period,
)
from lark.grading.strict.expressions import Expression
from lark.grading.strict.lexer import tokenize
from lark.grading.strict.matching import same_in_any_order, same_in_order
from lark.grading.strict.parser import combined_sets, read_answer
from lark.grading.strict.sets import variable_of
from lark.grading.strict.statements import agree_in_percent, has_plain_number, same_statement
from lark.grading.strict.structure import (
    Answer,
    Bracketed,
    Inequality,
    Quantity,
    Statement,
    Words,
    value_letters,
)
from lark.grading.strict.variables import variables

_COLLECTIONS = {(r"\{", r"\}"): "set", ("(", ")"): "tuple", (r"\langle", r"\rangle"): "tuple"}
_LETTER_NAME = re.compile("[A-Za-z]")
_UPPER_SIGNS = {r"\pm": mark("+"), r"\mp": mark("-")}
_LOWER_SIGNS = {r"\pm": mark("-"), r"\mp": mark("+")}


class _Everything:
    """A container of everything: all bare letters and all commands of a gold answer are symbols."""

    def __contains__(self, item: object) -> bool:
        return True


def compare(prediction: str, gold: str) -> bool:
    """True if the prediction is right. An answer that cannot be read, or that makes sympy raise, is wrong."""
    sympy.core.random.seed(0)  # sympy tests random points: use the same ones for the same pair
    try:
        return _is_right(prediction, gold)
    # The parser and sympy raise errors of many kinds on texts that nobody foresaw.
    except Exception:
        return False


def _is_right(prediction: str, gold: str) -> bool:
    expected = tuple(tokenize(with_words(gold), _Everything()))
    commands = {token.text for token in expected if token.kind is TokenKind.COMMAND}
    predicted = tuple(tokenize(prediction, letters(expected) | commands))
    # Equal tokens need no reading: a gold answer that cannot be read can be answered all the same.
    if without_period(predicted) == without_period(expected) or is_prose_of(predicted, gold):
        return True
    if is_one_letter(expected) and expected[0].text not in texts_of(predicted):
        return False  # not `a` for the letter A; for the option (A) it is right
    if has_factor_behind(predicted) and not has_factor_behind(expected):
        return False
    # The gold answer first: its letters decide which letters of the prediction are values.
    gold_answer = read_answer(expected, frozenset(), is_gold=True)
    symbols = value_letters(*gold_answer.statements)
    return same_answer(read_answer(predicted, symbols), gold_answer)


@dataclass(frozen=True)
class _Collection:
    """The items of an answer."""

    kind: str
    """`one`, `list`, `set` or `tuple`."""
    items: list[Statement]
    """With `\\pm` as two items."""
    statements: list[Statement]
    """As in the answer: a set or a tuple is one statement."""


def same_answer(predicted: Answer, expected: Answer) -> bool:
    """Compare lists, sets and tuples item by item: in order in parentheses, otherwise in any order."""
    ours = _collection(predicted)
    theirs = _collection(expected)
    kinds = {ours.kind, theirs.kind}
    if kinds == {"set", "tuple"}:
        return _same_only_item(ours, theirs)
    if kinds == {"one", "set"} and _same_singleton(ours.items, theirs.items):
        return True
    if kinds <= {"one", "tuple"} or kinds == {"one", "set"}:
        return same_statement(ours.statements[0], theirs.statements[0])
    if kinds == {"tuple", "list"}:
        our_items = _by_coordinate(ours.items)
        their_items = _by_coordinate(theirs.items)
        return not predicted.is_alternative and same_in_order(our_items, their_items, same_statement)
    if theirs.kind == "one" and predicted.is_alternative:
        return _all_say(ours.items, theirs.statements[0])
    may_be_same = predicted.is_alternative == expected.is_alternative or _are_solutions(predicted)
    is_sequence = theirs.kind == "list" and _is_sequence(expected)
    same_items = same_in_order if is_sequence else same_in_any_order
    return may_be_same and same_items(ours.items, theirs.items, same_statement)


def _collection(answer: Answer) -> _Collection:
    statements = _joined(answer)
    kind = "one" if len(statements) == 1 else "list"
    items = statements
    if kind == "one" and not statements[0].rounded:
        value = statements[0].only_value
        if isinstance(value, Bracketed) and (value.opening, value.closing) in _COLLECTIONS:
            kind = _COLLECTIONS[value.opening, value.closing]
            items = list(value.items)
    expanded = [signed for statement in items for signed in _signs(statement)]
    if kind == "one" and len(expanded) > 1:
        kind = "list"
    return _Collection(kind, expanded, statements)


def _same_only_item(ours: _Collection, theirs: _Collection) -> bool:
    """Compare a set with a tuple: `\\{(1,2)\\}` has the point (1,2) as its only solution."""
    our_side = ours.items if ours.kind == "set" else ours.statements
    their_side = theirs.items if theirs.kind == "set" else theirs.statements
    return len(our_side) == len(their_side) == 1 and same_statement(our_side[0], their_side[0])


def _all_say(items: list[Statement], expected: Statement) -> bool:
    """True if all alternatives are one answer in several notations: `1\\frac{1}{2} or 1.5`."""
    quantities: list[Quantity] = []
    for item in items:
        quantities += item.quantities
    if not agree_in_percent(quantities):
        return False
    has_number = any(map(has_plain_number, items))
    for item in items:
        if not same_statement(item, expected, has_number) or not same_statement(items[0], item, has_number):
            return False
    return True


def _is_sequence(answer: Answer) -> bool:
    """True if the order of a bare list counts: it has words without names, and neither `and` nor `or`, like
    words that are sorted. Numbers are solutions, which have no order.
    """
    if {"and", "or"} & answer.joints:
        return False
    for statement in answer.statements:
        if not statement.names and any(isinstance(value, Words) for value in statement.values):
            return True
    return False


def _are_solutions(answer: Answer) -> bool:
    """True if the statements can be solutions for one variable, which people join by `and` and by `or`.

    Words and values of different variables are not: `Tom or Bob` is not `Tom and Bob`.
    """
    solved_for: set[str] = set()
    for statement in answer.statements:
        # By the first letters of the names: `x_1` and `x_2` are solutions for x.
        initials = {name[0] for name in variables(statement)}
        if initials:
            solved_for.add("".join(sorted(initials)))
    return len(solved_for) < 2 and not any(isinstance(value, Words) for value in answer.values)


def _same_singleton(ours: list[Statement], theirs: list[Statement]) -> bool:
    """True if one side is a set of a single number, and the other side that number."""
    for item in (*ours, *theirs):
        for value in item.values:
            if not isinstance(value, Expression) or value.is_set:
                return False
    return len(ours) == len(theirs) == 1 and same_statement(ours[0], theirs[0])


def _by_coordinate(items: list[Statement]) -> list[Statement]:
    """Coordinates in the order of their names: `y=1, x=2` is the point (2,1)."""
    if all(_LETTER_NAME.fullmatch(_only_name(item)) for item in items):
        return sorted(items, key=_only_name)
    return items


def _only_name(statement: Statement) -> str:
    return source(statement.names[0]) if len(statement.names) == 1 else ""


def _joined(answer: Answer) -> list[Statement]:
    """The statements of an answer. Inequalities for one variable that are joined by `or` are one set, their
    union; by `and`, their intersection.
    """
    operator = {frozenset({"or"}): r"\cup", frozenset({"and"}): r"\cap"}.get(answer.joints)
    inequalities: list[Inequality] = []
    for statement in answer.statements:
        value = statement.only_value
        if isinstance(value, Inequality):
            inequalities.append(value)
    is_complete = len(inequalities) == len(answer.statements)
    if operator is None or not is_complete or len(set(map(variable_of, inequalities))) > 1:
        return list(answer.statements)
    return [Statement((), ((combined_sets(inequalities, operator), None),))]


def _signs(statement: Statement) -> list[Statement]:
    """The statement with the upper and with the lower signs of `\\pm` and `\\mp`, if it has any."""
    value = statement.only_value
    if not isinstance(value, Expression) or _UPPER_SIGNS.keys().isdisjoint(texts_of(value.tokens)):
        return [statement]
    unit = statement.units[0]
    variants: list[Statement] = []
    for signs in (_UPPER_SIGNS, _LOWER_SIGNS):
        tokens: Tokens = tuple(signs.get(token.text, token) for token in value.tokens)
        variants.append(replace(statement, quantities=((Expression(tokens), unit),)))
    return variants
