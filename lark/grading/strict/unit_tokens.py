"""Separate a value from its unit: signs before or after it (`\\$5`, `30^\\circ`), and words after it."""

import re

from lark.grading.strict import units
from lark.grading.strict.answer_tokens import Token, Tokens, mark, source, texts_of, with_words_as_w
from lark.grading.strict.labels import has_number_word
from lark.grading.strict.structure import ReadingRules
from lark.grading.strict.units import Unit

_SIGNS_BEFORE: dict[str, Unit] = {
    r"\$": (("dollar", 1),),
    r"\pounds": (("lb", 1),),
    r"\euro": (("euro", 1),),
    r"\yen": (("yen", 1),),
}
_SIGNS_AFTER: dict[tuple[str, ...], Unit] = {
    (r"\%",): units.PERCENT,
    ("^", "{", r"\circ", "}"): units.DEGREE,
    (r"\cent",): (("cent", 1),),
    ("^", "{", r"\circ", "}", "C"): units.CELSIUS,
    ("^", "{", r"\circ", "}", "F"): units.FAHRENHEIT,
    **{(sign,): unit for sign, unit in _SIGNS_BEFORE.items()},
}
_ANGLES = frozenset({r"\sin", r"\cos", r"\tan", r"\cot", r"\sec", r"\csc"})
_UNIT_PHRASE = re.compile(r"(?:/ )?w(?: (?:w|\.|/ w|\\cdot w|- w|\^ \{ (?:- )?[1-4] \}))*")
"""The tokens of a unit, with `w` for a word."""
_SINGULAR = re.compile(r"(?:- )?(?:1(?:\.0*)?|0?\.[0-9]+|\\frac \{ [0-9]+ \} \{ [0-9]+ \}|[0-9]+ / [0-9]+)")
_ENDS_OF_VALUES = frozenset({")", "]", "}", r"\}", r"\pi", r"\%", r"\$", r"\cent", "!"})


def split_unit(tokens: Tokens, reading: ReadingRules) -> tuple[Tokens, Unit | None]:
    """A value without its unit, and the unit."""
    tokens = _with_fraction_as_slash(tokens)
    texts = tuple(texts_of(tokens))
    # The degree in `\cos 60^\circ` belongs to the angle, not to the value.
    if _ANGLES.isdisjoint(texts):
        for marks, unit in _SIGNS_AFTER.items():
            if len(texts) > len(marks) and texts[-len(marks) :] == marks:
                return tokens[: -len(marks)], unit
    if len(texts) > 1 and texts[0] in _SIGNS_BEFORE:
        return _split_words(tokens[1:], _SIGNS_BEFORE[texts[0]], reading)
    return _split_words(tokens, None, reading)


def _split_words(tokens: Tokens, sign: Unit | None, reading: ReadingRules) -> tuple[Tokens, Unit | None]:
    """A value without the unit in words after it, and the unit. `sign`: the unit of a preceding sign."""
    tokens = _without_abbreviating_period(tokens)
    start = _first_word(tokens)
    if start > 1 and tokens[start - 1].text == "/" and sign:  # `\$5/\text{hour}`
        start -= 1
    value = tokens[:start]
    phrase = tokens[start:]
    if not value or not _ends_like_a_value(value[-1]) or not _UNIT_PHRASE.fullmatch(with_words_as_w(phrase)):
        return tokens, sign
    words, powers = _words_and_powers(phrase)
    # `\$5 per hour`: the words are only the denominator of a rate.
    is_denominator = words[0] == "per" and (sign is not None or value[-1].text in {r"\%", r"\$"})
    if not _is_unit(words, is_denominator, value, reading):
        return tokens, sign
    unit = units.unit(["", *words], [1, *powers]) if is_denominator else units.unit(words, powers)
    number, before = split_unit(value, reading)
    return number, units.combined_unit(sign or before, unit)


def _is_unit(words: list[str], is_denominator: bool, value: Tokens, reading: ReadingRules) -> bool:
    """True if words after a value can be its unit. In a gold answer they are, unless they count."""
    if words[0] in reading.symbols or has_number_word(words):
        return False
    if len(words[0]) == 1 and not units.is_unit(words, is_singular=True):
        return False
    if reading.is_gold:
        return True
    unit_words = ["units", *words] if is_denominator else words
    is_singular = _SINGULAR.fullmatch(source(value)) is not None
    return units.is_unit(unit_words, is_singular)


def _first_word(tokens: Tokens) -> int:
    """The place of the first word, or 0."""
    return next((i for i, token in enumerate(tokens) if token.is_word), 0)


def _without_abbreviating_period(tokens: Tokens) -> Tokens:
    """`5. \\text{cm}` as `5 \\text{cm}`."""
    start = _first_word(tokens)
    if start > 1 and tokens[start - 1].text == "." and tokens[start - 2].is_number:
        return (*tokens[: start - 1], *tokens[start:])
    return tokens


def _with_fraction_as_slash(tokens: Tokens) -> Tokens:
    """`60\\frac{\\text{mi}}{\\text{hr}}` as `60 \\text{ mi} / \\text{hr}`."""
    # A value and the seven tokens of the fraction.
    if len(tokens) < 8 or not with_words_as_w(tokens).endswith(r"\frac { w } { w }"):
        return tokens
    return (*tokens[:-7], tokens[-5], mark("/"), tokens[-2])


def _words_and_powers(tokens: Tokens) -> tuple[list[str], list[int]]:
    """The words of a unit, with `per` for `/`, and the power of each."""
    words: list[str] = []
    powers: list[int] = []
    for i, token in enumerate(tokens):
        power = units.power(token.text, words[-1]) if token.is_word and words else 0
        if power:
            powers[-1] = power
        elif token.is_word or token.text == "/":
            words.append("per" if token.text == "/" else token.text)
            powers.append(1)
        elif token.is_number:
            sign = -1 if tokens[i - 1].text == "-" else 1
            powers[-1] = sign * int(token.text)
    if words[:2] == ["per", "cent"]:
        return ["percent", *words[2:]], powers[1:]
    return words, powers


def _ends_like_a_value(token: Token) -> bool:
    return token.is_number or token.is_letter or token.text in _ENDS_OF_VALUES
