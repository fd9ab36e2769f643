"""Decide whether an answer is right: both answers are read into their structure, and the structures are
compared.

A box is right if everything in it agrees with the gold answer: every member of a chain of equalities, every
item of a list (as often as in the gold answer), every unit and name. An answer that cannot be read is right
only if it has the gold answer's tokens.
"""

import re
from collections.abc import Callable, Sequence
from itertools import combinations, product, starmap
from typing import TypeVar

import sympy  # type: ignore[import-untyped]

from lark.grading.strict import labels
from lark.grading.strict.bare_words import (
    has_factor_behind,
    is_one_letter,
    is_prose_of,
    with_words,
    without_period,
)
from lark.grading.strict.expressions import INFINITIES, Expression, Tokens, letters, source
from lark.grading.strict.lexer import FUNCTIONS, GREEK, Kind, Token, UnreadableError, tokenize
from lark.grading.strict.mathematics import (
    is_rounding,
    parse,
    same_equation,
    same_expression,
    same_inequality,
    same_number,
)
from lark.grading.strict.sets import is_in_radians, is_nothing, is_percentage, positive, same_set, variable_of
from lark.grading.strict.structure import (
    Answer,
    Group,
    Inequality,
    Matrix,
    SetExpression,
    Statement,
    Value,
    Words,
    flat_words,
    read_answer,
)

T = TypeVar("T")
_COLLECTIONS = {(r"\{", r"\}"): "set", ("(", ")"): "tuple", (r"\langle", r"\rangle"): "tuple"}


class _Everything:
    """A container of everything: all bare letters of a gold answer are symbols, and all its commands are
    known.
    """

    def __contains__(self, item: object) -> bool:
        return True


def compare(prediction: str, gold: str) -> bool:
    """Whether the prediction is right. An answer that cannot be read, or that makes sympy raise, is wrong."""
    sympy.core.random.seed(0)  # sympy tests random points: use the same ones for the same pair
    try:
        expected = tuple(tokenize(with_words(gold), _Everything()))
        symbols = letters(expected) | {token.text for token in expected if token.kind is Kind.COMMAND}
        predicted = tuple(tokenize(prediction, symbols))
        if without_period(predicted) == without_period(expected) or is_prose_of(predicted, gold):
            return True
        if is_one_letter(expected) and expected[0] not in (
            Token(Kind.WORD, token.text) for token in predicted
        ):
            return False  # not `a` for the letter A; for the option (A) it is right
        if has_factor_behind(predicted) and not has_factor_behind(expected):
            return False
        right = read_answer(expected, frozenset(), is_gold=True)
        symbols = frozenset().union(*(_value_letters(statement) for statement in right.statements))
        return same_answer(read_answer(predicted, symbols), right)
    except Exception:
        return False


def _value_letters(statement: Statement) -> frozenset[str]:
    return frozenset[str]().union(*map(_letters, statement.values))


def _letters(value: Value) -> frozenset[str]:
    match value:
        case Expression():
            return value.letters
        case Group():
            return frozenset[str]().union(*map(_value_letters, value.items))
        case Matrix():
            return frozenset[str]().union(*(cell.letters for row in value.rows for cell in row))
        case _:
            return frozenset()


def same_answer(predicted: Answer, expected: Answer) -> bool:
    """Compare lists, sets and tuples item by item; without brackets or in braces in any order, in
    parentheses in order.
    """
    ours, theirs = _joined(predicted), _joined(expected)
    (our_kind, our_items), (their_kind, their_items) = _items(ours), _items(theirs)
    kinds = {our_kind, their_kind}
    if kinds == {"set", "tuple"}:  # `\\{(1,2)\\}` has the point (1,2) as its only solution
        sides = (our_items, theirs) if our_kind == "set" else (ours, their_items)
        return all(len(side) == 1 for side in sides) and same_statement(sides[0][0], sides[1][0])
    if kinds <= {"one", "tuple"}:
        return same_statement(ours[0], theirs[0])
    if kinds == {"tuple", "list"}:
        return "or" not in predicted.joints and _all_same(
            _in_order(our_items), _in_order(their_items), same_statement
        )
    if kinds == {"one", "set"}:
        return _same_singleton(our_items, their_items) or same_statement(ours[0], theirs[0])
    if their_kind == "one" and "or" in predicted.joints:  # `1\\frac{1}{2} or 1.5` says one thing
        first = our_items[0]
        agree = _agree_in_percent([quantity for item in our_items for quantity in item.quantities])
        has_number = any(map(_has_number, our_items))
        pairs = [(ours, gold) for item in our_items for ours, gold in ((item, theirs[0]), (first, item))]
        return agree and all(same_statement(ours, gold, has_number) for ours, gold in pairs)
    are_joined_alike = len({"or" in answer.joints for answer in (predicted, expected)}) == 1
    is_in_order = their_kind == "list" and _is_sequence(expected)
    same_items = _all_same if is_in_order else _match
    return (are_joined_alike or _are_solutions(predicted)) and same_items(
        our_items, their_items, same_statement
    )


