"""Expressions: the tokens of a number or a formula, checked so that the parser of expressions cannot
misread them.
"""

import re
from dataclasses import dataclass
from functools import cached_property

from lark.grading.strict.answer_tokens import Token, TokenKind, Tokens, letters, source
from lark.grading.strict.notation import BOUND, FUNCTIONS, GREEK
from lark.grading.strict.unreadable import UnreadableError
from lark.grading.strict.vocabulary import NUMBER_NAMES, word_set

_CONSTANT_SETS = frozenset({r"\mathbb{R}", r"\mathbb{Z}", r"\emptyset"})
INFINITIES = {r"\infty": 1, r"+ \infty": 1, r"- \infty": -1}
_ALLOWED = FUNCTIONS | GREEK | BOUND | word_set(
    r"+ - * / ^ _ ( ) [ ] { } | ! , \frac \binom \sqrt \pi \cdot \times \div \pm \mp \circ"
    r" \lfloor \rfloor \lceil \rceil"
)  # fmt: skip
_ALLOWED_IN_BOUND = _ALLOWED | {r"\infty", r"\to", "="}
_SIGNS = frozenset({"+", "-", r"\pm", r"\mp"})
_BEFORE_GROUP = frozenset({"", "+", "-", "*", "/", "(", "|", r"\cdot", r"\times"})
_EMPTY = frozenset({"()", "(,", ",)", "{}", "[]", "||"})
_BASE = re.compile(
    r"(?:(?P<digits>[0-9][0-9A-Z ]*)|\( (?P<enclosed>[0-9][0-9A-Z ]*) \))"
    r"(?: _ \{ (?:base )?(?P<index>[0-9]+|[a-z]+|\( [0-9]+ \)) \}"
    r"| (?P<words>(?:in )?base (?:[0-9]+|[a-z]+)|\( base (?:[0-9]+|[a-z]+) \)))"
)


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
        """True if it contains a decimal fraction such as 0.5."""
        return any(token.is_number and "." in token.text for token in self.tokens)

    @property
    def is_set(self) -> bool:
        """True if it is the name of a set: `\\mathbb{R}`."""
        return self.latex in _CONSTANT_SETS

    @property
    def has_bound_variable(self) -> bool:
        return _has_bound_variable(self.tokens)

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
    base = name if name.isdigit() else NUMBER_NAMES.get(name)
    if base is None:
        return None
    digits = match["digits"] or match["enclosed"]
    return digits.replace(" ", ""), base


def _has_bound_variable(tokens: Tokens) -> bool:
    return any(token.text in BOUND for token in tokens)


def _check(tokens: Tokens) -> None:
    """Refuse what the parser of expressions would skip or guess."""
    allowed = _ALLOWED_IN_BOUND if _has_bound_variable(tokens) else _ALLOWED
    commands: list[str] = []
    """For each open brace, the command whose argument it opens."""
    closed = ""
    """The command whose argument was closed last."""
    previous = ""
    before = ""
    for token in tokens:
        reason = _fault(token, previous, closed, allowed)
        if reason:
            raise UnreadableError(reason)
        if token.text == "{":
            commands.append(_owner(before, previous, closed))
        elif token.text == "}":
            closed = commands.pop() if commands else ""
        before = previous
        previous = token.text


def _fault(token: Token, previous: str, closed: str, allowed: frozenset[str]) -> str | None:
    """Why a token cannot follow the previous one, or None.

    `closed`: the command whose argument was closed last.
    """
    text = token.text
    is_sign = token.kind in {TokenKind.MARK, TokenKind.COMMAND}
    is_subscript_of_symbol = previous.isalpha() or previous.startswith("\\")
    faults = (
        (token.is_word or (is_sign and text not in allowed), f"{text} in an expression"),
        (previous == text == "!", "a double factorial"),  # the parser reads `!!` as `!` twice
        (previous in _SIGNS and text in _SIGNS, "two signs in a row"),
        (previous == "}" and text == closed == "^", "a power of a power without brackets"),
        (previous + text in _EMPTY, "empty brackets"),
        # `\frac{1}{2}5` is unclear, `\log_2 32` is not.
        (token.is_number and previous == "}" and closed != "function", "a number after braces"),
        (text == "_" and not is_subscript_of_symbol, "a subscript of something that is not a symbol"),
    )
    return next((reason for is_fault, reason in faults if is_fault), None)


def _owner(before: str, previous: str, closed: str) -> str:
    """The command whose argument begins with a brace, by the two tokens before it and the command of the
    last closed brace.
    """
    if previous in {"^", "_"}:
        is_function = before in FUNCTIONS or before in BOUND or (before == "}" and closed == "function")
        return "function" if is_function else previous
    if previous in {r"\frac", r"\binom", r"\sqrt"}:
        return previous
    if previous == "]" or (previous == "}" and closed in {r"\frac", r"\binom"}):
        return "last argument"
    if previous in FUNCTIONS or (previous == "}" and closed == "function"):
        return "argument"
    if previous in _BEFORE_GROUP:
        return "group"
    raise UnreadableError("braces that are not an argument")
