"""Split an answer into tokens: numbers, letters, words, commands and marks. Layout is dropped, and every
argument gets braces.

Nothing is skipped in silence: an unknown character or command raises `UnreadableError`, so that an answer
cannot hide anything from the comparison that a reader would see. Linear in the length of the text.
"""

import re
from collections.abc import Container, Iterator
from itertools import pairwise

from lark.grading.strict.answer_tokens import Token, command, letter, mark, number, word
from lark.grading.strict.brackets import without_idle_braces
from lark.grading.strict.notation import (
    ARGUMENT_COUNTS,
    CANONICAL,
    CLOSING,
    COMMANDS,
    FUNCTIONS,
    LAYOUT_COMMANDS,
    LITERAL,
    OPENING,
    TEXT_COMMANDS,
    WRAPPERS,
)
from lark.grading.strict.rewriting import as_latex
from lark.grading.strict.unreadable import UnreadableError, require

_GROUP_GAP = r"(?:,\\!\s*|\{,\}|\\[,;:]|[~ ])"
# The first alternative that matches wins, so a notation comes before those that would match its beginning.
_LEXEME = re.compile(
    rf"""(?P<space>\s+|~(?!\s*=))
    |(?P<repeating>[0-9]+\.[0-9]*\\(?:overline|bar|dot)\s*(?:\{{[0-9]+\}}|[0-9]))
    |(?P<literal>{LITERAL}(?![0-9A-Za-z_]|\.[0-9]))
    |(?P<broken>0[xXbBoO][0-9])
    |(?P<mixed>[0-9]+\ +[0-9]+\s*/\s*[0-9]+(?![0-9.]))
    |(?P<grouped>[0-9]{{1,3}}(?:{_GROUP_GAP}[0-9]{{3}})+(?![0-9])(?:\.[0-9]+)?)
    |(?P<commas>[0-9]{{1,3}}(?:,[0-9]{{3}})+(?![0-9])(?:\.[0-9]+)?)
    |(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)
    |(?P<letters>[A-Za-z]+)
    |(?P<environment>\\(?:begin|end|mathbb)\s*\{{[A-Za-z]+\}}(?:\s*\{{[clr|\ ]+\}})?)
    |(?P<command>\\(?:[A-Za-z]+|.))
    |(?P<mark>[-+*/^_()\[\]{{}}|!.,;:=<>&'%?$])""",
    re.VERBOSE | re.DOTALL,
)
"""A piece of the text. The name of its group says what it is."""
_NUMBERS = frozenset({"number", "grouped", "commas", "mixed"})
_ABOUT = re.compile(r"(?:^|[=<>(\[])\s*~")
"""`~` is a space in LaTeX, but `~5` is how people write about 5."""
_FIRST_DIGITS = re.compile(r"[0-9.][0-9]*")
_REPEATING = re.compile(r"([0-9]+)\.([0-9]*)\\[a-z]+\s*\{?([0-9]+)\}?")
_COLUMNS = re.compile(r"\s|(?<=\})\s*\{.*")
"""The columns of an `array`, which do not change its cells, and spaces."""
_BRACE_OR_TEXT = re.compile(r"\\.|[{}]|\S", re.DOTALL)


def tokenize(text: str, symbols: Container[str] = ()) -> list[Token]:
    """The tokens of an answer.

    `symbols`: the letters of the gold answer. A bare run of only these is a product, not a word.
    """
    text = as_latex(text)
    require(not _ABOUT.search(text), "~ before a value, which means about")
    tokens = without_idle_braces(list(_Reader(symbols).read(text, in_text=False)))
    for before, after in pairwise(tokens):
        require(not (before.is_number and after.is_number), "two numbers with nothing between them")
    return tokens


