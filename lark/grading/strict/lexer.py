"""Split an answer into tokens: numbers, letters, words, commands and marks. Layout is dropped, and every
argument gets braces.

Nothing is skipped in silence: a character or command that is not known raises `UnreadableError`, so that an
answer cannot hide anything from the comparison that a reader would see. Linear in the length of the text.
"""

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from lark.grading.answers import LITERAL
from lark.grading.strict.labels import word_set


class UnreadableError(ValueError):
    """The answer cannot be read with certainty. It is then right only if it equals the gold answer token by
    token.
    """


class Kind(StrEnum):
    """What a token is."""

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

    kind: Kind
    text: str


GREEK = word_set(
    r"\alpha \beta \gamma \delta \epsilon \varepsilon \zeta \eta \theta \vartheta \iota \kappa \lambda \mu"
    r" \nu \xi \rho \sigma"
    r" \tau \upsilon \phi \varphi \chi \psi \omega \Gamma \Delta \Theta \Lambda \Xi \Pi \Sigma \Phi \Psi"
    r" \Omega"
)
FUNCTIONS = word_set(
    r"\sin \cos \tan \cot \sec \csc \arcsin \arccos \arctan \sinh \cosh \tanh \log \ln \exp \max \min \gcd"
    r" \lcm"
)
BOUND = word_set(r"\sum \prod \int \lim")
"""Commands with a bound variable."""
_ARGUMENTS = {r"\frac": 2, r"\binom": 2, r"\sqrt": 1}
RELATIONS = frozenset({"<", ">", r"\le", r"\ge", r"\ne"})
_COMMANDS = (
    GREEK | FUNCTIONS | BOUND | set(_ARGUMENTS) | RELATIONS
    | word_set(r"\pi \infty \cdot \times \div \pm \mp \circ \approx \in \cup \cap \setminus \emptyset \to")
    | word_set(r"\lfloor \rfloor \lceil \rceil \angle \triangle \overline \vec \{ \} \% \$ \\")
    | word_set(r"\pounds \euro \yen \cent \langle \rangle \mid")
)  # fmt: skip
_ALIASES = {
    r"\dfrac": r"\frac",
    r"\tfrac": r"\frac",
    r"\cfrac": r"\frac",
    r"\dbinom": r"\binom",
    r"\tbinom": r"\binom",
    r"\leq": r"\le",
    r"\leqslant": r"\le",
    r"\leqq": r"\le",
    r"\geq": r"\ge",
    r"\geqslant": r"\ge",
    r"\geqq": r"\ge",
    r"\neq": r"\ne",
    r"\lt": "<",
    r"\gt": ">",
    r"\varnothing": r"\emptyset",
    r"\lbrace": r"\{",
    r"\rbrace": r"\}",
    r"\lbrack": "[",
    r"\rbrack": "]",
    r"\lvert": "|",
    r"\rvert": "|",
    r"\vert": "|",
    r"\ast": "*",
    r"\colon": ":",
    r"\|": "|",
    r"\degree": r"^\circ",
    r"\textdollar": r"\$",
    r"\measuredangle": r"\angle",
    r"\backslash": r"\setminus",
    "%": r"\%",
    r"\bar": r"\overline",
    r"\overrightarrow": r"\vec",
    r"\lnot": r"\neg",
    r"\bold": r"\mathbf",
    r"\bigcup": r"\cup",
    r"\bigcap": r"\cap",
    r"\&": r"\text{and}",
    r"\wedge": r"\text{and}",
    r"\land": r"\text{and}",
    r"\vee": r"\text{or}",
    r"\lor": r"\text{or}",
}
_LAYOUT = word_set(
    r"\left \right \big \Big \bigl \bigr \Bigl \Bigr \bigg \Bigg \displaystyle \textstyle \scriptstyle"
    r" \limits \quad \qquad"
    r" \enspace \thinspace \, \; \: \! \( \) \[ \] \bf \rm \it \tiny \scriptsize \footnotesize \small"
    r" \normalsize \large \Large"
    r" \LARGE \huge \Huge"
) | {"\\ ", "\\\n"}
_TEXT = word_set(
    r"\text \textrm \textbf \textit \textnormal \textsf \texttt \textup \mbox \hbox \mathrm \mathsf \mathit"
    r" \mathtt \operatorname"
    r" \emph"
)
_WRAPPERS = word_set(r"\mathbf \bm \boldsymbol \mathnormal \underline \boxed \fbox")
UNICODE = str.maketrans(
    {
        "−": "-",
        "–": "-",
        "×": r"\times ",
        "·": r"\cdot ",
        "⋅": r"\cdot ",
        "÷": r"\div ",
        "π": r"\pi ",
        "∞": r"\infty ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "≠": r"\ne ",
        "≈": r"\approx ",
        "∈": r"\in ",
        "∪": r"\cup ",
        "∩": r"\cap ",
        "∅": r"\emptyset ",
        "±": r"\pm ",
        "°": r"^\circ ",
        "√": r"\sqrt ",
        "∠": r"\angle ",
        "θ": r"\theta ",
        "α": r"\alpha ",
        "β": r"\beta ",
        "½": r"\frac{1}{2}",
        "⅓": r"\frac{1}{3}",
        "⅔": r"\frac{2}{3}",
        "¼": r"\frac{1}{4}",
        "¾": r"\frac{3}{4}",
        "²": "^{2}",
        "³": "^{3}",
        "₀": "_{0}",
        "₁": "_{1}",
        "₂": "_{2}",
        "₃": "_{3}",
        "£": r"\pounds ",
        "€": r"\euro ",
        "¥": r"\yen ",
        "¢": r"\cent ",
        "⟨": r"\langle ",
        "⟩": r"\rangle ",
        "\u00a0": " ",
        "\u2009": " ",
        "\u202f": " ",
        "′": "'",
    }
)
"""Characters that look the same as a LaTeX notation. All others that are not ASCII are unreadable."""

