"""Sides of equations that only name the quantity: `x_1`, `f(2)`, `AB`, `m+n`, `\\text{Area}`."""

import re
from collections.abc import Sequence
from itertools import pairwise

from lark.grading.strict import labels
from lark.grading.strict.answer_tokens import (
    Token,
    Tokens,
    as_letter,
    letters,
    mark,
    source,
    texts_of,
    words_of,
)
from lark.grading.strict.brackets import has_items, is_enclosed
from lark.grading.strict.notation import GREEK
from lark.grading.strict.structure import ReadingRules
from lark.grading.strict.vocabulary import word_set

_GREEK_NAMES = "|".join(sorted(name[1:] for name in GREEK))
_VARIABLE = rf"(?:[A-Za-z]|\\(?:{_GREEK_NAMES}))(?: _ \{{ [^{{}}=]{{1,30}} \}})?(?: ')*"
_POINTS = r"(?:[A-Z]{1,4}|[A-Z](?: [A-Z]){1,3})"
_NAME = re.compile(
    # x_1', f(2), f(g(2)), E[X]
    rf"{_VARIABLE}(?: \( (?:[^()=]|\( [^()=]{{1,30}} \)){{1,30}} \)| \[ [^\[\]=]{{1,30}} \])?"
    # \angle ABC, |AB|, |z|, [ABC] (an area), \overline{AB}, \vec{v}, AB
    rf"|(?:m )?\\(?:angle|triangle) {_POINTS}|\| (?:{_POINTS}|[zwuv]) \||\[ {_POINTS} \]"
    rf"|\\(?:overline|vec) \{{ (?:{_POINTS}|[a-z]) \}}|{_POINTS}"
    # (x,y), f^{-1}(2), (f \circ g)(2), P(X = 2), \frac{dy}{dx}
    rf"|\( {_VARIABLE}(?: , {_VARIABLE})+ \)"
    r"|(?:[A-Za-z] \^ \{ - 1 \}|\( [A-Za-z](?: \\circ [A-Za-z])+ \)) \( [^()=]{1,30} \)"
    r"|P \( [A-Z] = [0-9]+ \)|\\frac \{ d ?[a-z] \} \{ d ?[a-z] \}"
)
_ANGLE_NAME = re.compile(
    r"\\(?:sin|cos|tan|cot|sec|csc)(?: \^ \{ 2 \})? (?P<open>[({] )?(?:[0-9] )?"
    rf"(?:{_VARIABLE}|\\angle {_POINTS})(?(open) [)}}])"
)
"""The sine of an angle in a prediction. In a gold answer it is an equation for the angle."""
_MATRIX_NAME = re.compile(r"[A-Z] \^ \{ (?:- 1|[0-9]+|T) \}")
_TWO_POINTS = re.compile("[A-Z]{2}")
_IN_FORMULA = word_set(r"+ - / : ( ) | { } \frac \cdot \times \sqrt \vec \overline ^ _")
_EVENTS = (["P", "("], ["E", "("], ["N", "("])
_NOT_PRODUCTS = frozenset({"hi", "no", "def"})
"""Neighbours in the alphabet that are words."""


def is_name(tokens: Tokens, others: frozenset[str], reading: ReadingRules) -> bool:
    """True if a side of an equation only names the quantity. `others`: the letters of the other sides."""
    words = words_of(tokens)
    if len(words) == len(tokens) and (len(words) > 1 or len(words[0]) > 1):
        return _is_product_of_letters(words) or _is_word_name(words)
    tokens = tuple(map(as_letter, tokens))
    latex = source(tokens)
    if reading.is_gold:
        return _NAME.fullmatch(latex) is not None
    # In a prediction, a letter of the gold answer's value is a value.
    values = reading.symbols | others
    if _NAME.fullmatch(latex) or _ANGLE_NAME.fullmatch(latex):
        head = next((token.text for token in tokens if token.is_symbol), "")
        return head not in values and _is_plain_name(tokens)
    return _is_formula_name(tokens) and letters(tokens).isdisjoint(values)


