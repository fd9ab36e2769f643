"""Compare answers with math-verify, one pair at a time, in a process that is allowed to die. Started by `Verifier`.

Reads `{"prediction", "gold", "limit"}` as one line of JSON and replies with one line, `1` or `0`. The time limit is a
kernel timer whose signal has its default action, so it ends the process even inside a C loop that holds the GIL, and even
after the parent is gone. It counts CPU time, so that a busy machine does not change a grade.

Only sympy and math-verify are imported here: a worker has to start in about a second and never loads torch.
"""

import json
import logging
import os
import re
import resource
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import IO, TypeAlias

import sympy  # type: ignore[import-untyped]
from math_verify import LatexExtractionConfig, verify
from math_verify.parser import normalize_latex, parse_latex_cached
from sympy import Basic, Expr, FiniteSet, Float, I, Interval, MatrixBase, Rational, Rel, Symbol, Tuple, Union, nan, zoo

MEMORY_LIMIT = 4 << 30
"""Bytes of address space. Otherwise a tower of powers would fill the machine's memory before its time is up."""
WALL_FACTOR = 20
"""Wall-clock seconds allowed per second of CPU time, for a call that waits instead of working."""
SIX_DECIMALS, SIX_DIGITS = Rational(1, 10**6), Rational(5, 10**6)
"""Absolute and relative tolerance between a decimal and the value that it approximates: 0.333333 is 1/3, 33.3 is
not 100/3, and 0.000003 is not 1/300001. (Six correct digits leave a relative error of at most 5e-6, at 1.00000.)"""
DIGITS = 50
"""Precision at which two exact values are compared. They are equal if all but the last ten of these digits are."""

Value: TypeAlias = Basic | MatrixBase

_NORMALISATION = replace(LatexExtractionConfig().normalization_config, boxed="none")
_PERCENT = re.compile(r"\\?%|\\(?:text|mbox|mathrm)\s*\{\s*percent\s*\}|\bpercent\b")
_ROMAN_LETTER = re.compile(r"\\mathrm\s*\{\s*([A-Za-z])\s*\}")
_BASE = re.compile(r"[0-9A-Za-z]+_\{?([0-9]+)\}?")
_EITHER = re.compile(r"\\lor\b|(?<![A-Za-z])or(?![A-Za-z])")
_THOUSANDS = re.compile(r"(?<![0-9.])[0-9]{1,3}(?:(?:\\[,;:]|[~ ])[0-9]{3})+(?![0-9])")
_REPEATING = re.compile(r"([0-9]+)\.([0-9]*)\\(?:overline|bar)\s*\{([0-9]+)\}")
_MIXED = re.compile(r"(?<![0-9.])([0-9]+)\s+([0-9]+)\s*/\s*([0-9]+)(?![0-9.])")
_APART = re.compile(r"(?:^|[^A-Za-z0-9.\s])\s*[0-9.]+\s+[0-9]")
_DEGREES = r"\s*([0-9.]+)\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})\s*"
_ANGLE = re.compile(
    rf"\\(sin|cos|tan|cot|sec|csc)\s*(?:{_DEGREES}|\({_DEGREES}\)|\\left\s*\({_DEGREES}\\right\s*\)|\{{{_DEGREES}\}})"
)
_BRACED = re.compile(r"\s*\$?\s*(?:\\left\s*)?\\\{.*\\\}\s*\$?\s*", re.DOTALL)


def compare(prediction: str, gold: str) -> bool:
    """Whether the two answers are mathematically equal. An answer that cannot be read, or makes sympy raise, is wrong."""
    sympy.core.random.seed(0)  # sympy tests random points: use the same ones for the same pair
    bases = {match[1] for text in (prediction, gold) if (match := _BASE.fullmatch(text.strip("$ ")))}
    try:
        predicted, expected = _read(prediction), _read(gold)
        if len(bases) > 1 or _is_set_for_pair((prediction, predicted), (gold, expected)):
            return False
        return _same(predicted, expected)
    except Exception:
        return False


def _read(answer: str) -> Value:
    """Parse the whole text of an answer into a sympy object; math-verify's own search would accept a part of it.

    Percent signs are removed first, because 10% and 10 are the same answer here. Thousands in `12\\,000`, the mixed number
    `1 2/3`, the digits of `0.\\overline{3}` and the degrees of `\\cos 60^\\circ` are rewritten so that math-verify reads them.
    `i` is the imaginary unit, unless there are other symbols. `x < 2 or x > 3` becomes a set: math-verify turns one
    inequality, or a chain of them, into a set, but not two that are joined by "or".
    """
    latex = _ROMAN_LETTER.sub(r"\1", _PERCENT.sub("", answer))
    latex = _THOUSANDS.sub(lambda match: re.sub(r"[^0-9]", "", match[0]), latex)
    latex = _MIXED.sub(r"\1\\frac{\2}{\3}", latex)
    if _APART.search(latex):
        raise ValueError(f"two numbers with nothing between them, which math-verify would add up: {latex}")
    latex = _ANGLE.sub(_radians, _REPEATING.sub(_repeating_decimal, latex))
    value = parse_latex_cached(normalize_latex(latex, config=_NORMALISATION))
    if _EITHER.search(latex) and isinstance(value, FiniteSet) and all(isinstance(x, Rel) for x in value.args):
        return Union(*(relation.as_set() for relation in value.args))
    symbols = value.free_symbols
    return value.subs(dict.fromkeys(symbols, I)) if {symbol.name for symbol in symbols} == {"i"} else value