_GAP = r"(?:,\\!\s*|\{,\}|\\[,;:]|[~ ])"
_NUMBER = r"[0-9]+(?:\.[0-9]+)?|\.[0-9]+"
_TOKEN = re.compile(
    rf"""(?P<space>\s+|~(?!\s*=))
    |(?P<repeating>[0-9]+\.[0-9]*\\(?:overline|bar|dot)\s*(?:\{{[0-9]+\}}|[0-9]))
    |(?P<literal>{LITERAL}(?![0-9A-Za-z_]|\.[0-9]))
    |(?P<broken>0[xXbBoO][0-9])
    |(?P<mixed>[0-9]+\ +[0-9]+\s*/\s*[0-9]+(?![0-9.]))
    |(?P<grouped>[0-9]{{1,3}}(?:{_GAP}[0-9]{{3}})+(?![0-9])(?:\.[0-9]+)?)
    |(?P<commas>[0-9]{{1,3}}(?:,[0-9]{{3}})+(?![0-9])(?:\.[0-9]+)?)
    |(?P<number>{_NUMBER})
    |(?P<letters>[A-Za-z]+)
    |(?P<environment>\\(?:begin|end|mathbb)\s*\{{[A-Za-z]+\}}(?:\s*\{{[clr|\ ]+\}})?)
    |(?P<command>\\(?:[A-Za-z]+|.))
    |(?P<mark>[-+*/^_()\[\]{{}}|!.,;:=<>&'%?$])""",
    re.VERBOSE | re.DOTALL,
)
_ABOUT = re.compile(r"(?:^|[=<>(\[])\s*~")
"""`~` is a space in LaTeX, but `~5` is how people write about 5."""
_DIGITS = re.compile(r"[0-9.][0-9]*")
_OPENING, _CLOSING = frozenset({"(", "[", r"\{", r"\langle"}), frozenset({")", "]", r"\}", r"\rangle"})


def tokenize(text: str, symbols: Container[str] = ()) -> list[Token]:
    """The tokens of an answer. `symbols`: letters of the gold answer; a bare run of only these is a
    product, not a word.
    """
    text = _rewritten(text)
    if _ABOUT.search(text):
        raise UnreadableError("~ before a value, which means about")
    tokens = _without_idle_braces(list(_Reader(symbols).read(text, in_text=False)))
    if any(before.kind is after.kind is Kind.NUMBER for before, after in pairwise(tokens)):
        raise UnreadableError("two numbers with nothing between them")
    return tokens


_IN_BRACES = {**_ARGUMENTS, "^": 1, "_": 1, r"\overline": 1, r"\vec": 1, "]": 1}
"""Number of arguments in braces after a token. `]` ends the optional argument of a root."""


