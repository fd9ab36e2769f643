"""Forms that equal answers share under the paper's rules: the value of a number, and the notation of MATH.
Also the form of a text, for benchmarks whose answers are no mathematics.
"""

import re
import unicodedata
from fractions import Fraction

from lark.grading.strict.notation import LITERAL

_DECIMAL = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)"
_QUOTIENT = re.compile(rf"([+-]?\s*{_DECIMAL})(?:\s*/\s*([+-]?\s*{_DECIMAL}))?")
_SIGNED_LITERAL = re.compile(rf"([+-]?)\s*({LITERAL})")
_LATEX_FRACTION = re.compile(
    rf"([+-]?)\s*({_DECIMAL})?\s*\\[dtc]?frac\s*(?:\{{([^{{}}]*)\}}|([0-9]))\s*(?:\{{([^{{}}]*)\}}|([0-9]))"
)
_LONGEST_NUMBER = 200
"""Characters. No benchmark has a longer number, and arithmetic on a million digits would not be linear."""


def canonical_number(text: str) -> Fraction | None:
    """The exact value of a text that is one number; None for any other text.

    The paper strips whitespace and turns a/b into a decimal; a `Fraction` is that decimal without rounding.
    Apart from `3/4`, these notations are read: `073`, `142.0`, `.5`, `+5`, `−5` (U+2212), `\\frac{3}{4}`,
    `\\frac34`, the mixed number `1\\frac{3}{4}`, groups of thousands, `1,296`, `1{,}296`, `1,\\!296`, and
    the literals `0x1F`, `0b101` and `0o17`. Not read: `1, 296` (a list), units, currencies and expressions
    such as `\\frac{1}{2}5`.
    """
    if len(text) > _LONGEST_NUMBER:
        return None
    text = text.replace("{,}", ",").replace("\u2212", "-")
    text = re.sub(r"\\!\s*", "", text).strip()
    match = _LATEX_FRACTION.fullmatch(text)
    return _plain_number(text) if match is None else _latex_fraction(match)


def _latex_fraction(match: re.Match[str]) -> Fraction | None:
    """The value of a fraction or a mixed number."""
    sign, integer_part, *arguments = match.groups()
    # An argument is in braces or a single digit, in different groups of the pattern.
    numerator, denominator = (_plain_number(part.strip()) for part in arguments if part is not None)
    if numerator is None or not denominator:
        return None
    value = numerator / denominator
    if integer_part is not None:
        integer = _plain_number(integer_part)
        is_proper = 0 < numerator < denominator and numerator.denominator == denominator.denominator == 1
        # Before an improper fraction, a number is a factor or a mistake.
        if integer is None or integer.denominator != 1 or not is_proper:
            return None
        value += integer
    return -value if sign == "-" else value


def _plain_number(text: str) -> Fraction | None:
    """The value of a literal, of a decimal or of a quotient of two."""
    if literal := _SIGNED_LITERAL.fullmatch(text):
        return Fraction(_literal_value(literal))
    match = _QUOTIENT.fullmatch(text)
    if match is None:
        return None
    value, divisor = (Fraction(re.sub(r"[,\s]", "", part or "1")) for part in match.groups())
    return value / divisor if divisor else None


def _literal_value(literal: re.Match[str]) -> int:
    sign, digits = literal.groups()
    return int(sign + digits, base=0)


_ARGUMENT = r"(\\(?!frac|sqrt)[A-Za-z]+|[^\s\\{}\[\]])"
_CANONICAL_STEPS = (
    (re.compile(r"\n|\\!"), ""),
    # Commands that were escaped twice. Row ends of matrices change too, on both sides alike.
    (re.compile(r"\\\\"), r"\\"),
    (re.compile(r"\\[dt]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\(?:left|right)(?![A-Za-z])"), ""),
    (re.compile(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})"), ""),
    (re.compile(r"\\\$"), ""),
    (re.compile(r"(?<=.)\\text\{ [^{}]*\}(?:\^(?:[0-9]|\{[0-9]\}))?\s*$"), ""),  # a unit: `5\text{ cm}^2`
    (re.compile(r"\\?%"), ""),
    (re.compile(r"(?<![0-9])\.(?=[0-9])"), "0."),
    # `x = 5`: a name of at most two characters carries no information.
    (re.compile(r"^\s*[A-Za-z][A-Za-z0-9]?\s*=(?=[^=]+$)"), ""),
    (re.compile(rf"\\sqrt\s*{_ARGUMENT}"), r"\\sqrt{\1}"),
    (re.compile(rf"\\frac\s*{_ARGUMENT}"), r"\\frac{\1}"),
    (re.compile(rf"(\\frac\s*\{{[^{{}}]*\}})\s*{_ARGUMENT}"), r"\1{\2}"),
    (re.compile(r"\^\s*\{(\\[A-Za-z]+|[^\s\\{}])\}"), r"^\1"),
    (re.compile(r"\s"), ""),
    (re.compile(r"^0\.5$"), r"\\frac{1}{2}"),
    (re.compile(r"^(-?)([0-9]+)/([0-9]+)$"), r"\1\\frac{\2}{\3}"),
    (re.compile(r"\\frac\{-([0-9]+)\}"), r"-\\frac{\1}"),
)
"""In this order: later steps rely on the notation that earlier ones leave."""


def canonical_latex(text: str) -> str:
    """A free-form answer in the canonical form of MATH (Hendrycks et al., 2021). Answers are compared as
    these strings.

    Fractions (`\\frac12`, `\\dfrac{1}{2}`, `1/2`, `0.5`) and roots (`\\sqrt2`) get one notation. `\\left`,
    `\\right`, `\\!`, degrees, dollars, `\\%`, a unit in `\\text{ …}` on the right, a short name on the left
    (`x =`) and spaces are removed. `.5` becomes `0.5`. `10,080` differs from `10080`, and `\\mbox{ cm}` is
    not a unit. Additions to MATH's rules: exponents (`x^{2}`), which the paper names; a bare `%`; the sign
    before a fraction (`\\frac{-1}{2}`, `-1/2`); the power of a unit (`\\text{ cm}^2`); any white space
    where MATH removes spaces, also between arguments (`\\frac 1 2`, `\\sqrt 2`, `^ \\circ`); and the value
    of a hexadecimal or binary literal (`0x1F`).
    """
    for pattern, replacement in _CANONICAL_STEPS:
        text = pattern.sub(replacement, text)
    literal = _SIGNED_LITERAL.fullmatch(text) if len(text) <= _LONGEST_NUMBER else None
    return text if literal is None else str(_literal_value(literal))


_TEXT_MACRO = re.compile(r"\\(?:text|mathrm|texttt)\s*\{([^{}]*)\}")
_MARKUP = "$`*\"' \t\n"
_AROUND_PUNCTUATION = re.compile(r"\s*([,;:()\[\]{}|])\s*")


def canonical_text(text: str) -> str:
    """A text without what does not belong to it: case, white space at its ends and around punctuation, line
    breaks, quotes and markup around it, and a full stop at its end. Digits stay as they are: `007` is not
    `7`.
    """
    text = _TEXT_MACRO.sub(r"\1", unicodedata.normalize("NFKC", text))
    text = " ".join(text.casefold().split())
    stripped = text.strip(_MARKUP).removesuffix(".").strip(_MARKUP)
    # An answer may be a sign.
    return _AROUND_PUNCTUATION.sub(r"\1", stripped or text)
