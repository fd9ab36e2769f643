"""Read an answer's structure: a list of statements, each a chain of equalities between names and values.

Values are expressions, groups in brackets, matrices, set expressions, inequalities or words. What is not
clearly one of these raises `UnreadableError`. `lark.grading.strict.equality` compares the result.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from lark.grading.strict import labels
from lark.grading.strict.expressions import Expression, Tokens, letters, read_base, source
from lark.grading.strict.lexer import GREEK, RELATIONS, Kind, Token, UnreadableError

_OPENING, _CLOSING = (
    frozenset({"(", "[", "{", r"\{", r"\langle"}),
    frozenset({")", "]", "}", r"\}", r"\rangle"}),
)
_JOINTS = frozenset({",", ";", "and", "or"})
_EQUALS = frozenset({"=", r"\approx", r"\in"})
_SET_OPERATORS = frozenset({r"\cup", r"\cap", r"\setminus"})
_ENVIRONMENTS = frozenset({"matrix}", "pmatrix}", "bmatrix}", "array}", "smallmatrix}"})
_ANGLES = frozenset({r"\sin", r"\cos", r"\tan", r"\cot", r"\sec", r"\csc"})


@dataclass(frozen=True)
class Words:
    """An answer in words: `\\text{Evelyn}`. Brackets and the final period are dropped, upper and lower case
    are equal.
    """

    words: tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """Values in brackets: a tuple, an interval, a set, or a ratio (`:`, closed by `to` if it is in words)."""

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


Value = Expression | Words | Group | Matrix | SetExpression | Inequality


@dataclass(frozen=True)
class Statement:
    """`name = value = value`. There is at least one value."""

    names: tuple[Tokens, ...]
    values: tuple[Value, ...]
    rounded: tuple[Expression, ...] = ()
    """Values after `\\approx`."""
    members: tuple[Tokens, ...] = ()
    """Both sides of an equation."""
    units: tuple[labels.Unit | None, ...] = ()
    """The units of the values and then of the rounded values."""

    @property
    def quantities(self) -> tuple[tuple[Value, labels.Unit | None], ...]:
        """The values with their units."""
        return tuple(zip(self.values, self.units[: len(self.values)], strict=True))


@dataclass(frozen=True)
class Answer:
    """Statements, and what joins them: commas, semicolons, `and`, `or`."""

    statements: tuple[Statement, ...]
    joints: frozenset[str] = frozenset()


def flat_words(tokens: Tokens) -> tuple[str, ...]:
    """The tokens as lower-case words, without brackets, an article at the start and a period at the end."""
    texts = [token.text.lower() for token in tokens if token.text not in {"(", ")", "{", "}"}]
    start = len(texts) > 1 and texts[0] in {"the", "a", "an"}
    words = tuple(texts[start:-1] if texts[-1:] == ["."] else texts[start:])
    return ("does", "not", "exist") if words == ("dne",) else words


def _is_equation_with_comma(tokens: Tokens) -> bool:
    """Whether this is one equation and the comma that a sentence would have after it: `x=5,`. After a bare
    value, a comma is a list with a missing item.
    """
    texts = [token.text for token in tokens]
    return (
        texts[-1] == ","
        and texts.count("=") == 1
        and texts[0] != "="
        and texts[-2] != "="
        and not _JOINTS & set(texts[:-1])
    )


def read_answer(tokens: Tokens, symbols: frozenset[str], is_gold: bool = False) -> Answer:
    """The structure of an answer. `symbols`: the letters of the gold answer's value, which are not names in
    a prediction.

    In a gold answer (`is_gold`) any words after a value are its unit.
    """
    return _Parser(symbols, is_gold).answer(tokens)


@dataclass(frozen=True)
class _Parser:
    symbols: frozenset[str]
    is_gold: bool

    def answer(self, tokens: Tokens) -> Answer:
        tokens = _without_outer_brackets(_without_opening(tokens), only="{")
        if len(tokens) > 1 and (tokens[-1].text == "." or _is_equation_with_comma(tokens)):
            tokens = tokens[:-1]
        parts, joints = _split(tokens, _JOINTS)
        doubled = {i + 1 for i, pair in enumerate(pairwise(joints)) if pair in {(",", "and"), (",", "or")}}
        if any(not part and i not in doubled for i, part in enumerate(parts)):
            raise UnreadableError("nothing between two separators")
        return Answer(tuple(self.statement(part) for part in parts if part), frozenset(joints))

    def statement(self, tokens: Tokens) -> Statement:
        if _split(tokens, RELATIONS)[1]:
            tokens, unit = self._without_unit(tokens)
            return Statement((), (_inequality(tokens),), units=(unit,))
        parts, signs = _split(tokens, _EQUALS)
        # A sign at the beginning (`= 5`, `\approx 5`) belongs to the only value.
        parts, signs = (parts[1:], signs) if len(parts) == 2 and not parts[0] else (parts, ["=", *signs])
        if not all(parts):
            raise UnreadableError("nothing on one side of an equation")
        names: list[Tokens] = []
        values: list[tuple[Value, labels.Unit | None]] = []
        rounded: list[tuple[Expression, labels.Unit | None]] = []
        for i, (sign, part) in enumerate(zip(signs, parts, strict=True)):
            others = letters([token for other in (*parts[:i], *parts[i + 1 :]) for token in other])
            if (
                len(parts) > 1
                and sign == "="
                and (self._is_name(part, others) or _is_matrix_name(part, parts))
            ):
                names.append(part)
                continue
            if sign == r"\in" and not (i == len(names) == 1 and len(parts) == 2):
                raise UnreadableError("an element that is not a name")
            tokens, unit = self._without_unit(_without_outer_brackets(part))
            value = self.value(tokens)
            if sign == r"\approx":
                if not isinstance(value, Expression):
                    raise UnreadableError("an approximation that is not a number")
                rounded.append((value, unit))
            else:
                values.append((value, unit))
        if not values and not rounded:
            raise UnreadableError("no value")
        members = tuple(parts) if signs == ["=", "="] else ()
        units = tuple(unit for _, unit in (*values, *rounded))
        return Statement(
            tuple(names), tuple(v for v, _ in values), tuple(r for r, _ in rounded), members, units
        )

    def value(self, tokens: Tokens) -> Value:
        tokens = _without_outer_brackets(tokens)
        if not tokens:
            raise UnreadableError("no value")
        parts, operators = _split(tokens, _SET_OPERATORS)
        if operators:
            first, *rest = (self.value(part) for part in parts)
            return SetExpression(first, tuple(zip(operators, rest, strict=True)))
        if any(token.text.startswith(r"\begin") for token in tokens):
            return _matrix(tokens)
        if not self.is_gold and _is_named_point(tokens) and tokens[0].text not in self.symbols:
            tokens = tokens[1:]
        if tokens[0].text in _OPENING and _end_of_group(tokens) == len(tokens) - 1:
            return self._comprehension(tokens) or self._group(tokens)
        parts, colons = _split(tokens, frozenset({":", "to"}))
        if len(set(colons)) == 1 and all(parts):
            return Group(":", tuple(self.statement(part) for part in parts), colons[0])
        words = [token.text for token in tokens if token.kind is Kind.WORD]
        is_wordy = any(len(word) > 1 for word in words) or (self.is_gold and len(words) == len(tokens))
        if is_wordy and read_base(tokens) is None:
            return Words(flat_words(tokens))
        return Expression(tuple(map(_as_letter, tokens)))

    def _group(self, tokens: Tokens) -> Group:
        parts, _ = _split(tokens[1:-1], frozenset({",", ";"}))
        items = () if parts == [()] else tuple(self.statement(part) for part in parts)
        return Group(tokens[0].text, items, tokens[-1].text)

    def _comprehension(self, tokens: Tokens) -> Value | None:
        """The inequalities in `\\{x \\mid x > 1\\}`; None for other groups."""
        parts, marks = _split(tokens[1:-1], frozenset({r"\mid", "|", ":"}))
        if tokens[0].text != r"\{" or len(marks) != 1 or source(parts[0][1:]) not in {"", r"\in \mathbb{R}"}:
            return None
        condition = self.answer(parts[1])
        values = [value for statement in condition.statements for value in statement.values]
        symbols = [
            member.letters for value in values if isinstance(value, Inequality) for member in value.members
        ]
        if len(values) != len(condition.statements) or not all(
            isinstance(value, Inequality) for value in values
        ):
            return None
        if (
            not parts[0]
            or frozenset[str]().union(*symbols) != letters(parts[0][:1])
            or len(condition.joints) > 1
        ):
            return None
        operator = r"\cup" if "or" in condition.joints else r"\cap"
        return (
            SetExpression(values[0], tuple((operator, value) for value in values[1:]))
            if values[1:]
            else values[0]
        )

    def _is_name(self, tokens: Tokens, others: frozenset[str]) -> bool:
        """Whether a side of an equation only names the quantity: `x_1`, `f(2)`, `AB`, `m+n`,
        `\\text{Area}`.
        """
        words = [token.text for token in tokens if token.kind is Kind.WORD]
        if len(words) == len(tokens) and (len(words) > 1 or len(words[0]) > 1):
            return (len(tokens) == 1 and words[0].islower() and _is_product(tokens[0])) or _is_word_name(
                words
            )
        tokens = tuple(map(_as_letter, tokens))
        if _NAME.fullmatch(source(tokens)) or (not self.is_gold and _ANGLE_NAME.fullmatch(source(tokens))):
            head = next(
                (token.text for token in tokens if token.kind is Kind.LETTER or token.text in GREEK), ""
            )
            return self.is_gold or (head not in self.symbols | others and _is_plain_name(tokens))
        return not self.is_gold and _is_formula_name(tokens) and not letters(tokens) & (self.symbols | others)

    def _without_unit(self, tokens: Tokens) -> tuple[Tokens, labels.Unit | None]:
        """A value without its unit, and the unit."""
        tokens = _with_unit_in_a_row(tokens)
        texts = tuple(token.text for token in tokens)
        for marks, sign in _MARKS.items():
            if len(texts) > len(marks) and texts[-len(marks) :] == marks and not _ANGLES & set(texts):
                return tokens[: -len(marks)], sign
        if len(texts) > 1 and texts[0] in _BEFORE_VALUE:
            return self._without_words(tokens[1:], _BEFORE_VALUE[texts[0]])
        return self._without_words(tokens, None)

    def _without_words(self, tokens: Tokens, sign: labels.Unit | None) -> tuple[Tokens, labels.Unit | None]:
        """A value without the unit in words after it, and the unit. `sign`: the sign of a unit before the
        value.
        """
        start = next((i for i, token in enumerate(tokens) if token.kind is Kind.WORD), 0)
        texts = tuple(token.text for token in tokens)
        if start > 1 and texts[start - 1] == "." and tokens[start - 2].kind is Kind.NUMBER:  # `5. cm`
            tokens, start = (*tokens[: start - 1], *tokens[start:]), start - 1
        if start > 1 and texts[start - 1] == "/" and sign:  # `\\$5/\\text{hour}`
            start -= 1
        found = _UNIT.fullmatch(
            " ".join("w" if token.kind is Kind.WORD else token.text for token in tokens[start:])
        )
        if start == 0 or found is None or not _ends_like_a_value(tokens[start - 1]):
            return tokens, sign
        words, powers = _words_and_powers(tokens[start:])
        is_rate = words[0] == "per" and (sign is not None or tokens[start - 1].text in {r"\%", r"\$"})
        unit = labels.unit(["", *words], [1, *powers]) if is_rate else labels.unit(words, powers)
        if words[0] in self.symbols or (len(words[0]) == 1 and not labels.is_unit(words, True)):
            return tokens, sign
        is_singular = bool(_SINGULAR.fullmatch(source(tokens[:start])))
        if labels.counts(words) or not (
            self.is_gold or labels.is_unit(["units", *words] if is_rate else words, is_singular)
        ):
            return tokens, sign
        value, before = self._without_unit(tokens[:start])
        return value, labels.joined(sign or before, unit)


_MARKS: dict[tuple[str, ...], labels.Unit] = {
    (r"\%",): labels.PERCENT, ("^", "{", r"\circ", "}"): labels.DEGREE, (r"\cent",): (("cent", 1),),
    ("^", "{", r"\circ", "}", "C"): labels.CELSIUS, ("^", "{", r"\circ", "}", "F"): labels.FAHRENHEIT,
}  # fmt: skip
_BEFORE_VALUE: dict[str, labels.Unit] = {
    r"\$": (("dollar", 1),), r"\pounds": (("lb", 1),), r"\euro": (("euro", 1),), r"\yen": (("yen", 1),)
}  # fmt: skip
_MARKS |= {(sign,): unit for sign, unit in _BEFORE_VALUE.items()}
_LETTER = (
    rf"(?:[A-Za-z]|\\(?:{'|'.join(sorted(name[1:] for name in GREEK))}))(?: _ \{{ [^{{}}=]{{1,30}}"
    r" \})?(?: ')*"
)
_POINTS = r"(?:[A-Z]{1,4}|[A-Z](?: [A-Z]){1,3})"
_NAME = re.compile(
    rf"{_LETTER}(?: \( (?:[^()=]|\( [^()=]{{1,30}} \)){{1,30}} \)| \[ [^\[\]=]{{1,30}} \])?|(?:m"
    rf" )?\\(?:angle|triangle) {_POINTS}"
    rf"|\| (?:{_POINTS}|[zwuv]) \||\[ {_POINTS} \]"
    rf"|\\(?:overline|vec) \{{ (?:{_POINTS}|[a-z]) \}}|{_POINTS}|\( {_LETTER}(?: , {_LETTER})+ \)"
    r"|(?:[A-Za-z] \^ \{ - 1 \}|\( [A-Za-z](?: \\circ [A-Za-z])+ \)) \( [^()=]{1,30} \)|P \( [A-Z] ="
    r" [0-9]+ \)"
    r"|\\frac \{ d ?[a-z] \} \{ d ?[a-z] \}"
)
_ANGLE_NAME = re.compile(
    rf"\\(?:sin|cos|tan|cot|sec|csc)(?: \^ \{{ 2 \}})? (?P<open>[({{] )?(?:[0-9] )?(?:{_LETTER}|\\angle"
    rf" {_POINTS})(?(open) [)}}])"
)
"""The sine of an angle in a prediction. In a gold answer it is an equation for the angle."""
_MATRIX_NAME = re.compile(r"[A-Z] \^ \{ (?:- 1|[0-9]+|T) \}")
_UNIT = re.compile(r"(?:/ )?w(?: (?:w|\.|/ w|\\cdot w|- w|\^ \{ (?:- )?[1-4] \}))*")
_SINGULAR = re.compile(r"(?:- )?(?:1(?:\.0*)?|0?\.[0-9]+|\\frac \{ [0-9]+ \} \{ [0-9]+ \}|[0-9]+ / [0-9]+)")
_IN_FORMULA = frozenset(
    {
        "+",
        "-",
        "/",
        ":",
        "(",
        ")",
        "|",
        "{",
        "}",
        r"\frac",
        r"\cdot",
        r"\times",
        r"\sqrt",
        r"\vec",
        r"\overline",
        "^",
        "_",
    }
)


def _with_unit_in_a_row(tokens: Tokens) -> Tokens:
    """`60\\frac{\\text{mi}}{\\text{hr}}` as `60 \\text{ mi} / \\text{hr}`."""
    texts = " ".join("w" if token.kind is Kind.WORD else token.text for token in tokens)
    if len(tokens) < 8 or not texts.endswith(r"\frac { w } { w }"):
        return tokens
    return (*tokens[:-7], tokens[-5], Token(Kind.MARK, "/"), tokens[-2])


def _words_and_powers(tokens: Tokens) -> tuple[list[str], list[int]]:
    """The words of a unit, with `per` for `/`, and the power of each."""
    words: list[str] = []
    powers: list[int] = []
    for i, token in enumerate(tokens):
        if token.kind is Kind.WORD and words and (power := labels.power(token.text, words[-1])):
            powers[-1] = power
        elif token.kind is Kind.WORD or token.text == "/":
            words.append("per" if token.text == "/" else token.text)
            powers.append(1)
        elif token.kind is Kind.NUMBER:
            powers[-1] = -int(token.text) if tokens[i - 1].text == "-" else int(token.text)
    if words[:2] == ["per", "cent"]:
        words, powers = ["percent", *words[2:]], powers[1:]
    return words, powers


def _is_word_name(words: list[str]) -> bool:
    if len(words) == 1 and len(words[0]) <= 4 and words[0].isupper():
        return labels.is_point_name(words[0], in_figure=False)
    return labels.is_quantity(words)


def _is_plain_name(tokens: Tokens) -> bool:
    """Whether the words in a name do not deny it: not `x_{\\text{wrong}}`, `f(\\text{not})` or `\\angle
    NOT`.
    """
    texts = [token.text for token in tokens]
    words = [token.text for token in tokens if token.kind is Kind.WORD]
    if texts[:2] in (["P", "("], ["E", "("], ["N", "("]) and words:
        return labels.is_event([text for text in texts[2:] if text.isalpha()])
    runs = "".join(text if text.isalpha() else " " for text in texts).split()
    points = [run for run in runs if run.isupper()]
    others = [word for word in (*runs, *words) if len(word) > 1 and not word.isupper()]
    return labels.is_plain(others) and all(
        len(run) < 2 or labels.is_point_name(run, in_figure=True) for run in points
    )


def _is_product(token: Token) -> bool:
    """Whether bare letters can be a product: neighbours in the alphabet (`ab`, `xyz`) that are not a word."""
    return token.text not in {"hi", "no", "def"} and all(
        ord(b) - ord(a) == 1 for a, b in pairwise(token.text)
    )


def _is_matrix_name(tokens: Tokens, members: Sequence[Tokens]) -> bool:
    """Whether it is a power of a matrix, in an equation with a matrix: `A^{-1} = \\begin{pmatrix}…`."""
    has_matrix = any(token.text.startswith(r"\begin") for member in members for token in member)
    return has_matrix and _MATRIX_NAME.fullmatch(source(tokens)) is not None


def _is_formula_name(tokens: Tokens) -> bool:
    """Whether it is a formula of at least two symbols or lengths and no numbers but powers and
    coefficients, such as `m+n` or `100m+n`, which AIME asks for, or `\\frac{AB}{BC}`.
    """
    symbols: set[str] = set()
    for i, token in enumerate(tokens):
        if token.kind is Kind.LETTER or token.text in GREEK:
            is_indexed = tokens[i + 1 : i + 2] == (Token(Kind.MARK, "_"),)
            symbols.add(source(tokens[i : i + 4]) if is_indexed else token.text)
        elif token.kind is Kind.WORD and token.text.islower() and _is_product(token):
            symbols.update(token.text)
        elif (
            token.kind is Kind.WORD
            and re.fullmatch("[A-Z]{2}", token.text)
            and labels.is_point_name(token.text, False)
        ):
            symbols.add(token.text)
        elif token.text not in _IN_FORMULA and not _is_power_or_coefficient(tokens, i):
            return False
    return len(symbols) > 1


def _is_power_or_coefficient(tokens: Tokens, place: int) -> bool:
    before = "" if place == 0 else tokens[place - 1].text
    is_power = place > 1 and tokens[place - 2].text in {"^", "_"}
    has_symbol = len(tokens) > place + 1 and tokens[place + 1].kind is Kind.LETTER
    is_coefficient = before in {"", "+", "-", "("} and has_symbol and tokens[place].text.strip("0.") != ""
    return tokens[place].kind is Kind.NUMBER and (is_power or is_coefficient)


def _is_named_point(tokens: Tokens) -> bool:
    """Whether it is a capital letter and coordinates: `P(1,2)`."""
    if (
        len(tokens) < 6
        or tokens[0].kind is not Kind.LETTER
        or not tokens[0].text.isupper()
        or tokens[1].text != "("
    ):
        return False
    return _end_of_group(tokens[1:]) == len(tokens) - 2 and len(_split(tokens[2:-1], frozenset(",;"))[0]) > 1


def _ends_like_a_value(token: Token) -> bool:
    return token.kind in {Kind.NUMBER, Kind.LETTER} or token.text in {
        ")",
        "]",
        "}",
        r"\}",
        r"\pi",
        r"\%",
        r"\$",
        r"\cent",
        "!",
    }


def _as_letter(token: Token) -> Token:
    return Token(Kind.LETTER, token.text) if token.kind is Kind.WORD and len(token.text) == 1 else token


def _without_opening(tokens: Tokens) -> Tokens:
    """The tokens without `\\text{The answer is }`, `Answer:` or `Area:` at the beginning."""
    first = next((i for i, token in enumerate(tokens) if token.kind is not Kind.WORD), len(tokens))
    words = [token.text for token in tokens[:first]]
    count = labels.opening_length(words)
    if (
        0 < first < len(tokens)
        and (tokens[first].text == ":" or words[-1].lower() in {"is", "are"})
        and labels.is_name(words)
    ):
        count = first
    if count in {0, len(tokens)} or tokens[count].text == "=":
        return tokens
    return tokens[count + 1 :] if tokens[count].text == ":" else tokens[count:]


def _split(tokens: Tokens, separators: frozenset[str]) -> tuple[list[Tokens], list[str]]:
    """The parts between the separators that are not in brackets or matrices, and the separators."""
    parts: list[list[Token]] = [[]]
    found: list[str] = []
    depth = 0
    for token in tokens:
        depth += token.text in _OPENING or token.text.startswith(r"\begin")
        depth -= token.text in _CLOSING or token.text.startswith(r"\end")
        if depth < 0:
            raise UnreadableError("a closing bracket without an opening one")
        text = token.text.lower() if token.kind is Kind.WORD else token.text
        if depth == 0 and text in separators:
            found.append(text)
            parts.append([])
        else:
            parts[-1].append(token)
    if depth:
        raise UnreadableError("a bracket that is not closed")
    return [tuple(part) for part in parts], found


def _end_of_group(tokens: Tokens) -> int:
    """The index of the bracket that closes the first one."""
    depth = 0
    for i, token in enumerate(tokens):
        depth += (token.text in _OPENING) - (token.text in _CLOSING)
        if depth == 0:
            return i
    raise UnreadableError("a bracket that is not closed")


def _without_outer_brackets(tokens: Tokens, only: str = "({") -> Tokens:
    """`(5)` and `{5}` are 5. A pair keeps its brackets."""
    while len(tokens) > 2 and tokens[0].text in set(only) and _end_of_group(tokens) == len(tokens) - 1:
        is_pair = tokens[0].text == "(" and len(_split(tokens[1:-1], frozenset(",;"))[0]) > 1
        if is_pair or tokens[-1].text != {"(": ")", "{": "}"}[tokens[0].text]:
            break
        tokens = tokens[1:-1]
    return tokens


def _inequality(tokens: Tokens) -> Inequality:
    parts, relations = _split(tokens, RELATIONS)
    return Inequality(tuple(Expression(tuple(map(_as_letter, part))) for part in parts), tuple(relations))


def _matrix(tokens: Tokens) -> Matrix:
    marks = [i for i, token in enumerate(tokens) if token.text.startswith((r"\begin", r"\end"))]
    start, end = marks if len(marks) == 2 else (0, 0)
    kinds = {tokens[i].text.partition("{")[2] for i in (start, end)}
    factor, after = tokens[:start], source(tokens[end + 1 :])
    if after and factor and factor[-1].text + after in {"()", "[]"}:
        factor, after = factor[:-1], ""
    if len(kinds) != 1 or not kinds <= _ENVIRONMENTS or after:
        raise UnreadableError("an environment that is not a single matrix")
    rows = [
        _split(row, frozenset({"&"}))[0]
        for row in _split(tokens[start + 1 : end], frozenset({r"\\"}))[0]
        if row
    ]
    return Matrix(tuple(tuple(Expression(_product(factor, cell)) for cell in row) for row in rows))


def _product(factor: Tokens, cell: Tokens) -> Tokens:
    """A cell of a matrix times the factor before the matrix."""
    if factor[-1:] in ((Token(Kind.COMMAND, r"\cdot"),), (Token(Kind.COMMAND, r"\times"),)):
        factor = factor[:-1]
    if not factor or not cell:
        return cell
    factor = (*factor, Token(Kind.NUMBER, "1")) if source(factor) == "-" else factor
    opening, closing = Token(Kind.MARK, "("), Token(Kind.MARK, ")")
    return (opening, *factor, closing, Token(Kind.COMMAND, r"\cdot"), opening, *cell, closing)