def _without_idle_braces(tokens: list[Token]) -> list[Token]:
    """The tokens without braces that a reader does not see, around one symbol, one number or one pair of
    parentheses, and that are not an argument: `2 { ( x - 3 ) } ^ { 2 }` is `2 ( x - 3 ) ^ { 2 }`.
    """
    kept: list[Token] = []
    open_braces: list[tuple[int, int]] = []
    """For each open brace, its place in `kept` and the number of arguments up to its own one; 0 if it is
    not an argument.
    """
    arguments = 0
    for token in tokens:
        if token.text == "{":
            previous = kept[-1].text if kept else ""
            open_braces.append((len(kept), _IN_BRACES.get(previous, arguments)))
        arguments = 0
        if token.text == "}" and open_braces:
            start, count = open_braces.pop()
            if count == 0 and _is_one_thing(kept[start + 1 :]):
                del kept[start]
                continue
            arguments = max(count - 1, 0)
        kept.append(token)
    return kept


def _is_one_thing(tokens: list[Token]) -> bool:
    """Whether it is one number, one symbol, or something in parentheses."""
    if len(tokens) == 1:
        return tokens[0].kind in {Kind.NUMBER, Kind.LETTER} or tokens[0].text in GREEK
    depth = 0
    for i, token in enumerate(tokens):
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0:
            return 0 < i == len(tokens) - 1
    return False


_INFIX = {"over": "frac", "choose": "binom"}
_REWRITES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^\s*\*\*([^*]+)\*\*\s*$", r"\1"),  # Markdown's emphasis
        (r"(?<=[0-9A-Za-z)}])\s*\*\*\s*([0-9]+|[A-Za-z](?![A-Za-z])|\([^()]*\))", r"^{\1}"),
        (r"√\s*(?:\(([^()]*)\)|([0-9]+(?:\.[0-9]+)?))", r"\\sqrt{\1\2}"),
        (r"(?<![\\A-Za-z])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\^\s*-\s*([0-9]+)", r"^{-\1}"),  # 10^-5
        (
            r"(?<![0-9A-Za-z.])([0-9]+(?:\.[0-9]+)?)[eE]([+-]?[0-9]+)(?![0-9A-Za-z]|\.[0-9]|\s*\)?_)",
            r"(\1\\times 10^{\2})",
        ),
        (r"\\(?:nice|s)frac(?![A-Za-z])", r"\\frac"),
        (r"(?<=[0-9])\s*\"\s*$", r"\\text{ inches}"),
        (r"(?<![<>=!])<=(?![<>=])", r"\\le "),
        (r"(?<![<>=!])>=(?![<>=])", r"\\ge "),
        (r"(\\\\)\s*\[-?[0-9.]+\s*(?:pt|em|ex|mm|cm)\]", r"\1"),  # the distance between two rows
        (r"\\Pr(?![A-Za-z])", "P"),
        (r"\\mathbb\s*\{([EP])\}(?=\s*(?:\\left\s*)?[(\[])", r"\1"),
        (r"\{:\}", ":"),
    )
)


def _rewritten(text: str) -> str:
    """The text with notations from outside LaTeX (`√2`, `2**10`, `1e6`), and with commands between their
    arguments, in LaTeX.
    """
    if "\\begin" not in text:
        text = re.sub(r"\\\\(?=[A-Za-z])", r"\\", text)  # commands that were escaped twice
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = _ELLIPSIS.sub(_periodic, text).translate(UNICODE)
    text = _REVERSED.sub(lambda match: "[("[match[1] == "]"] + match[2] + "])"[match[3] == "["], text)
    while infix := _INFIX_COMMAND.search(text):
        start, end = _enclosing_braces(text, *infix.span())
        parts = text[start + 1 : infix.start()], text[infix.end() : end - 1]
        first, second = (re.sub(r"^\s*\{([^{}]*)\}\s*$", r"\1", part) for part in parts)
        text = f"{text[:start]}\\{_INFIX[infix[1]]}{{{first}}}{{{second}}}{text[end:]}"
    return text