def _repeating_decimal(match: re.Match[str]) -> str:
    whole, fixed, repeated = match.groups()
    period, scale = 10 ** len(repeated) - 1, 10 ** len(fixed)
    return rf"\left(\frac{{{int(whole + fixed) * period + int(repeated)}}}{{{scale * period}}}\right)"


def _radians(match: re.Match[str]) -> str:
    function, *angles = match.groups()
    (degrees,) = (angle for angle in angles if angle is not None)
    return rf"\{function}\left(\frac{{{degrees}\pi}}{{180}}\right)"


def _is_set_for_pair(*answers: tuple[str, Value]) -> bool:
    """Whether one answer is a set and the other a pair: math-verify equates `\\{3,5\\}` and `(3,5)`, like `3,5` and `(3,5)`.
    Without brackets the order is open, but braces mean that there is no order."""
    kinds = {"set" if _BRACED.fullmatch(text) and isinstance(value, FiniteSet) else type(value) for text, value in answers}
    return "set" in kinds and bool(kinds & {Interval, Tuple})


def _same(predicted: Value, expected: Value) -> bool:
    """Compare numbers exactly, before anything is rounded, and the rest with math-verify, which must not equate tuples,
    sets, intervals or matrices of numbers that differ."""
    if _is_number(predicted) and _is_number(expected):
        return _same_number(predicted, expected)
    if not verify(expected, predicted, timeout_seconds=None, allow_set_relation_comp=True):
        # math-verify compares a single symbol by its name only, so it rejects 2z/2 for z
        is_symbol = isinstance(predicted, Symbol) or isinstance(expected, Symbol)
        return is_symbol and sympy.simplify(predicted - expected) == 0
    ours, theirs = _numbers(predicted), _numbers(expected)
    return len(ours) != len(theirs) or all(map(_same_number, ours, theirs))


def _is_number(value: Value) -> bool:
    return isinstance(value, Expr) and bool(value.is_number)


def _same_number(a: Expr, b: Expr) -> bool:
    """Equal exactly; or, if a decimal approximates a value without a finite decimal, to six digits and six decimals.

    math-verify only rounds to six decimals, which equates 1/2004! and 1/2006!, or 0.0000672 and 0.0000673. Infinity equals
    only itself and is not close to any number.
    """
    is_approximation = a.has(Float) != b.has(Float)
    a, b = (x.replace(lambda part: part.is_Float, lambda part: Rational(str(part))).doit() for x in (a, b))
    if any(x.has(nan, zoo) for x in (a, b)):
        return False
    if a == b:
        return True
    is_approximation &= not (_is_decimal(a) and _is_decimal(b))
    values = a.evalf(DIGITS), b.evalf(DIGITS)
    if not all(value.is_finite for value in values):
        return bool(values[0] == values[1])
    scale = max(map(abs, values))
    difference = abs((a - b).evalf(DIGITS))
    if is_approximation:
        return bool(difference <= SIX_DECIMALS and difference <= SIX_DIGITS * scale)
    return bool(difference <= scale / 10 ** (DIGITS - 10))


def _is_decimal(value: Expr) -> bool:
    """Whether the value is a finite decimal."""
    return isinstance(value, Rational) and 10**DIGITS % value.q == 0


def _numbers(value: Value) -> list[Expr]:
    """The numbers in a tuple, set, interval or matrix, in an order that equal values share."""
    if _is_number(value):
        return [value]
    if isinstance(value, MatrixBase):
        parts = list(value.flat())
    elif isinstance(value, Interval):
        parts = [value.start, value.end]
    elif isinstance(value, FiniteSet) and all(map(_is_number, value.args)):
        parts = sorted(value.args, key=lambda x: tuple(map(float, x.evalf().as_real_imag())))
    elif isinstance(value, Tuple):
        parts = list(value.args)
    else:
        parts = []
    return [number for part in parts for number in _numbers(part)]


def _serve(requests: IO[str], replies: IO[str]) -> None:
    replies.write("ready\n")
    replies.flush()
    for line in requests:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["limit"])
        signal.setitimer(signal.ITIMER_REAL, request["limit"] * WALL_FACTOR)
        same = compare(request["prediction"], request["gold"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        replies.write("1\n" if same else "0\n")
        replies.flush()


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT if hard == resource.RLIM_INFINITY else min(MEMORY_LIMIT, hard), hard))
    # A child inherits ignored and blocked signals, but the timers must be able to end this process.
    timers = {signal.SIGPROF, signal.SIGALRM}
    for number in timers:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, timers)
    # math-verify's warning that its own time limit is off, and output of a parser, must not get into the replies.
    logging.disable(logging.CRITICAL)
    with (
        os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as replies,
        Path(os.devnull).open("w") as nowhere,
    ):
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
        os.dup2(nowhere.fileno(), sys.stderr.fileno())
        _serve(sys.stdin, replies)


if __name__ == "__main__":
    main()
