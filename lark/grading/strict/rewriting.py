"""Rewrite notations from outside LaTeX (`√2`, `2**10`, `1e6`) and commands between their arguments as LaTeX.

This works on the text, before it is split into tokens. Every rule is linear in the length of the text.
"""

import re

from lark.grading.strict.notation import CHARACTERS
from lark.grading.strict.unreadable import UnreadableError

_DOUBLE_ESCAPE = re.compile(r"\\\\(?=[A-Za-z])")
_SCIENTIFIC = r"(?<![0-9A-Za-z.])([0-9]+(?:\.[0-9]+)?)[eE]([+-]?[0-9]+)(?![0-9A-Za-z]|\.[0-9]|\s*\)?_)"
_RULES = (
    (re.compile(r"^\s*\*\*([^*]+)\*\*\s*$"), r"\1"),  # Markdown's emphasis
    (re.compile(r"(?<=[0-9A-Za-z)}])\s*\*\*\s*([0-9]+|[A-Za-z](?![A-Za-z])|\([^()]*\))"), r"^{\1}"),
    (re.compile(r"√\s*(?:\(([^()]*)\)|([0-9]+(?:\.[0-9]+)?))"), r"\\sqrt{\1\2}"),
    (re.compile(r"(?<![\\A-Za-z])sqrt\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"\^\s*-\s*([0-9]+)"), r"^{-\1}"),  # 10^-5
    (re.compile(_SCIENTIFIC), r"(\1\\times 10^{\2})"),
    (re.compile(r"\\(?:nice|s)frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"(?<=[0-9])\s*\"\s*$"), r"\\text{ inches}"),
    (re.compile(r"(?<![<>=!])<=(?![<>=])"), r"\\le "),
    (re.compile(r"(?<![<>=!])>=(?![<>=])"), r"\\ge "),
    (re.compile(r"(\\\\)\s*\[-?[0-9.]+\s*(?:pt|em|ex|mm|cm)\]"), r"\1"),  # the distance between two rows
    (re.compile(r"\\Pr(?![A-Za-z])"), "P"),
    (re.compile(r"\\mathbb\s*\{([EP])\}(?=\s*(?:\\left\s*)?[(\[])"), r"\1"),
    (re.compile(r"\{:\}"), ":"),
)
_ELLIPSIS = re.compile(r"([0-9]+\.)([0-9]+)(?:\.\.\.|…|\\[ld]?dots(?![A-Za-z]))")
_LONGEST_PERIOD = 10
_REVERSED = re.compile(
    r"(?:^|(?<=\\cup)|(?<=\\in)|(?<==))\s*(?:\\left\s*)?(?!\[[^\[]*\])"
    r"([\[\]])([^\[\]()]*[,;][^\[\]()]*?)(?:\\right\s*)?(?<!\\)([\[\]])"
)
"""An interval with a bracket that is turned away from it: `]1,2[` is `(1,2)`."""
_INFIX = re.compile(r"\\(over|choose)(?![A-Za-z])")
_PREFIX_OF_INFIX = {"over": "frac", "choose": "binom"}
_ONE_GROUP = re.compile(r"^\s*\{([^{}]*)\}\s*$")


def as_latex(text: str) -> str:
    """The text with all notations in LaTeX."""
    if "\\begin" not in text:  # in a matrix, two backslashes end a row
        text = _DOUBLE_ESCAPE.sub(r"\\", text)
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    text = _ELLIPSIS.sub(_repeating, text).translate(CHARACTERS)
    text = _REVERSED.sub(_as_interval, text)
    # One at a time: an argument of one command may have another in it.
    while match := _INFIX.search(text):
        text = _with_prefix_command(text, match)
    return text


def _repeating(match: re.Match[str]) -> str:
    """`0.1666...` as a repeating decimal, if the period is certain.

    A single digit must be shown three times, a period of several digits twice.
    """
    digits = match[2]
    for length in range(1, _LONGEST_PERIOD):
        period = digits[-length:]
        times = 3 if length == 1 else 2
        if digits.endswith(period * times):
            fixed = digits[:-length]
            while fixed.endswith(period):
                fixed = fixed.removesuffix(period)
            return rf"{match[1]}{fixed}\overline{{{period}}}"
    return match[0]


def _as_interval(match: re.Match[str]) -> str:
    # A bracket that is turned away excludes its end; the other one stays as it is.
    return match[1].replace("]", "(") + match[2] + match[3].replace("[", ")")


def _with_prefix_command(text: str, infix: re.Match[str]) -> str:
    r"""`{a \over b}` as `\frac{a}{b}`."""
    start, end = _enclosing_braces(text, *infix.span())
    command = _PREFIX_OF_INFIX[infix[1]]
    first = _ONE_GROUP.sub(r"\1", text[start + 1 : infix.start()])
    second = _ONE_GROUP.sub(r"\1", text[infix.end() : end - 1])
    return f"{text[:start]}\\{command}{{{first}}}{{{second}}}{text[end:]}"


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