class _Reader:
    """State of one pass over the text."""

    def __init__(self, symbols: Container[str]) -> None:
        self.symbols = symbols
        self.depth = 0
        """Open brackets. In brackets `1,234` is a pair, outside it is a number."""
        self.arguments = 0
        """Arguments that the last command still expects."""
        self.is_script = False
        """True if the argument is that of `^` or `_`, which takes a whole number: `x^12` is `x^{12}`."""
        self.after_option = 0
        """Arguments expected after an optional one in brackets, `\\sqrt[3]{2}`."""
        self.braces: list[int] = []
        """For each open brace, the arguments that its command expects after it."""

    def read(self, text: str, in_text: bool) -> Iterator[Token]:
        position = 0
        while position < len(text):
            group, lexeme = self._next(text, position)
            position += len(lexeme)
            name = CANONICAL.get(lexeme, lexeme)
            if group == "command" and (name in TEXT_COMMANDS or name in WRAPPERS):
                end = _closing_brace(text, position)
                yield from self._inner(text[position:end], is_text=name in TEXT_COMMANDS)
                position = end
            elif group == "command" and name in LAYOUT_COMMANDS:
                if name in {r"\left", r"\right"} and text[position : position + 1] == ".":
                    position += 1  # `\left.` is an invisible bracket
            else:
                yield from self._tokens(group, lexeme, in_text)

    def _next(self, text: str, position: int) -> tuple[str, str]:
        """The piece at a position, and the name of its group in `_LEXEME`."""
        match = _LEXEME.match(text, position)
        if match is None or match.lastgroup is None:
            raise UnreadableError(f"the character {text[position]!r}")
        group = match.lastgroup
        lexeme = match[0]
        if group == "commas" and self.depth:
            group = "number"
            lexeme = _first_digits(lexeme)
        if group in _NUMBERS and self.arguments:
            # `\frac12` takes one digit per argument, `x^12` all of them.
            group = "number"
            lexeme = _first_digits(lexeme) if self.is_script else lexeme[0]
        # As an argument, only the first digit of `0x1F` would count.
        is_broken = group == "broken" or (group == "literal" and self.arguments)
        require(not is_broken, f"{lexeme}, which begins like a hexadecimal or binary number")
        return group, lexeme

    def _inner(self, argument: str, is_text: bool) -> Iterator[Token]:
        """The tokens in the braces of `\\text{…}` or of a wrapper, as one argument if one is expected."""
        content = argument.strip()
        if content.startswith("{"):
            content = content[1:-1]
        expected = self.arguments
        self.arguments = 0
        if expected:
            yield mark("{")
        yield from self.read(content, is_text)
        if expected:
            yield mark("}")
        self.arguments = max(expected - 1, 0)

    def _tokens(self, group: str, lexeme: str, in_text: bool) -> Iterator[Token]:
        if group == "space":
            return
        if group == "letters":
            yield from self._letters(lexeme, in_text)
        elif group == "environment":
            yield command(_COLUMNS.sub("", lexeme))
        elif group == "command" or lexeme == "%":
            yield from self._command(CANONICAL.get(lexeme, lexeme))
        elif group == "mark":
            yield from self._mark(lexeme)
        else:
            yield from self._argument(list(_number_tokens(group, lexeme)))

    def _letters(self, run: str, in_text: bool) -> Iterator[Token]:
        name = "\\" + run.lower()
        is_word = (
            len(run) > 1 and not self.arguments and not all(character in self.symbols for character in run)
        )
        if name in {r"\infinity", r"\infty"}:
            yield from self._command(r"\infty")
        elif name in FUNCTIONS or name in {r"\pi", r"\sqrt"}:  # `sin x` without its backslash
            yield from self._command(name)
        elif in_text or is_word:
            yield from self._argument([word(run)])
        else:
            for character in run:
                yield from self._argument([letter(character)])

    def _command(self, name: str) -> Iterator[Token]:
        if name.startswith("^"):
            yield from self._mark("^")
            name = name[1:]
        if name.startswith(r"\text{"):
            yield word(name[6:-1])
        elif len(name) == 1:
            yield from self._mark(name)
        elif name not in COMMANDS and name not in self.symbols:
            raise UnreadableError(f"the command {name}")
        elif name in ARGUMENT_COUNTS:
            self._refuse_argument(name)
            self.arguments = ARGUMENT_COUNTS[name]
            self.is_script = False
            yield command(name)
        else:
            self.depth += (name in OPENING) - (name in CLOSING)
            yield from self._argument([command(name)])

    def _mark(self, text: str) -> Iterator[Token]:
        if text == "$":
            return
        if text == "{":
            self.braces.append(max(self.arguments - 1, 0))
            self.arguments = 0
        elif text == "}":
            self.arguments = self.braces.pop() if self.braces else 0
        elif text == "[" and self.arguments and not self.is_script:
            self.after_option = self.arguments
            self.arguments = 0
        elif text == "]" and self.after_option:
            self.arguments = self.after_option
            self.after_option = 0
        else:
            self._refuse_argument(text)
            if text in {"^", "_"}:
                self.arguments = 1
                self.is_script = True
        self.depth += (text in OPENING) - (text in CLOSING)
        yield mark(text)

    def _refuse_argument(self, text: str) -> None:
        require(not self.arguments, f"{text} as an argument without braces")

    def _argument(self, tokens: list[Token]) -> Iterator[Token]:
        """A complete argument, in braces if a command expects one."""
        if self.arguments:
            self.arguments -= 1
            tokens = [mark("{"), *tokens, mark("}")]
        yield from tokens


def _first_digits(text: str) -> str:
    match = _FIRST_DIGITS.match(text)
    assert match is not None  # every number begins with a digit or a point
    return match[0]


def _number_tokens(group: str, lexeme: str) -> Iterator[Token]:
    """A number without separators. A mixed number is a number before a fraction; a repeating decimal is a
    fraction. A literal such as `0x1F` stays one, so that a base after it cannot be taken for the base of
    its value.
    """
    if match := _REPEATING.fullmatch(lexeme):
        integer, fixed, repeated = match.groups()
        period = 10 ** len(repeated) - 1  # 0.333… is 3/9, 0.1212… is 12/99
        scale = 10 ** len(fixed)
        yield from _fraction(int(integer + fixed) * period + int(repeated), scale * period)
    elif group == "literal":
        yield number(lexeme.lower())
    elif group == "mixed":
        integer, numerator, denominator = re.findall("[0-9]+", lexeme)
        yield number(integer)
        yield from _fraction(int(numerator), int(denominator))
    else:
        digits = re.sub(r"[^0-9.]", "", lexeme)
        yield number("0" + digits if digits.startswith(".") else digits)


def _fraction(numerator: int, denominator: int) -> Iterator[Token]:
    yield command(r"\frac")
    for part in (numerator, denominator):
        yield from (mark("{"), number(str(part)), mark("}"))


def _closing_brace(text: str, start: int) -> int:
    """The end of the argument in braces that begins at `start`."""
    depth = 0
    for match in _BRACE_OR_TEXT.finditer(text, start):
        depth += (match[0] == "{") - (match[0] == "}")
        if depth == 0:
            if match[0] == "}":
                return match.end()
            break
    raise UnreadableError("a command without its argument in braces")
