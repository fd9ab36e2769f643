"""Read an answer's structure: a list of statements, each a chain of equalities between names and values.

Values are expressions, groups in brackets, matrices, set expressions, inequalities or words. What is not clearly one of these
raises `UnreadableError`. `lark.grading.equality` compares the result.
"""

import re
from dataclasses import dataclass
from itertools import pairwise

from lark.grading import labels
from lark.grading.expressions import Expression, Tokens, letters, read_base, source
from lark.grading.lexer import GREEK, RELATIONS, Kind, Token, UnreadableError

_OPENING, _CLOSING = frozenset({"(", "[", "{", r"\{"}), frozenset({")", "]", "}", r"\}"})
_JOINTS = frozenset({",", ";", "and", "or"})
_EQUALS = frozenset({"=", r"\approx", r"\in"})
_SET_OPERATORS = frozenset({r"\cup", r"\cap", r"\setminus"})
_ENVIRONMENTS = frozenset({"matrix}", "pmatrix}", "bmatrix}", "array}"})
_ANGLES = frozenset({r"\sin", r"\cos", r"\tan", r"\cot", r"\sec", r"\csc"})


@dataclass(frozen=True)
class Words:
    """An answer in words: `\\text{Evelyn}`. Brackets and the final period are dropped, upper and lower case are equal."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """Values in brackets: a tuple, an interval, a set, or a ratio (`:`)."""

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
    measure: labels.Measure | None = None


@dataclass(frozen=True)
class Answer:
    """Statements, and what joins them: commas, semicolons, `and`, `or`."""

    statements: tuple[Statement, ...]
    joints: frozenset[str] = frozenset()


def flat_words(tokens: Tokens) -> tuple[str, ...]:
    """The tokens as lower-case words, without brackets, an article at the start and a period at the end."""
    texts = [token.text.lower() for token in tokens if token.text not in {"(", ")", "{", "}"}]
    start = len(texts) > 1 and texts[0] in {"the", "a", "an"}
    return tuple(texts[start:-1] if texts[-1:] == ["."] else texts[start:])


def _is_equation_with_comma(tokens: Tokens) -> bool:
    """Whether this is one equation and the comma that a sentence would have after it: `x=5,`. After a bare value, a comma is a list
    with a missing item."""
    texts = [token.text for token in tokens]
    return texts[-1] == "," and texts.count("=") == 1 and texts[0] != "=" and texts[-2] != "=" and not _JOINTS & set(texts[:-1])


def read_answer(tokens: Tokens, symbols: frozenset[str], is_gold: bool = False) -> Answer:
    """The structure of an answer. `symbols`: the letters of the gold answer's value, which are not names in a prediction.

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
            tokens, measure = self._without_unit(tokens)
            return Statement((), (_inequality(tokens),), measure=measure)
        parts, signs = _split(tokens, _EQUALS)
        # A sign at the beginning (`= 5`, `\approx 5`) belongs to the only value.
        parts, signs = (parts[1:], signs) if len(parts) == 2 and not parts[0] else (parts, ["=", *signs])
        if not all(parts):
            raise UnreadableError("nothing on one side of an equation")
        names, values, rounded, measures = [], [], [], []
        for i, (sign, part) in enumerate(zip(signs, parts, strict=True)):
            others = letters([token for other in (*parts[:i], *parts[i + 1 :]) for token in other])
            if len(parts) > 1 and sign == "=" and self._is_name(part, others):
                names.append(part)
                continue
            if sign == r"\in" and not (i == len(names) == 1 and len(parts) == 2):
                raise UnreadableError("an element that is not a name")
            tokens, measure = self._without_unit(_without_outer_brackets(part))
            measures.append(measure)
            value = self.value(tokens)
            if sign == r"\approx":
                if not isinstance(value, Expression):
                    raise UnreadableError("an approximation that is not a number")
                rounded.append(value)
            else:
                values.append(value)
        if not values and not rounded:
            raise UnreadableError("no value")
        members = tuple(parts) if signs == ["=", "="] else ()
        return Statement(tuple(names), tuple(values), tuple(rounded), members, next(filter(None, measures), None))

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
        if tokens[0].text in _OPENING and _end_of_group(tokens) == len(tokens) - 1:
            parts, _ = _split(tokens[1:-1], frozenset({",", ";"}))
            items = () if parts == [()] else tuple(self.statement(part) for part in parts)
            return Group(tokens[0].text, items, tokens[-1].text)
        parts, colons = _split(tokens, frozenset({":"}))
        if colons:
            return Group(":", tuple(self.statement(part) for part in parts), ":")
        words = [token.text for token in tokens if token.kind is Kind.WORD]
        is_wordy = any(len(word) > 1 for word in words) or (self.is_gold and len(words) == len(tokens))
        if is_wordy and read_base(tokens) is None:
            return Words(flat_words(tokens))
        return Expression(tuple(map(_as_letter, tokens)))

    def _is_name(self, tokens: Tokens, others: frozenset[str]) -> bool:
        """Whether a side of an equation only names the quantity: `x_1`, `f(2)`, `AB`, `m+n`, `\\text{Area}`."""
        words = [token.text for token in tokens if token.kind is Kind.WORD]
        if len(words) == len(tokens) and (len(words) > 1 or len(words[0]) > 1):
            return _is_product(tokens[0]) if len(tokens) == 1 and words[0].islower() else _is_word_name(words)
        tokens = tuple(map(_as_letter, tokens))
        if _NAME.fullmatch(source(tokens)):
            head = next((token.text for token in tokens if token.kind is Kind.LETTER or token.text in GREEK), "")
            return self.is_gold or head not in self.symbols | others
        return not self.is_gold and _is_formula_name(tokens) and not letters(tokens) & (self.symbols | others)

    def _without_unit(self, tokens: Tokens) -> tuple[Tokens, labels.Measure | None]:
        """A value without its unit, and the unit's measure."""
        texts = tuple(token.text for token in tokens)
        for marks, sign in _MARKS.items():
            if len(texts) > len(marks) and texts[-len(marks) :] == marks and not _ANGLES & set(texts):
                return tokens[: -len(marks)], sign
        if len(texts) > 1 and texts[0] == r"\$":
            return self._without_unit(tokens[1:])[0], ("dollar", 1)
        start = next((i for i, token in enumerate(tokens) if token.kind is Kind.WORD), 0)
        if start > 1 and texts[start - 1] == "." and tokens[start - 2].kind is Kind.NUMBER:  # `5. cm`
            tokens, start = (*tokens[: start - 1], *tokens[start:]), start - 1
        words = ["per" if t.text == "/" else t.text for t in tokens[start:] if t.kind is Kind.WORD or t.text == "/"]
        unit = _UNIT.fullmatch(" ".join("w" if token.kind is Kind.WORD else token.text for token in tokens[start:]))
        if start == 0 or unit is None or not _ends_like_a_value(tokens[start - 1]):
            return tokens, None
        if words[0] in self.symbols or (len(words[0]) == 1 and labels.measure(words) is None):
            return tokens, None
        if not self.is_gold and not labels.is_unit(words, bool(_SINGULAR.fullmatch(source(tokens[:start])))):
            return tokens, None
        value, measure = self._without_unit(tokens[:start])
        return value, measure or labels.measure(words, int(unit["power"] or 1))


