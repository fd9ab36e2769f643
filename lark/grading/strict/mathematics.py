"""Compare two expressions with sympy. They are parsed by latex2sympy, the parser of math-verify, with its
guessing turned off.

Only this module, `equality` and `sets` import sympy. They run in the worker processes of the verify grader.
"""

import re

import sympy  # type: ignore[import-untyped]
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy  # type: ignore[import-untyped]
from sympy import Expr, I, Rational, Symbol, nan, oo, zoo

from lark.grading.answers import LITERAL
from lark.grading.strict.expressions import INFINITIES, Expression, Tokens
from lark.grading.strict.lexer import UnreadableError

SIX_DECIMALS, SIX_DIGITS = Rational(5, 10**7), Rational(5, 10**6)
"""Absolute and relative tolerance between a decimal and the value that it approximates: 0.333333 is 1/3,
33.3 is not 100/3, and 0.000003 is not 1/300001. (Six rounded decimals leave an error of at most 5e-7, so
0.666666 is not 2/3. Six correct digits leave a relative error of at most 5e-6, at 1.00000.)
"""
DIGITS = 50
"""Precision at which two exact values are compared. They are equal if all but the last ten of these digits
are.
"""
LARGEST = 10**1000
"""Larger numbers, and smaller ones than its inverse, must be equal exactly. The digits that sympy computes
for huge ones are wrong: (√2000!)!, of 10^58 digits, and the same number minus 1/7 differ by a factor of
10^15732.
"""

_CONVERSION = ConversionConfig(lowercase_symbols=False, interpret_as_mixed_fractions=False)
_CONSTANTS = frozenset({"e", "i"})
_DEGREES = r"([0-9./ ]+) \^ \{ \\circ \}"
_ANGLE = re.compile(rf"(\\(?:sin|cos|tan|cot|sec|csc)) (?:\( {_DEGREES} \)|{_DEGREES})")
_MIXED = re.compile(r"(?<![^ ])([0-9]+) \\frac \{ ([0-9]+) \} \{ ([0-9]+) \}")
_PRODUCT = re.compile(r"(?<=[0-9)]) (?=\(|[0-9]|\\frac|\\binom)|(?<=\\pi) (?=\()")
"""A product without a sign, of which the parser would make a sum: `2(3)`."""
_DECIMAL = re.compile(r"([0-9]+)\.([0-9]+)")
_ROUNDED = re.compile(r"(?:- )?(?:0\.0*(?=[1-9][0-9]{2})|[1-9][0-9]*\.(?=[0-9]{3}))[0-9]{3,}")
"""A decimal that may be rounded: at least three decimals, and three digits from the first that is not 0."""
_LITERAL = re.compile(rf"(?<![^ ]){LITERAL}(?![^ ])")


def same_expression(predicted: Expression, expected: Expression) -> bool:
    """Whether two expressions are equal. A decimal may approximate an expected value that has no finite
    decimal, and an expected decimal may be the rounding of a value that has none. Infinity, sets and
    numbers with a base equal only themselves; a base may be left out.
    """
    if predicted.latex == expected.latex:
        return True
    if predicted.base or expected.base:
        return _same_digits(predicted, expected)
    if {predicted.latex, expected.latex} & INFINITIES.keys():
        return INFINITIES.get(predicted.latex) == INFINITIES.get(expected.latex)
    if (
        predicted.is_set
        or expected.is_set
        or not (predicted.has_bound_variable or _has_only_symbols_of(predicted, expected))
    ):
        return False
    is_imaginary = "i" not in expected.letters or expected.letters <= _CONSTANTS
    a, b = parse(predicted, is_imaginary), parse(expected, is_imaginary)
    if a.is_number and b.is_number:
        are_same = same_number(a, b, may_round=predicted.is_decimal and not expected.is_decimal)
        has_decimals = predicted.is_decimal or _is_decimal(a.doit())
        may_be_rounded = _ROUNDED.fullmatch(expected.latex) is not None and not has_decimals
        return are_same or (may_be_rounded and is_rounding(expected, predicted))
    return a.free_symbols <= b.free_symbols and is_zero(a - b)


def _same_digits(predicted: Expression, expected: Expression) -> bool:
    """Compare numbers with a base. The prediction may leave out the base of the expected number, but not
    add one.
    """
    if expected.base is None:
        return False
    return predicted.base == expected.base or predicted.latex == expected.base[0]


def _has_only_symbols_of(predicted: Expression, expected: Expression) -> bool:
    return predicted.letters <= expected.letters | _CONSTANTS


def parse(expression: Expression, is_imaginary: bool = True) -> Expr:
    """The value of an expression. Decimals become exact fractions. `is_imaginary`: `i` is the imaginary
    unit, not a symbol.
    """
    latex = _ANGLE.sub(_radians, expression.latex)
    latex = _MIXED.sub(_mixed_number, latex)
    latex = _LITERAL.sub(lambda match: str(int(match[0], base=0)), latex)
    latex = _DECIMAL.sub(
        lambda match: rf"( \frac {{ {match[1]}{match[2]} }} {{ 1{'0' * len(match[2])} }} )", latex
    )
    latex = _PRODUCT.sub(r" \\cdot ", latex)
    if not expression.has_bound_variable:
        latex = re.sub(r"(?<![\\A-Za-z])d (?=[A-Za-z])", r"d \\cdot ", latex)  # not the symbol dx
    value = latex2sympy(latex, is_real=True, conversion_config=_CONVERSION, normalization_config=None)
    if not isinstance(value, Expr) or any(
        part.args[0].is_integer is False for part in value.atoms(sympy.factorial)
    ):
        raise UnreadableError(f"not an expression: {latex}")
    if any(map(_is_undefined, sympy.preorder_traversal(value))):
        raise UnreadableError(f"not defined: {latex}")
    if "^ { + }" not in latex:
        value = value.replace(sympy.Limit, _both_sides)
    value = value.replace(
        lambda part: part is I, lambda _: Symbol("I", real=True)
    )  # the parser reads the letter I as i
    return (
        value.subs({symbol: I for symbol in value.free_symbols if symbol.name == "i"})
        if is_imaginary
        else value
    )


