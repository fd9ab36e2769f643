"""Compare two expressions with sympy. They are parsed by latex2sympy, the parser of math-verify, with its
guessing turned off.

Only this module, `equality` and `sets` import sympy. They run in the worker processes of the verify grader.
"""

import re

import sympy  # type: ignore[import-untyped]
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy  # type: ignore[import-untyped]
from sympy import Expr, I, Rational, Symbol, nan, oo, zoo

from lark.grading.strict.answer_tokens import Tokens
from lark.grading.strict.expressions import INFINITIES, Expression
from lark.grading.strict.notation import LITERAL
from lark.grading.strict.unreadable import require

SIX_DECIMALS = Rational(5, 10**7)
SIX_DIGITS = Rational(5, 10**6)
"""Absolute and relative tolerance between a decimal and the value that it approximates: 0.333333 is 1/3,
33.3 is not 100/3, and 0.000003 is not 1/300001. (Six rounded decimals leave an error of at most 5e-7, so
0.666666 is not 2/3. Six correct digits leave a relative error of at most 5e-6, at 1.00000.)
"""
DIGITS = 50
"""Precision at which two exact values are compared. All but the last ten of these digits must be equal."""
LARGEST_ROUNDED = 10**1000
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
_DECIMAL_POINT = re.compile(r"([0-9]+)\.([0-9]+)")
_ROUNDED = re.compile(r"(?:- )?(?:0\.0*(?=[1-9][0-9]{2})|[1-9][0-9]*\.(?=[0-9]{3}))[0-9]{3,}")
"""A decimal that may be rounded: at least three decimals, and three digits from the first that is not 0."""
_DIFFERENTIAL = re.compile(r"(?<![\\A-Za-z])d (?=[A-Za-z])")
"""A product with d, which the parser would read as the symbol dx."""
_LITERAL_NUMBER = re.compile(rf"(?<![^ ]){LITERAL}(?![^ ])")


def same_expression(predicted: Expression, expected: Expression) -> bool:
    """True if two expressions are equal.

    A decimal may approximate an expected value that has no finite decimal, and an expected decimal may be the
    rounding of a value that has none. Infinity, sets and numbers with a base equal only themselves; a base
    may be left out.
    """
    if predicted.latex == expected.latex:
        return True
    if predicted.base or expected.base:
        return _same_digits(predicted, expected)
    if predicted.latex in INFINITIES or expected.latex in INFINITIES:
        return INFINITIES.get(predicted.latex) == INFINITIES.get(expected.latex)
    has_other_symbols = not predicted.letters <= expected.letters | _CONSTANTS
    if predicted.is_set or expected.is_set or (has_other_symbols and not predicted.has_bound_variable):
        return False
    is_imaginary = "i" not in expected.letters or expected.letters <= _CONSTANTS
    ours = parse(predicted, is_imaginary)
    theirs = parse(expected, is_imaginary)
    if not (ours.is_number and theirs.is_number):
        return ours.free_symbols <= theirs.free_symbols and is_zero(ours - theirs)
    may_round = predicted.is_decimal and not expected.is_decimal
    return same_number(ours, theirs, may_round) or _is_rounded_gold(predicted, ours, expected)


def _is_rounded_gold(predicted: Expression, value: Expr, expected: Expression) -> bool:
    """True if the gold answer is the rounding of a prediction that has no finite decimal."""
    if not _ROUNDED.fullmatch(expected.latex) or predicted.is_decimal or _is_decimal(value.doit()):
        return False
    return is_rounding(expected, predicted)


def _same_digits(predicted: Expression, expected: Expression) -> bool:
    """Compare numbers with a base. The prediction may leave out the base of the expected number, but not
    add one.
    """
    if expected.base is None:
        return False
    return predicted.base == expected.base or predicted.latex == expected.base[0]


def parse(expression: Expression, is_imaginary: bool = True) -> Expr:
    """The value of an expression. Decimals become exact fractions.

    `is_imaginary`: `i` is the imaginary unit, not a symbol.
    """
    latex = _for_parser(expression)
    value = latex2sympy(latex, is_real=True, conversion_config=_CONVERSION, normalization_config=None)
    require(isinstance(value, Expr), f"not an expression: {latex}")
    # To sympy, the factorial of a fraction is a value of the gamma function. In an answer it is a mistake.
    for factorial in value.atoms(sympy.factorial):
        require(factorial.args[0].is_integer is not False, f"not an expression: {latex}")
    for part in sympy.preorder_traversal(value):
        require(not _is_undefined(part), f"not defined: {latex}")
    # A limit from above is as it should be already.
    if "^ { + }" not in latex:
        value = value.replace(sympy.Limit, _both_sides)
    # The parser reads the letter I as the imaginary unit.
    value = value.replace(lambda part: part is I, lambda _: Symbol("I", real=True))
    if is_imaginary:
        value = value.subs({symbol: I for symbol in value.free_symbols if symbol.name == "i"})
    return value


