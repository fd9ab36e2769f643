"""The structure of an answer: a list of statements, each a chain of equalities between names and values.

Values are expressions, groups in brackets, matrices, set expressions, inequalities or words. `parser` builds
it, and `equality` compares it.
"""

from dataclasses import dataclass
from itertools import chain

from lark.grading.strict.answer_tokens import Tokens
from lark.grading.strict.expressions import Expression
from lark.grading.strict.units import Unit


@dataclass(frozen=True)
class Words:
    """An answer in words: `\\text{Evelyn}`. See `normalised_words`."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class Bracketed:
    """Values in brackets: a tuple, an interval or a set. Also a ratio, whose opening is `:`, and whose
    closing is `:`, or `to` if it is in words.
    """

    opening: str
    items: tuple["Statement", ...]
    closing: str


@dataclass(frozen=True)
class Matrix:
    """Rows of cells."""

    rows: tuple[tuple[Expression, ...], ...]


@dataclass(frozen=True)
class SetExpression:
    """Sets joined by `\\cup`, `\\cap` and `\\setminus`, from left to right."""

    first: "Value"
    rest: tuple[tuple[str, "Value"], ...]


@dataclass(frozen=True)
class Inequality:
    """A chain such as `-2 \\le x < 7`."""

    members: tuple[Expression, ...]
    relations: tuple[str, ...]


Value = Expression | Words | Bracketed | Matrix | SetExpression | Inequality
Quantity = tuple[Value, Unit | None]
"""A value and its unit."""


@dataclass(frozen=True)
class Statement:
    """`name = value = value`. There is at least one value, rounded or not."""

    names: tuple[Tokens, ...]
    quantities: tuple[Quantity, ...]
    rounded: tuple[tuple[Expression, Unit | None], ...] = ()
    """Quantities after `\\approx`."""
    members: tuple[Tokens, ...] = ()
    """Both sides of an equation."""

    @property
    def values(self) -> list[Value]:
        return [value for value, _ in self.quantities]

    @property
    def only_value(self) -> Value | None:
        """The value, if there is exactly one apart from rounded ones."""
        return self.values[0] if len(self.quantities) == 1 else None

    @property
    def units(self) -> list[Unit | None]:
        """The units of all quantities, rounded or not."""
        return [unit for _, unit in (*self.quantities, *self.rounded)]


@dataclass(frozen=True)
class Answer:
    """Statements, and what joins them: commas, semicolons, `and`, `or`."""

    statements: tuple[Statement, ...]
    joints: frozenset[str] = frozenset()

    @property
    def is_alternative(self) -> bool:
        return "or" in self.joints

    @property
    def values(self) -> list[Value]:
        return [value for statement in self.statements for value in statement.values]


@dataclass(frozen=True)
class ReadingRules:
    """How an answer is read: as a gold answer, or as a prediction beside one."""

    symbols: frozenset[str]
    """The letters of the gold answer's value, which are not names in a prediction."""
    is_gold: bool
    """In a gold answer, any words after a value are its unit."""


def value_letters(*statements: Statement) -> frozenset[str]:
    """The symbols in the values of statements."""
    symbols = frozenset[str]()
    for statement in statements:
        for value in statement.values:
            symbols |= _letters(value)
    return symbols


def _letters(value: Value) -> frozenset[str]:
    match value:
        case Expression():
            return value.letters
        case Bracketed():
            return value_letters(*value.items)
        case Matrix():
            cells = chain.from_iterable(value.rows)
            return frozenset[str]().union(*(cell.letters for cell in cells))
        case _:
            return frozenset()


def normalised_words(tokens: Tokens) -> tuple[str, ...]:
    """The tokens as lower-case words, without brackets, an article at the start and a period at the end.

    The abbreviation `dne` becomes `does not exist`.
    """
    words = [token.text.lower() for token in tokens if token.text not in {"(", ")", "{", "}"}]
    if len(words) > 1 and words[0] in {"the", "a", "an"}:
        del words[0]
    if words[-1:] == ["."]:
        del words[-1]
    if words == ["dne"]:
        return ("does", "not", "exist")
    return tuple(words)