def _is_sequence(answer: Answer) -> bool:
    """Whether the order of a bare list counts: it has words without names, and neither `and` nor `or`, like
    words that are sorted. Numbers are solutions, which have no order.
    """
    unnamed = [statement for statement in answer.statements if not statement.names]
    has_words = any(isinstance(value, Words) for statement in unnamed for value in statement.values)
    return has_words and not {"and", "or"} & answer.joints


def _are_solutions(answer: Answer) -> bool:
    """Whether the statements can be solutions for one variable, which people join by `and` and by `or`.
    Words and values of different variables are not: `Tom or Bob` is not `Tom and Bob`.
    """
    names = {_single(_variables(statement)) for statement in answer.statements}
    values = [value for statement in answer.statements for value in statement.values]
    return len(names - {""}) < 2 and not any(isinstance(value, Words) for value in values)


def _single(names: set[str]) -> str:
    """The first letters of the names: `x_1` and `x_2` are solutions for x."""
    return "".join(sorted({name[0] for name in names}))


def _same_singleton(ours: list[Statement], theirs: list[Statement]) -> bool:
    """Whether one side is a set of a single number, and the other side that number."""
    values = [value for item in (*ours, *theirs) for value in item.values]
    are_numbers = all(isinstance(value, Expression) and not value.is_set for value in values)
    return are_numbers and len(ours) == len(theirs) == 1 and same_statement(ours[0], theirs[0])


def _items(statements: list[Statement]) -> tuple[str, list[Statement]]:
    """The kind of a collection (`one`, `list`, `set` or `tuple`), and its items, with `\\pm` as two items."""
    kind = "one" if len(statements) == 1 else "list"
    if kind == "one" and not statements[0].rounded and len(statements[0].values) == 1:
        (value,) = statements[0].values
        if isinstance(value, Group) and (value.opening, value.closing) in _COLLECTIONS:
            kind, statements = _COLLECTIONS[value.opening, value.closing], list(value.items)
    expanded = [signed for statement in statements for signed in _signs(statement)]
    return "list" if kind == "one" and len(expanded) > 1 else kind, expanded


def _in_order(items: list[Statement]) -> list[Statement]:
    """Coordinates in the order of their names: `y=1, x=2` is the point (2,1)."""
    names = [source(item.names[0]) if len(item.names) == 1 else "" for item in items]
    if not all(re.fullmatch("[A-Za-z]", name) for name in names):
        return items
    return [item for _, item in sorted(zip(names, items, strict=True), key=lambda pair: pair[0])]


def _joined(answer: Answer) -> list[Statement]:
    """Inequalities for one variable that are joined by `or` are one set, the union; by `and`, the
    intersection.
    """
    values = [statement.values[0] for statement in answer.statements if len(statement.values) == 1]
    variables = [variable_of(value) for value in values if isinstance(value, Inequality)]
    operator = {frozenset({"or"}): r"\cup", frozenset({"and"}): r"\cap"}.get(answer.joints)
    if operator is None or len(variables) < len(answer.statements) or len(set(variables)) > 1:
        return list(answer.statements)
    return [
        Statement(
            (), (SetExpression(values[0], tuple((operator, value) for value in values[1:])),), units=(None,)
        )
    ]