def _is_undefined(part: sympy.Basic) -> bool:
    """Whether a part has no value, which sympy may forget later: 1/(1/0) becomes 0, and so does the
    logarithm to the base 0.
    """
    if part in (zoo, nan):
        return True
    if part.free_symbols:
        return False
    if isinstance(part, sympy.log):
        argument, *base = (value.doit() for value in part.args)
        return argument == 0 or any(value == 1 or not value.is_positive for value in base)
    if isinstance(part, sympy.Pow) and part.exp.could_extract_minus_sign():
        return part.base.doit() == 0
    return isinstance(part, (sympy.tan, sympy.cot, sympy.sec, sympy.csc)) and part.doit().has(zoo)


def _both_sides(expression: Expr, variable: Symbol, point: Expr, side: Symbol) -> Expr:
    """A limit from both sides, which sympy takes from above, unless it is at infinity or from below."""
    is_two_sided = point.is_finite and str(side) == "+"
    return sympy.Limit(expression, variable, point, "+-" if is_two_sided else side)


def _radians(match: re.Match[str]) -> str:
    return rf"{match[1]} ( \frac {{ ( {match[2] or match[3]} ) \pi }} {{ 180 }} )"


def _mixed_number(match: re.Match[str]) -> str:
    whole, numerator, denominator = match.groups()
    if int(numerator) >= int(denominator):
        raise UnreadableError("a mixed number with an improper fraction, or a product")
    return rf" ( {whole} + \frac {{ {numerator} }} {{ {denominator} }} )"


def is_zero(difference: Expr) -> bool:
    """Whether an expression is zero for all values of its symbols."""
    if difference.has(nan, zoo, oo):
        return False
    return bool(sympy.expand(difference) == 0 or sympy.simplify(difference) == 0)


def same_number(a: Expr, b: Expr, may_round: bool) -> bool:
    """Equal exactly; or, if `may_round` and `b` has no finite decimal, to six digits and six decimals."""
    a, b = a.doit(), b.doit()
    if any(x.has(nan, zoo) for x in (a, b)):
        return False
    values = a.evalf(DIGITS), b.evalf(DIGITS)
    if not all(value.is_finite for value in values):
        return False
    if a == b:
        return True
    if not all(value == 0 or 1 / LARGEST < abs(value) < LARGEST for value in values):
        return False
    scale = max(map(abs, values))
    difference = abs((a - b).evalf(DIGITS))
    if may_round and not _is_decimal(b):
        return bool(difference <= SIX_DECIMALS and difference <= SIX_DIGITS * scale)
    return bool(difference <= scale / 10 ** (DIGITS - 10))


def _is_decimal(value: Expr) -> bool:
    """Whether the value is a finite decimal."""
    return isinstance(value, Rational) and 10**DIGITS % value.q == 0


def is_rounding(rounded: Expression, exact: Expression) -> bool:
    """Whether the first number is the second, rounded to the digits that it shows."""
    digits = len(rounded.latex.partition(".")[2].split(" ")[0])
    a, b = parse(rounded), parse(exact)
    if not (a.is_number and b.is_number):
        return False
    error = abs((a - b).evalf(DIGITS)) * 10**digits
    return bool(error < Rational(1, 2) or (error == Rational(1, 2) and abs(a) > abs(b)))


def same_equation(predicted: tuple[Tokens, ...], expected: tuple[Tokens, ...]) -> bool:
    """Whether two equations have the same solutions because one is a multiple of the other: `2x - y + 3 =
    0`, `y = 2x + 3`.
    """
    return _ratio(difference(*predicted), difference(*expected)) not in {None, 0}


def difference(left: Tokens, right: Tokens) -> Expr:
    """Left side minus right side."""
    return parse(Expression(left)) - parse(Expression(right))


def _ratio(a: Expr, b: Expr) -> Expr | None:
    """The number by which `b` is multiplied in `a`; None if there is no such number."""
    if a.free_symbols != b.free_symbols or not b.free_symbols or is_zero(a) or is_zero(b):
        return None
    ratio = sympy.simplify(a / b)
    return ratio if ratio.is_number and ratio.is_finite else None


def same_inequality(a: tuple[Expr, str], b: tuple[Expr, str]) -> bool:
    """Whether `a > 0` and `b > 0` (or `>=`, or `!=`) are the same inequality: one is a positive multiple of
    the other.
    """
    ratio = _ratio(a[0], b[0])
    if ratio is None or a[1] != b[1]:
        return False
    return bool(ratio > 0 if a[1] != r"\ne" else ratio != 0)
