"""The tokens that an answer is made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from lark.grading.strict.notation import GREEK


class TokenKind(StrEnum):
    """The kinds of tokens."""

    NUMBER = "number"
    LETTER = "letter"
    """A mathematical symbol of one letter. Upper and lower case differ."""
    WORD = "word"
    """Letters in `\\text{…}`, or bare letters that cannot be symbols: `apples`."""
    COMMAND = "command"
    MARK = "mark"


@dataclass(frozen=True)
class Token:
    """One token, in a notation that equal tokens share (`\\dfrac` becomes `\\frac`)."""

    kind: TokenKind
    text: str

    @property
    def is_word(self) -> bool:
        return self.kind is TokenKind.WORD

    @property
    def is_number(self) -> bool:
        return self.kind is TokenKind.NUMBER

    @property
    def is_letter(self) -> bool:
        return self.kind is TokenKind.LETTER

    @property
    def is_symbol(self) -> bool:
        """True for a letter, also a Greek one."""
        return self.is_letter or self.text in GREEK


Tokens = tuple[Token, ...]


mark = partial(Token, TokenKind.MARK)
number = partial(Token, TokenKind.NUMBER)
command = partial(Token, TokenKind.COMMAND)
letter = partial(Token, TokenKind.LETTER)
word = partial(Token, TokenKind.WORD)


def source(tokens: Sequence[Token]) -> str:
    """The tokens as LaTeX."""
    return " ".join(token.text for token in tokens)


def letters(tokens: Sequence[Token]) -> frozenset[str]:
    """The symbols among the tokens: letters, and Greek letters as commands."""
    return frozenset(token.text for token in tokens if token.is_symbol)


def texts_of(tokens: Sequence[Token]) -> list[str]:
    return [token.text for token in tokens]


def words_of(tokens: Sequence[Token]) -> list[str]:
    """The texts of those tokens that are words."""
    return [token.text for token in tokens if token.is_word]


def with_words_as_w(tokens: Sequence[Token]) -> str:
    """The tokens as LaTeX with `w` for every word, to be matched with a pattern."""
    return " ".join("w" if token.is_word else token.text for token in tokens)


def as_letter(token: Token) -> Token:
    """A word of one letter as a symbol: `\\text{x}` where a value is expected."""
    return letter(token.text) if token.is_word and len(token.text) == 1 else token