def _signs(statement: Statement) -> list[Statement]:
    """The statement with the upper and with the lower signs of `\\pm` and `\\mp`, if it has any."""
    if len(statement.values) != 1 or not isinstance(value := statement.values[0], Expression):
        return [statement]
    if not {r"\pm", r"\mp"} & {token.text for token in value.tokens}:
        return [statement]
    signs = ({r"\pm": "+", r"\mp": "-"}, {r"\pm": "-", r"\mp": "+"})
    variants = (
        tuple(Token(Kind.MARK, sign.get(t.text, t.text)) if t.text in sign else t for t in value.tokens)
        for sign in signs
    )
    return [Statement(statement.names, (Expression(tokens),), units=statement.units) for tokens in variants]


def _match(ours: Sequence[T], theirs: Sequence[T], same: Callable[[T, T], bool]) -> bool:
    """Whether the items are the same in some order, each as often as on the other side."""
    left = list(theirs)
    for item in ours:
        found = next((i for i, other in enumerate(left) if same(item, other)), None)
        if found is None:
            return False
        del left[found]
    return not left


def _all_same(ours: Sequence[T], theirs: Sequence[T], same: Callable[[T, T], bool]) -> bool:
    """Whether the items are the same in this order."""
    return len(ours) == len(theirs) and all(map(same, ours, theirs))


def same_statement(predicted: Statement, expected: Statement, has_number: bool = False) -> bool:
    """Every value must equal the expected one. Equations that are not solved for a name are compared as
    equations.

    `has_number`: another statement of the answer has the value without a percent sign.
    """
    if not _same_names(predicted, expected) or not all(
        starmap(labels.are_compatible, combinations(predicted.units, 2))
    ):
        return False
    if len(expected.values) == 1:
        (gold,) = expected.quantities
        has_number = has_number or _has_number(predicted)
        are_same = predicted.values and all(
            _same_quantity(ours, gold, has_number) for ours in predicted.quantities
        )
        if are_same and _agree_in_percent(predicted.quantities):
            first = predicted.quantities[0]
            rounded = zip(predicted.rounded, predicted.units[len(predicted.values) :], strict=True)
            return all(unit in {first[1], None} and _is_rounded(ours, first[0]) for ours, unit in rounded)
        if not predicted.values:  # only `\\approx`, which is enough if the gold answer is rounded as well
            is_decimal = isinstance(gold[0], Expression) and gold[0].is_decimal
            return is_decimal and all(
                _same_quantity(ours, gold) for ours in zip(predicted.rounded, predicted.units, strict=True)
            )
    if not all(labels.are_compatible(ours, theirs) for ours in predicted.units for theirs in expected.units):
        return False
    is_equation = len(expected.values) == 2 or bool(expected.names and _value_letters(expected))
    return (
        is_equation
        and bool(predicted.members and expected.members)
        and same_equation(predicted.members, expected.members)
    )


_PERCENTS = re.compile(r"(?:- )?(?!1\b)[0-9]+(?:\.0*)?|(?:- )?(?![01]\.)[0-9]+\.[0-9]+")
"""Numbers that may be meant in percent: whole ones other than 1, and decimals from 2."""


def _same_quantity(
    predicted: tuple[Value, labels.Unit | None],
    expected: tuple[Value, labels.Unit | None],
    has_number: bool = False,
) -> bool:
    """Compare values with units.

    A gold answer that is a whole number other than 1 and -1, or a decimal from 2, may be a number of
    percent. For any other one a percentage is a number of hundredths, and it is right only next to the
    number itself (`has_number`): `0.33 = 33\\%`. Otherwise `33\\%` would be right for both 33 and 0.33. A
    gold answer in percent may be answered without the sign.
    """
    (ours, our_unit), (theirs, their_unit) = predicted, expected
    are_percent = is_percentage(our_unit), is_percentage(their_unit)
    if are_percent == (True, False):
        if their_unit is not None or not (isinstance(ours, Expression) and isinstance(theirs, Expression)):
            return False
        if _PERCENTS.fullmatch(theirs.latex):
            return same_value(ours, theirs)
        return has_number and same_value(_hundredth(ours), theirs)
    if are_percent == (False, True) and isinstance(ours, Expression) and isinstance(theirs, Expression):
        return our_unit is None and (same_value(ours, theirs) or same_value(ours, _hundredth(theirs)))
    if our_unit == labels.DEGREE and their_unit is None and is_in_radians(ours):
        return False
    return labels.are_compatible(our_unit, their_unit) and same_value(ours, theirs)