def _for_parser(expression: Expression) -> str:
    """The expression as LaTeX that the parser reads as it is meant."""
    latex = _ANGLE.sub(_radians, expression.latex)
    latex = _MIXED.sub(_mixed_number, latex)
    latex = _LITERAL_NUMBER.sub(lambda match: str(int(match[0], base=0)), latex)
    latex = _DECIMAL_POINT.sub(_decimal_fraction, latex)
    latex = _PRODUCT.sub(r" \\cdot ", latex)
    if not expression.has_bound_variable:
        latex = _DIFFERENTIAL.sub(r"d \\cdot ", latex)
    return latex


def _is_undefined(part: sympy.Basic) -> bool:
    """True if a part has no value, which sympy may forget later: 1/(1/0) becomes 0, and so does the
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


def _decimal_fraction(match: re.Match[str]) -> str:
    zeros = "0" * len(match[2])
    return rf"( \frac {{ {match[1]}{match[2]} }} {{ 1{zeros} }} )"


def _mixed_number(match: re.Match[str]) -> str:
    integer, numerator, denominator = match.groups()
    require(int(numerator) < int(denominator), "a mixed number with an improper fraction, or a product")
    return rf" ( {integer} + \frac {{ {numerator} }} {{ {denominator} }} )"


def is_zero(difference: Expr) -> bool:
    """True if an expression is zero for all values of its symbols."""
    if difference.has(nan, zoo, oo):
        return False
    return bool(sympy.expand(difference) == 0 or sympy.simplify(difference) == 0)


def same_number(a: Expr, b: Expr, may_round: bool) -> bool:
    """Equal exactly; or, if `may_round` and `b` has no finite decimal, to six digits and six decimals."""
    a = a.doit()
    b = b.doit()
    if a.has(nan, zoo) or b.has(nan, zoo):
        return False
    values = (a.evalf(DIGITS), b.evalf(DIGITS))
    if not all(value.is_finite for value in values):
        return False
    if a == b:
        return True
    if not all(value == 0 or 1 / LARGEST_ROUNDED < abs(value) < LARGEST_ROUNDED for value in values):
        return False
    # From the exact difference, because that of the rounded `values` would have fewer digits.
    scale = max(map(abs, values))
    error = abs((a - b).evalf(DIGITS))
    if may_round and not _is_decimal(b):
        return bool(error <= SIX_DECIMALS and error <= SIX_DIGITS * scale)
    return bool(error <= scale / 10 ** (DIGITS - 10))


def _is_decimal(value: Expr) -> bool:
    """True if the value is a finite decimal."""
    return isinstance(value, Rational) and 10**DIGITS % value.q == 0


def is_rounding(rounded: Expression, exact: Expression) -> bool:
    """True if the first number is the second, rounded to the digits that it shows."""
    digits = len(rounded.latex.partition(".")[2].split(" ")[0])
    a = parse(rounded)
    b = parse(exact)
    if not (a.is_number and b.is_number):
        return False
    error = abs((a - b).evalf(DIGITS)) * 10**digits
    half = Rational(1, 2)
    # A half is rounded away from zero.
    return bool(error < half or (error == half and abs(a) > abs(b)))


def same_equation(predicted: tuple[Tokens, ...], expected: tuple[Tokens, ...]) -> bool:
    """True if one equation is a multiple of the other: `2x - y + 3 = 0`, `y = 2x + 3`."""
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
    """True if `a > 0` and `b > 0` (or `>=`, or `!=`) are the same inequality: one is a positive multiple of
    the other.
    """
    our_difference, our_relation = a
    their_difference, their_relation = b
    ratio = _ratio(our_difference, their_difference)
    if ratio is None or our_relation != their_relation:
        return False
    # A negative factor turns `>` around, but not `!=`.
    return bool(ratio != 0 if our_relation == r"\ne" else ratio > 0)