_REVERSED = re.compile(
    r"(?:^|(?<=\\cup)|(?<=\\in)|(?<==))\s*(?:\\left\s*)?(?!\[[^\[]*\])([\[\]])([^\[\]()]*[,;][^\[\]()]*?)(?:\\right\s*)?(?<!\\)([\[\]])"
)
"""An interval with a bracket that is turned away from it: `]1,2[` is `(1,2)`."""
_ELLIPSIS = re.compile(r"([0-9]+\.)([0-9]+)(?:\.\.\.|…|\\[ld]?dots(?![A-Za-z]))")
_LONGEST_PERIOD = 10


def _periodic(match: re.Match[str]) -> str:
    """`0.1666...` as a repeating decimal, if the last digits are shown three times, or twice for periods of
    several digits.
    """
    digits = match[2]
    for length in range(1, _LONGEST_PERIOD):
        period = digits[-length:]
        if digits.endswith(period * (3 if length == 1 else 2)):
            fixed = digits[:-length]
            while fixed.endswith(period):
                fixed = fixed.removesuffix(period)
            return rf"{match[1]}{fixed}\overline{{{period}}}"
    return match[0]


_INFIX_COMMAND = re.compile(r"\\(over|choose)(?![A-Za-z])")


def _enclosing_braces(text: str, start: int, end: int) -> tuple[int, int]:
    """The start and the end of the innermost braces around a part of the text."""
    starts: list[int] = []
    for match in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        if match[0] == "{":
            starts.append(match.start())
        elif match[0] == "}" and starts:
            opening = starts.pop()
            if opening < start and match.start() >= end:
                return opening, match.end()
    raise UnreadableError("a command between arguments without braces around them")


class _Reader:
    """State of one pass over the text."""

    def __init__(self, symbols: Container[str]) -> None:
        self.symbols = symbols
        self.depth = 0
        """Open brackets. In brackets `1,234` is a pair, outside it is a number."""
        self.arguments = 0
        """Arguments that the last command still expects."""
        self.is_script = False
        """Whether the argument is that of `^` or `_`, which takes a whole number: `x^12` is read like
        `x^{12}`.
        """
        self.after_option = 0
        """Arguments expected after an optional one in brackets, `\\sqrt[3]{2}`."""
        self.braces: list[int] = []
        """For each open brace, the arguments that its command expects after it."""

    def read(self, text: str, in_text: bool) -> Iterator[Token]:
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None or match.lastgroup is None:
                raise UnreadableError(f"the character {text[position]!r}")
            kind, found = match.lastgroup, match[0]
            if kind == "commas" and self.depth:
                kind, found = "number", _DIGITS.match(found)[0]  # type: ignore[index]
            if kind in {"number", "grouped", "commas", "mixed"} and self.arguments:
                kind, found = "number", _DIGITS.match(found)[0] if self.is_script else found[0]  # type: ignore[index]
            if kind == "broken" or (kind == "literal" and self.arguments):
                raise UnreadableError(f"{found}, which begins like a hexadecimal or binary number")
            position += len(found)
            if kind == "command":
                found = _ALIASES.get(found, found)
                if found in _TEXT or found in _WRAPPERS:
                    end = _closing_brace(text, position)
                    yield from self._inner(text[position:end], is_text=found in _TEXT)
                    position = end
                    continue
                if found in _LAYOUT:
                    if found in {r"\left", r"\right"} and text[position : position + 1] == ".":
                        position += 1
                    continue
            yield from self._emit(kind, found, in_text)

    def _inner(self, argument: str, is_text: bool) -> Iterator[Token]:
        content = argument.strip()
        if content.startswith("{"):
            content = content[1:-1]
        expected, self.arguments = self.arguments, 0
        if expected:
            yield Token(Kind.MARK, "{")
        yield from self.read(content, is_text)
        if expected:
            yield Token(Kind.MARK, "}")
        self.arguments = max(expected - 1, 0)

    def _emit(self, kind: str, found: str, in_text: bool) -> Iterator[Token]:
        if kind == "space":
            return
        if kind == "letters":
            yield from self._letters(found, in_text)
        elif kind == "environment":
            yield Token(Kind.COMMAND, re.sub(r"\s|(?<=\})\s*\{.*", "", found))
        elif kind == "command" or found == "%":
            yield from self._command(_ALIASES.get(found, found))
        elif kind == "mark":
            yield from self._mark(found)
        else:
            yield from self._argument(list(_number(kind, found)))

    def _letters(self, found: str, in_text: bool) -> Iterator[Token]:
        command = "\\" + found.lower()
        if command in FUNCTIONS or command in {r"\pi", r"\sqrt"} or found.lower() in {"infinity", "infty"}:
            yield from self._command(r"\infty" if found.lower() in {"infinity", "infty"} else command)
        elif in_text or (
            len(found) > 1 and not self.arguments and not all(letter in self.symbols for letter in found)
        ):
            yield from self._argument([Token(Kind.WORD, found)])
        else:
            for letter in found:
                yield from self._argument([Token(Kind.LETTER, letter)])

    def _command(self, found: str) -> Iterator[Token]:
        if found.startswith("^"):
            yield from self._mark("^")
            found = found[1:]
        if found.startswith(r"\text{"):
            yield Token(Kind.WORD, found[6:-1])
            return
        if len(found) == 1:
            yield from self._mark(found)
            return
        if found not in _COMMANDS and found not in self.symbols:
            raise UnreadableError(f"the command {found}")
        self.depth += (found in _OPENING) - (found in _CLOSING)
        if found in _ARGUMENTS:
            if self.arguments:
                raise UnreadableError(f"{found} as an argument without braces")
            self.arguments, self.is_script = _ARGUMENTS[found], False
            yield Token(Kind.COMMAND, found)
        else:
            yield from self._argument([Token(Kind.COMMAND, found)])

    def _mark(self, found: str) -> Iterator[Token]:
        if found == "$":
            return
        if found == "{":
            self.braces.append(max(self.arguments - 1, 0))
            self.arguments = 0
        elif found == "}":
            self.arguments = self.braces.pop() if self.braces else 0
        elif found == "[" and self.arguments and not self.is_script:
            self.after_option, self.arguments = self.arguments, 0
        elif found == "]" and self.after_option:
            self.after_option, self.arguments = 0, self.after_option
        elif self.arguments:
            raise UnreadableError(f"{found} as an argument without braces")
        elif found in {"^", "_"}:
            self.arguments, self.is_script = 1, True
        self.depth += (found in _OPENING) - (found in _CLOSING)
        yield Token(Kind.MARK, found)

    def _argument(self, tokens: list[Token]) -> Iterator[Token]:
        """A complete argument, in braces if a command expects one."""
        if self.arguments:
            self.arguments -= 1
            tokens = [Token(Kind.MARK, "{"), *tokens, Token(Kind.MARK, "}")]
        yield from tokens