def _has_number(statement: Statement) -> bool:
    """Whether it has a value that is not in percent."""
    return not all(is_percentage(unit) for _, unit in statement.quantities)


def _agree_in_percent(quantities: Sequence[tuple[Value, labels.Unit | None]]) -> bool:
    """Whether percentages and other numbers of one answer are equal: `0.5 = 50\\%`, not `6 = 6\\%`."""
    numbers = [(value, is_percentage(unit)) for value, unit in quantities if isinstance(value, Expression)]
    percents, others = (
        [value for value, is_percent in numbers if is_percent is wanted] for wanted in (True, False)
    )
    pairs = product(map(_hundredth, percents), others)
    return all(same_expression(ours, theirs) or same_expression(theirs, ours) for ours, theirs in pairs)


def _hundredth(value: Expression) -> Expression:
    tokens = (
        Token(Kind.MARK, "("),
        *value.tokens,
        Token(Kind.MARK, ")"),
        Token(Kind.MARK, "/"),
        Token(Kind.NUMBER, "100"),
    )
    return Expression(tokens)


def _is_rounded(rounded: Expression, value: Value) -> bool:
    return isinstance(value, Expression) and is_rounding(rounded, value)


def _same_names(predicted: Statement, expected: Statement) -> bool:
    """Whether the variables agree: `y = 5` is not `x = 5`. Names that are not a single letter only
    describe.
    """
    ours, theirs = _variables(predicted), _variables(expected)
    if any(
        (_is_disordered(name) or _argument(name) in theirs) and name not in expected.names
        for name in predicted.names
    ):
        return False
    if any(starmap(_is_derived, product(predicted.names, expected.names))):
        return False
    if ours and any(
        isinstance(value, Expression) and len(value.tokens) == 1 and value.letters
        for value in expected.values
    ):
        return False  # `A = B` for the gold answer A
    return (
        not ours
        or not theirs
        or bool(ours & theirs)
        or bool({n[0] for n in ours} & {n[0] for n in theirs if len(n) == 1})
    )


_DERIVING = (
    frozenset({"'", "+", "-", "/", ":", "^", r"\frac", r"\cdot", r"\times", r"\circ", r"\sqrt"}) | FUNCTIONS
)


def _is_derived(name: Tokens, other: Tokens) -> bool:
    """Whether one of two names is made of the other: `f'(x)` or `f^{-1}(x)` of `f(x)`, `x+y` or `\\sin x`
    of `x`.
    """
    ours, theirs = _symbols(name), _symbols(other)
    our_marks, their_marks = (
        [token.text for token in tokens if token.text in _DERIVING] for tokens in (name, other)
    )
    return our_marks != their_marks and bool(set(theirs[:1]) & set(ours if our_marks else ours[:1]))


def _symbols(name: Tokens) -> list[str]:
    """The symbols in a name, also in `dy` and `AB`, without those in words."""
    texts = (
        token.text
        for token in name
        if (token.kind in {Kind.LETTER, Kind.WORD} and len(token.text) <= 2) or token.text in GREEK
    )
    return [symbol for text in texts for symbol in ([text] if text in GREEK else text)]


def _variables(statement: Statement) -> set[str]:
    names = {source(name) for name in statement.names}
    found = {name for name in names if re.fullmatch(r"[A-Za-z](?: _ .*)?", name)}
    bounded = {variable_of(value) for value in statement.values if isinstance(value, Inequality)}
    return {name.replace(" ", "") for name in found | bounded if name and not name.startswith("\\")}


def _argument(name: Tokens) -> str | None:
    """The variable of a function's value: `f(x) = 5` is not `x = 5`."""
    texts = [token.text for token in name]
    return texts[2] if len(texts) == 4 and texts[1::2] == ["(", ")"] else None


def _is_disordered(name: Tokens) -> bool:
    """Whether coordinates are named in an unusual order: `(y,x) = (1,2)` is the point (2,1)."""
    found = [token.text for token in name if token.kind is Kind.LETTER]
    is_tuple = name[0].text == "(" and "," in {token.text for token in name}
    return is_tuple and found != sorted(found) and all(len(text) == 1 for text in found)


