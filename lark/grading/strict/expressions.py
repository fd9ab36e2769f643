"""Expressions: the tokens of a number or a formula, checked so that the parser of expressions cannot
misread them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from lark.grading.strict import labels
from lark.grading.strict.labels import word_set
from lark.grading.strict.lexer import BOUND, FUNCTIONS, GREEK, Kind, Token, UnreadableError

Tokens = tuple[Token, ...]
_CONSTANT_SETS = frozenset({r"\mathbb{R}", r"\mathbb{Z}", r"\emptyset"})
INFINITIES = {r"\infty": 1, r"+ \infty": 1, r"- \infty": -1}
_OPERATORS = word_set(r"+ - * / ^ _ ( ) [ ] { } | ! , \frac \binom \sqrt \pi \cdot \times \div \pm \mp \circ") | {
    r"\lfloor", r"\rfloor", r"\lceil", r"\rceil"
}  # fmt: skip
_SIGNS = frozenset({"+", "-", r"\pm", r"\mp"})
_IN_BOUND = frozenset({r"\infty", r"\to", "="})
_BEFORE_GROUP = frozenset({"", "+", "-", "*", "/", "(", "|", r"\cdot", r"\times"})
_BASE = re.compile(
    r"(?:(?P<digits>[0-9][0-9A-Z ]*)|\( (?P<enclosed>[0-9][0-9A-Z ]*) \))"
    r"(?: _ \{ (?:base )?(?P<index>[0-9]+|[a-z]+|\( [0-9]+ \)) \}"
    r"| (?P<words>(?:in )?base (?:[0-9]+|[a-z]+)|\( base (?:[0-9]+|[a-z]+) \)))"
)


def source(tokens: Sequence[Token]) -> str:
    """The tokens as LaTeX."""
    return " ".join(token.text for token in tokens)


def letters(tokens: Sequence[Token]) -> frozenset[str]:
    """The symbols among the tokens: letters, and Greek letters as commands."""
    return frozenset(token.text for token in tokens if token.kind is Kind.LETTER or token.text in GREEK)


@dataclass(frozen=True)
class Expression:
    """A number or a formula."""

    tokens: Tokens

    def __post_init__(self) -> None:
        if not self.tokens:
            raise UnreadableError("nothing where an expression should be")
        if self.latex not in _CONSTANT_SETS and self.latex not in INFINITIES and self.base is None:
            _check(self.tokens)

    @cached_property
    def latex(self) -> str:
        return source(self.tokens)

    @property
    def is_decimal(self) -> bool:
        """Whether it contains a decimal fraction such as 0.5."""
        return any(token.kind is Kind.NUMBER and "." in token.text for token in self.tokens)

    @property
    def is_set(self) -> bool:
        """Whether it is the name of a set: `\\mathbb{R}`."""
        return self.latex in _CONSTANT_SETS

    @property
    def has_bound_variable(self) -> bool:
        return any(token.text in BOUND for token in self.tokens)

    @cached_property
    def base(self) -> tuple[str, str] | None:
        """The digits and the base of a number with a subscript."""
        return read_base(self.tokens)

    @cached_property
    def letters(self) -> frozenset[str]:
        return letters(self.tokens)


def read_base(tokens: Tokens) -> tuple[str, str] | None:
    """The digits and the base of `4210_5`, `(4210)_{\\text{five}}` or `4210 \\text{ base } 5`; None for
    anything else.
    """
    match = _BASE.fullmatch(source(tokens))
    if match is None:
        return None
    name = (match["index"] or match["words"]).strip("( )").split(" ")[-1]
    base = name if name.isdigit() else labels.base(name)
    return ((match["digits"] or match["enclosed"]).replace(" ", ""), base) if base else None


def _check(tokens: Tokens) -> None:
    """Raise `UnreadableError` for what the parser of expressions would skip or guess.

    Brackets enclose something, braces are arguments, subscripts belong to symbols, `!!` is not `!` twice,
    nobody writes `--5` or `2^3^2`, and a number does not follow braces directly (`\\frac{1}{2}5`), except
    after a function (`\\log_2 32`).
    """
    has_bound = any(token.text in BOUND for token in tokens)
    allowed = _OPERATORS | FUNCTIONS | GREEK | BOUND | (_IN_BOUND if has_bound else frozenset())
    commands: list[str] = []
    """For each open brace, the command whose argument it opens."""
    closed = previous = before = ""
    for token in tokens:
        text = token.text
        if token.kind is Kind.WORD or (token.kind in {Kind.MARK, Kind.COMMAND} and text not in allowed):
            raise UnreadableError(f"{text} in an expression")
        if previous == text == "!":
            raise UnreadableError("a double factorial")
        if {previous, text} <= _SIGNS:
            raise UnreadableError("two signs in a row")
        if previous == "}" and text == closed == "^":
            raise UnreadableError("a power of a power without brackets")
        if previous + text in {"()", "(,", ",)", "{}", "[]", "||"}:
            raise UnreadableError("empty brackets")
        if text == "{":
            commands.append(_owner(before, previous, closed))
        elif text == "}":
            closed = commands.pop() if commands else ""
        elif token.kind is Kind.NUMBER and previous == "}" and closed != "function":
            raise UnreadableError("a number after braces")
        elif text == "_" and not (previous.isalpha() or previous.startswith("\\")):
            raise UnreadableError("a subscript of something that is not a symbol")
        before, previous = previous, text


def _owner(before: str, previous: str, closed: str) -> str:
    """The command whose argument begins with a brace, by the two tokens before it and the command of the
    last closed brace.
    """
    if previous in {"^", "_"}:
        return (
            "function"
            if before in FUNCTIONS | BOUND or (before == "}" and closed == "function")
            else previous
        )
    if previous in {r"\frac", r"\binom", r"\sqrt"}:
        return previous
    if (previous == "}" and closed in {r"\frac", r"\binom"}) or previous == "]":
        return "last argument"
    if previous in FUNCTIONS or (previous == "}" and closed == "function"):
        return "argument"
    if previous in _BEFORE_GROUP:
        return "group"
    raise UnreadableError("braces that are not an argument")
