"""Read the structure of an answer from its tokens. What is not clearly one of the values raises
`UnreadableError`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lark.grading.strict import labels
from lark.grading.strict.answer_tokens import (
    Tokens,
    as_letter,
    command,
    letters,
    mark,
    number,
    source,
    texts_of,
    words_of,
)
from lark.grading.strict.brackets import LIST_SEPARATORS, is_enclosed, split, without_outer_brackets
from lark.grading.strict.expressions import Expression, read_base
from lark.grading.strict.notation import RELATIONS
from lark.grading.strict.quantity_names import is_matrix_name, is_name, is_named_point
from lark.grading.strict.structure import (
    Answer,
    Bracketed,
    Inequality,
    Matrix,
    Quantity,
    ReadingRules,
    SetExpression,
    Statement,
    Value,
    Words,
    normalised_words,
)
from lark.grading.strict.unit_tokens import split_unit
from lark.grading.strict.units import Unit
from lark.grading.strict.unreadable import UnreadableError, require

_JOINTS = frozenset({",", ";", "and", "or"})
_DOUBLE_JOINTS = ((",", "and"), (",", "or"))
_EQUALS = frozenset({"=", r"\approx", r"\in"})
_SET_OPERATORS = frozenset({r"\cup", r"\cap", r"\setminus"})
_SUCH_THAT = frozenset({r"\mid", "|", ":"})
_RATIO = frozenset({":", "to"})
_ENVIRONMENTS = frozenset({"matrix}", "pmatrix}", "bmatrix}", "array}", "smallmatrix}"})


def read_answer(tokens: Tokens, symbols: frozenset[str], is_gold: bool = False) -> Answer:
    """The structure of an answer. See `ReadingRules` for `symbols` and `is_gold`."""
    return _Parser(ReadingRules(symbols, is_gold)).answer(tokens)


@dataclass(frozen=True)
class _Parser:
    reading: ReadingRules

    def answer(self, tokens: Tokens) -> Answer:
        tokens = without_outer_brackets(_without_opening(tokens), only="{")
        if len(tokens) > 1 and (tokens[-1].text == "." or _is_equation_with_comma(tokens)):
            tokens = tokens[:-1]
        parts, joints = split(tokens, _JOINTS)
        for i, part in enumerate(parts):
            # Between the comma and the word of `1, 2, and 3` there is nothing.
            is_double = i > 0 and tuple(joints[i - 1 : i + 1]) in _DOUBLE_JOINTS
            require(part or is_double, "nothing between two separators")
        return Answer(self._statements(part for part in parts if part), frozenset(joints))

    def _statements(self, parts: Iterable[Tokens]) -> tuple[Statement, ...]:
        return tuple(self.statement(part) for part in parts)

    def statement(self, tokens: Tokens) -> Statement:
        if split(tokens, RELATIONS)[1]:
            tokens, unit = split_unit(tokens, self.reading)
            return Statement((), ((_inequality(tokens), unit),))
        parts, signs = split(tokens, _EQUALS)
        if len(parts) == 2 and not parts[0]:
            parts = parts[1:]  # a sign at the beginning (`= 5`, `\approx 5`) belongs to the only value
        else:
            signs = ["=", *signs]
        require(all(parts), "nothing on one side of an equation")
        names: list[Tokens] = []
        quantities: list[Quantity] = []
        rounded: list[tuple[Expression, Unit | None]] = []
        for i, (sign, part) in enumerate(zip(signs, parts, strict=True)):
            if sign == "=" and self._is_name(parts, i):
                names.append(part)
                continue
            is_element = i == len(names) == 1 and len(parts) == 2
            require(sign != r"\in" or is_element, "an element that is not a name")
            value, unit = self._quantity(part)
            if sign == r"\approx":
                rounded.append((_expression(value), unit))
            else:
                quantities.append((value, unit))
        require(quantities or rounded, "no value")
        members = tuple(parts) if signs == ["=", "="] else ()
        return Statement(tuple(names), tuple(quantities), tuple(rounded), members)

    def _is_name(self, parts: list[Tokens], place: int) -> bool:
        """True if a side of an equation only names the quantity."""
        if len(parts) == 1:
            return False
        others = frozenset[str]()
        for part in (*parts[:place], *parts[place + 1 :]):
            others |= letters(part)
        return is_name(parts[place], others, self.reading) or is_matrix_name(parts[place], parts)

    def _quantity(self, tokens: Tokens) -> Quantity:
        tokens, unit = split_unit(without_outer_brackets(tokens), self.reading)
        return self.value(tokens), unit

    def value(self, tokens: Tokens) -> Value:
        tokens = without_outer_brackets(tokens)
        require(tokens, "no value")
        # From the loosest to the closest connection: unions, then brackets, then ratios.
        parts, operators = split(tokens, _SET_OPERATORS)
        if operators:
            first, *rest = map(self.value, parts)
            return SetExpression(first, tuple(zip(operators, rest, strict=True)))
        if r"\begin" in source(tokens):
            return _matrix(tokens)
        is_label = not self.reading.is_gold and tokens[0].text not in self.reading.symbols
        if is_label and is_named_point(tokens):
            tokens = tokens[1:]
        if is_enclosed(tokens):
            return self._comprehension(tokens) or self._bracketed(tokens)
        parts, colons = split(tokens, _RATIO)
        if len(set(colons)) == 1 and all(parts):
            return Bracketed(":", self._statements(parts), colons[0])
        if self._is_wordy(tokens) and read_base(tokens) is None:
            return Words(normalised_words(tokens))
        return Expression(tuple(map(as_letter, tokens)))

    def _is_wordy(self, tokens: Tokens) -> bool:
        words = words_of(tokens)
        # In a gold answer a single letter in `\text{…}` is the name of something, not a symbol.
        return any(len(word) > 1 for word in words) or (self.reading.is_gold and len(words) == len(tokens))

    def _bracketed(self, tokens: Tokens) -> Bracketed:
        parts, _ = split(tokens[1:-1], LIST_SEPARATORS)
        items = () if parts == [()] else self._statements(parts)
        return Bracketed(tokens[0].text, items, tokens[-1].text)

    def _comprehension(self, tokens: Tokens) -> Value | None:
        """The inequalities in `\\{x \\mid x > 1\\}`; None for other groups."""
        parts, marks = split(tokens[1:-1], _SUCH_THAT)
        if tokens[0].text != r"\{" or len(marks) != 1 or source(parts[0][1:]) not in {"", r"\in \mathbb{R}"}:
            return None
        condition = self.answer(parts[1])
        values = condition.values
        symbols = frozenset[str]()
        for value in values:
            if not isinstance(value, Inequality):
                return None
            symbols = symbols.union(*(member.letters for member in value.members))
        is_about_variable = bool(parts[0]) and symbols == letters(parts[0][:1])
        if len(values) != len(condition.statements) or len(condition.joints) > 1 or not is_about_variable:
            return None
        return combined_sets(values, r"\cup" if condition.is_alternative else r"\cap")


def combined_sets(values: Sequence[Value], operator: str) -> Value:
    """The union or the intersection of sets."""
    if len(values) == 1:
        return values[0]
    return SetExpression(values[0], tuple((operator, value) for value in values[1:]))


def _expression(value: Value) -> Expression:
    if not isinstance(value, Expression):
        raise UnreadableError("an approximation that is not a number")
    return value


def _is_equation_with_comma(tokens: Tokens) -> bool:
    """True for one equation and the comma that a sentence would have after it: `x=5,`. After a bare value, a
    comma is a list with a missing item.
    """
    *texts, last = texts_of(tokens)
    is_equation = texts.count("=") == 1 and texts[0] != "=" and texts[-1] != "="
    return last == "," and is_equation and _JOINTS.isdisjoint(texts)


def _without_opening(tokens: Tokens) -> Tokens:
    """The tokens without `\\text{The answer is }`, `Answer:` or `Area:` at the beginning."""
    first = next((i for i, token in enumerate(tokens) if not token.is_word), len(tokens))
    words = texts_of(tokens[:first])
    count = labels.opening_length(words)
    if 0 < first < len(tokens):
        has_verb = words[-1].lower() in {"is", "are"}
        if (tokens[first].text == ":" or has_verb) and labels.is_name(words):
            count = first
    if count in {0, len(tokens)} or tokens[count].text == "=":
        return tokens
    return tokens[count + 1 :] if tokens[count].text == ":" else tokens[count:]


def _inequality(tokens: Tokens) -> Inequality:
    parts, relations = split(tokens, RELATIONS)
    members = tuple(Expression(tuple(map(as_letter, part))) for part in parts)
    return Inequality(members, tuple(relations))


def _matrix(tokens: Tokens) -> Matrix:
    """A matrix, with the factor before it multiplied into its cells."""
    ends = [i for i, token in enumerate(tokens) if token.text.startswith((r"\begin", r"\end"))]
    require(len(ends) == 2, "an environment that is not a single matrix")
    start, end = ends
    factor = tokens[:start]
    after = source(tokens[end + 1 :])
    if factor and factor[-1].text + after in {"()", "[]"}:  # brackets around an `array`
        factor = factor[:-1]
        after = ""
    environments = {tokens[i].text.partition("{")[2] for i in ends}
    is_matrix = len(environments) == 1 and environments <= _ENVIRONMENTS and not after
    require(is_matrix, "an environment that is not a single matrix")
    rows: list[tuple[Expression, ...]] = []
    for row in split(tokens[start + 1 : end], frozenset({r"\\"}))[0]:
        if row:
            cells = split(row, frozenset({"&"}))[0]
            rows.append(tuple(Expression(_product(factor, cell)) for cell in cells))
    return Matrix(tuple(rows))


def _product(factor: Tokens, cell: Tokens) -> Tokens:
    """A cell of a matrix times the factor before the matrix."""
    if factor[-1:] in ((command(r"\cdot"),), (command(r"\times"),)):
        factor = factor[:-1]
    if not factor or not cell:
        return cell
    if source(factor) == "-":
        factor = (*factor, number("1"))
    return (mark("("), *factor, mark(")"), command(r"\cdot"), mark("("), *cell, mark(")"))