_MARKS: dict[tuple[str, ...], labels.Measure] = {
    (r"\%",): ("percent", 1), (r"\$",): ("dollar", 1), ("^", "{", r"\circ", "}"): ("degree", 1)
}  # fmt: skip
_LETTER = rf"(?:[A-Za-z]|\\(?:{'|'.join(sorted(name[1:] for name in GREEK))}))(?: _ \{{ [^{{}}=]{{1,30}} \}})?(?: ')*"
_POINTS = r"(?:[A-Z]{1,4}|[A-Z](?: [A-Z]){1,3})"
_NAME = re.compile(
    rf"{_LETTER}(?: \( (?:[^()=]|\( [^()=]{{1,30}} \)){{1,30}} \)| \[ [^\[\]=]{{1,30}} \])?|(?:m )?\\(?:angle|triangle) {_POINTS}"
    rf"|\| (?:{_POINTS}|[zwuv]) \||\[ {_POINTS} \]"
    rf"|\\(?:overline|vec) \{{ (?:{_POINTS}|[a-z]) \}}|{_POINTS}|\( {_LETTER}(?: , {_LETTER})+ \)"
)
_UNIT = re.compile(r"w(?: (?:w|\.|/ w|\\cdot w|- w))*(?: \^ \{ (?P<power>[123]) \}(?: / w| w)*)?(?: \.)?")
_SINGULAR = re.compile(r"(?:- )?(?:1(?:\.0*)?|0?\.[0-9]+|\\frac \{ [0-9]+ \} \{ [0-9]+ \}|[0-9]+ / [0-9]+)")
_IN_FORMULA = frozenset({"+", "-", "/", "(", ")", "|", "{", "}", r"\frac", r"\cdot", r"\times", r"\sqrt", "^", "_"})


def _is_word_name(words: list[str]) -> bool:
    return (len(words) == 1 and len(words[0]) <= 4 and words[0].isupper()) or labels.is_quantity(words)


def _is_product(token: Token) -> bool:
    """Whether bare letters can be a product: neighbours in the alphabet (`ab`, `xyz`) that are not a word."""
    return token.text not in {"hi", "no", "def"} and all(ord(b) - ord(a) == 1 for a, b in pairwise(token.text))


def _is_formula_name(tokens: Tokens) -> bool:
    """Whether it is a formula of at least two symbols and no numbers but powers, such as `m+n`, which AIME asks for."""
    symbols: set[str] = set()
    for i, token in enumerate(tokens):
        if token.kind is Kind.LETTER or token.text in GREEK:
            is_indexed = tokens[i + 1 : i + 2] == (Token(Kind.MARK, "_"),)
            symbols.add(source(tokens[i : i + 4]) if is_indexed else token.text)
        elif token.kind is Kind.WORD and token.text.islower() and _is_product(token):
            symbols.update(token.text)
        elif token.text not in _IN_FORMULA and not (token.kind is Kind.NUMBER and i > 1 and tokens[i - 2].text in {"^", "_"}):
            return False
    return len(symbols) > 1


def _ends_like_a_value(token: Token) -> bool:
    return token.kind in {Kind.NUMBER, Kind.LETTER} or token.text in {")", "]", "}", r"\}", r"\pi", r"\%", r"\$", "!"}


def _as_letter(token: Token) -> Token:
    return Token(Kind.LETTER, token.text) if token.kind is Kind.WORD and len(token.text) == 1 else token


def _without_opening(tokens: Tokens) -> Tokens:
    """The tokens without `\\text{The answer is }` or `Answer:` at the beginning."""
    words = next((i for i, token in enumerate(tokens) if token.kind is not Kind.WORD), len(tokens))
    count = labels.opening_length([token.text for token in tokens[:words]])
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
    around = source((*tokens[:start], *tokens[end + 1 :]))
    if len(kinds) != 1 or not kinds <= _ENVIRONMENTS or around not in {"", "( )", "[ ]"}:
        raise UnreadableError("an environment that is not a single matrix")
    rows = [_split(row, frozenset({"&"}))[0] for row in _split(tokens[start + 1 : end], frozenset({r"\\"}))[0] if row]
    return Matrix(tuple(tuple(Expression(cell) for cell in row) for row in rows))