def _number(kind: str, found: str) -> Iterator[Token]:
    """A number without separators. A mixed number is a number before a fraction; a repeating decimal is a
    fraction. A literal such as `0x1F` stays one, so that a base after it cannot be taken for the base of
    its value.
    """
    if kind == "repeating":
        whole, rest = found.split(".")
        fixed, repeated = re.match(r"([0-9]*)\\[a-z]+\s*\{?([0-9]+)\}?", rest).groups()  # type: ignore[union-attr]
        period, scale = 10 ** len(repeated) - 1, 10 ** len(fixed)
        yield from _fraction(int(whole + fixed) * period + int(repeated), scale * period)
    elif kind == "literal":
        yield Token(Kind.NUMBER, found.lower())
    elif kind == "mixed":
        whole, numerator, denominator = re.findall("[0-9]+", found)
        yield Token(Kind.NUMBER, whole)
        yield from _fraction(int(numerator), int(denominator))
    else:
        digits = re.sub(r"[^0-9.]", "", found)
        yield Token(Kind.NUMBER, "0" + digits if digits.startswith(".") else digits)


def _fraction(numerator: int, denominator: int) -> Iterator[Token]:
    yield Token(Kind.COMMAND, r"\frac")
    for part in (numerator, denominator):
        yield from (Token(Kind.MARK, "{"), Token(Kind.NUMBER, str(part)), Token(Kind.MARK, "}"))


def _closing_brace(text: str, start: int) -> int:
    """The end of the argument in braces that begins at `start`."""
    depth = 0
    for match in re.compile(r"\\.|[{}]|\S", re.DOTALL).finditer(text, start):
        depth += (match[0] == "{") - (match[0] == "}")
        if depth == 0:
            if match[0] == "}":
                return match.end()
            break
    raise UnreadableError("a command without its argument in braces")