def is_matrix_name(tokens: Tokens, members: Sequence[Tokens]) -> bool:
    """True for a power of a matrix, in an equation with a matrix: `A^{-1} = \\begin{pmatrix}…`."""
    has_matrix = any(r"\begin" in source(member) for member in members)
    return has_matrix and _MATRIX_NAME.fullmatch(source(tokens)) is not None


def is_named_point(tokens: Tokens) -> bool:
    """True for a capital letter and coordinates: `P(1,2)`."""
    # `P ( 1 , 2 )` is the shortest.
    if len(tokens) < 6 or tokens[1].text != "(":
        return False
    is_point = tokens[0].is_letter and tokens[0].text.isupper()
    return is_point and is_enclosed(tokens[1:]) and has_items(tokens[2:-1])


def _is_product_of_letters(words: list[str]) -> bool:
    return len(words) == 1 and words[0].islower() and _is_product(words[0])


def _is_word_name(words: list[str]) -> bool:
    if len(words) == 1 and len(words[0]) <= 4 and words[0].isupper():
        return labels.is_point_name(words[0], in_figure=False)
    return labels.is_quantity(words)


def _is_plain_name(tokens: Tokens) -> bool:
    """True if no word in a name denies it, as in `x_{\\text{wrong}}`, `f(\\text{not})` or `\\angle NOT`."""
    texts = texts_of(tokens)
    words = words_of(tokens)
    if words and texts[:2] in _EVENTS:
        return labels.is_event([text for text in texts[2:] if text.isalpha()])
    # Single letters may spell a word, so letters in a row are one run.
    runs = "".join(text if text.isalpha() else " " for text in texts).split()
    for run in runs:
        if run.isupper() and len(run) > 1 and not labels.is_point_name(run, in_figure=True):
            return False
    return labels.is_plain([word for word in (*runs, *words) if len(word) > 1 and not word.isupper()])


def _is_product(letters: str) -> bool:
    """True if bare letters can be a product: neighbours in the alphabet (`ab`, `xyz`) that are not a word."""
    are_neighbours = all(ord(after) - ord(before) == 1 for before, after in pairwise(letters))
    return letters not in _NOT_PRODUCTS and are_neighbours


def _is_formula_name(tokens: Tokens) -> bool:
    """True for a formula of at least two symbols or lengths, whose only numbers are powers and coefficients.

    Examples are `m+n` and `100m+n`, which AIME asks for, and `\\frac{AB}{BC}`.
    """
    symbols: set[str] = set()
    for i, token in enumerate(tokens):
        if token.is_symbol:
            is_indexed = tokens[i + 1 : i + 2] == (mark("_"),)
            symbols.add(source(tokens[i : i + 4]) if is_indexed else token.text)
        elif token.is_word and token.text.islower() and _is_product(token.text):
            symbols.update(token.text)
        elif _is_length(token):
            symbols.add(token.text)
        elif token.text not in _IN_FORMULA and not _is_power_or_coefficient(tokens, i):
            return False
    return len(symbols) > 1


def _is_length(token: Token) -> bool:
    """True for two points: `AB`."""
    is_pair = token.is_word and _TWO_POINTS.fullmatch(token.text)
    return bool(is_pair) and labels.is_point_name(token.text, in_figure=False)


def _is_power_or_coefficient(tokens: Tokens, place: int) -> bool:
    if not tokens[place].is_number:
        return False
    if place > 1 and tokens[place - 2].text in {"^", "_"}:
        return True
    before = tokens[place - 1].text if place else ""
    has_symbol = len(tokens) > place + 1 and tokens[place + 1].is_letter
    is_zero = tokens[place].text.strip("0.") == ""
    return before in {"", "+", "-", "("} and has_symbol and not is_zero