def same_value(predicted: Value, expected: Value) -> bool:
    """Compare two values. Different kinds are equal only as sets, as words, or as a ratio and a fraction."""
    match predicted, expected:
        case Expression(), Expression():
            same = same_expression(predicted, expected)
        case ((Words() | Expression()), Words()):
            words = predicted.words if isinstance(predicted, Words) else flat_words(predicted.tokens)
            same = words == expected.words or _are_joined_words(words, expected.words)
            same = same or (is_nothing(predicted) and is_nothing(expected))
        case Group(opening=":"), Group(opening=":"):
            same = _same_ratio(predicted, expected)
        case Group(), Group() if _brackets(predicted) == _brackets(expected):
            same = (_match if expected.opening == r"\{" else _all_same)(
                predicted.items, expected.items, same_statement
            )
        case Matrix(), Matrix():
            same = _all_same(
                predicted.rows, expected.rows, lambda ours, theirs: _all_same(ours, theirs, same_expression)
            )

        case (Group(opening=r"\langle"), Matrix()) | (Matrix(), Group(opening=r"\langle")):
            same = _all_same(_column(predicted), _column(expected), same_expression)
        case Group(opening=":", closing=":"), Expression():
            same = same_expression(_quotient(predicted), expected)
        case Expression(), Group(opening=":"):
            same = not _is_time(expected) and same_expression(predicted, _quotient(expected))
        case Inequality(), Inequality():
            is_bounded = not INFINITIES.keys() & {
                member.latex for member in (*predicted.members, *expected.members)
            }
            same = is_bounded and _match(positive(predicted), positive(expected), same_inequality)
            same = same or same_set(predicted, expected)
        case _:
            same = same_set(predicted, expected)
    return same


def _are_joined_words(words: tuple[str, ...], expected: tuple[str, ...]) -> bool:
    """Whether it is one word, and the expected words without the spaces between them: `RugB` for `Rug B`."""
    return words == ("".join(expected),) and all(word.isalpha() for word in expected)


def _brackets(group: Group) -> tuple[str, str]:
    """The brackets around a group. `\\langle 1,2\\rangle` is a tuple."""
    brackets = group.opening, group.closing
    return ("(", ")") if brackets == (r"\langle", r"\rangle") else brackets


def _column(value: Value) -> list[Expression]:
    """The numbers of a vector, which is a column or a group."""
    if isinstance(value, Group):
        return _parts(value)
    if not isinstance(value, Matrix) or any(len(row) != 1 for row in value.rows):
        raise UnreadableError("not a column")
    return [row[0] for row in value.rows]


_MINUTES = re.compile(r"[0-5][0-9]")


def _same_ratio(predicted: Group, expected: Group) -> bool:
    """Compare ratios, of which one may be a multiple of the other: `2:4` is `1:2`. A ratio that can be a
    time, `3:00`, equals only itself.
    """
    if len(predicted.items) != len(expected.items):
        return False
    if all(map(same_statement, predicted.items, expected.items)):
        return predicted.closing == ":" or not _is_time(expected)
    if _is_time(expected) or any(unit for item in (*predicted.items, *expected.items) for unit in item.units):
        return False
    pairs = [
        (parse(ours), parse(theirs)) for ours, theirs in zip(_parts(predicted), _parts(expected), strict=True)
    ]
    first, *others = pairs
    if not all(part.is_positive for pair in pairs for part in pair):
        return False
    return all(same_number(first[0] * theirs, first[1] * ours, may_round=False) for ours, theirs in others)


def _is_time(ratio: Group) -> bool:
    return all(_MINUTES.fullmatch(part.latex) for part in _parts(ratio)[1:])


def _parts(group: Group) -> list[Expression]:
    parts = [item.values[0] for item in group.items if len(item.values) == 1 and not item.names]
    found = [part for part in parts if isinstance(part, Expression)]
    if len(found) < len(group.items):
        raise UnreadableError("a ratio or a vector of something that is not a number")
    return found


def _quotient(ratio: Group) -> Expression:
    if len(ratio.items) != 2:
        raise UnreadableError("a ratio of more than two numbers")
    tokens: list[Token] = []
    for part in _parts(ratio):
        tokens += [Token(Kind.MARK, "/"), Token(Kind.MARK, "("), *part.tokens, Token(Kind.MARK, ")")]
    return Expression(tuple(tokens[1:]))
