"""Compare the names of two statements: `y = 5` is not `x = 5`."""

import re
from itertools import product

from lark.grading.strict.answer_tokens import Tokens, source, texts_of
from lark.grading.strict.expressions import Expression
from lark.grading.strict.notation import FUNCTIONS, GREEK
from lark.grading.strict.sets import variable_of
from lark.grading.strict.structure import Inequality, Statement, Value
from lark.grading.strict.vocabulary import word_set

_VARIABLE_NAME = re.compile(r"[A-Za-z](?: _ .*)?")
_DERIVING = FUNCTIONS | word_set(r"' + - / : ^ \frac \cdot \times \circ \sqrt")
"""Tokens that make another quantity of a name."""


def same_names(predicted: Statement, expected: Statement) -> bool:
    """True if the variables agree. Names that are not a single letter only describe."""
    ours = variables(predicted)
    theirs = variables(expected)
    for name in predicted.names:
        is_other = _is_disordered(name) or _argument(name) in theirs
        if is_other and name not in expected.names:
            return False
    for name, other in product(predicted.names, expected.names):
        if _is_derived(name, other):
            return False
    if ours and any(map(_is_symbol, expected.values)):
        return False  # `A = B` for the gold answer A
    if not ours or not theirs or ours & theirs:
        return True
    # `x_1` is a value of the gold answer's x.
    plain_letters = {name for name in theirs if len(name) == 1}
    return any(name[0] in plain_letters for name in ours)


def variables(statement: Statement) -> set[str]:
    """The variables that a statement is about, as names or as bounds: `x` or `x_{1}`."""
    names = {source(name) for name in statement.names}
    variables = {name for name in names if _VARIABLE_NAME.fullmatch(name)}
    for value in statement.values:
        if isinstance(value, Inequality):
            variables.add(variable_of(value))
    return {name.replace(" ", "") for name in variables if name and not name.startswith("\\")}


def _is_symbol(value: Value) -> bool:
    return isinstance(value, Expression) and len(value.tokens) == 1 and bool(value.letters)


def _is_derived(name: Tokens, other: Tokens) -> bool:
    """True if one of two names is made of the other: `f'(x)` or `f^{-1}(x)` of `f(x)`, `x+y` or `\\sin x` of
    `x`.
    """
    our_marks = _deriving_marks(name)
    if our_marks == _deriving_marks(other):
        return False
    ours = _symbols(name)
    if not our_marks:
        ours = ours[:1]
    return not set(_symbols(other)[:1]).isdisjoint(ours)


def _deriving_marks(name: Tokens) -> list[str]:
    return [token.text for token in name if token.text in _DERIVING]


def _symbols(name: Tokens) -> list[str]:
    """The symbols in a name, also in `dy` and `AB`, without those in words."""
    symbols: list[str] = []
    for token in name:
        if token.text in GREEK:
            symbols.append(token.text)
        elif (token.is_letter or token.is_word) and len(token.text) <= 2:
            symbols += token.text
    return symbols


def _argument(name: Tokens) -> str | None:
    """The variable of a function's value: `f(x) = 5` is not `x = 5`."""
    texts = texts_of(name)
    return texts[2] if len(texts) == 4 and texts[1::2] == ["(", ")"] else None


def _is_disordered(name: Tokens) -> bool:
    """True if coordinates are named in an unusual order: `(y,x) = (1,2)` is the point (2,1)."""
    texts = texts_of(name)
    coordinates = [token.text for token in name if token.is_letter]
    return texts[0] == "(" and "," in texts and coordinates != sorted(coordinates)
