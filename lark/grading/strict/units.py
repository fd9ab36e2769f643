"""Units of values: read from the words after a value, and compared.

A unit is a known measure (`5 cm`), a noun (`5 apples`), or a rate of these (`5 dollars per hour`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from lark.grading.strict.labels import is_plain, lower_case
from lark.grading.strict.vocabulary import (
    ADJECTIVE,
    AFTER_NUMBER,
    AFTER_UNIT,
    ANY_MEASURE,
    BETWEEN,
    COUNTED,
    DIMENSION_WORDS,
    IRREGULAR_PLURALS,
    MEASURE_NAMES,
    MEASURES,
    PER,
    POWER_WORDS,
    SAME_DIMENSION,
)

Unit = tuple[tuple[str, int], ...]
"""Measures or nouns and their powers, sorted by name: metres per second are `(("m", 1), ("s", -1))`."""
PERCENT: Unit = (("percent", 1),)
DEGREE: Unit = (("degree", 1),)
CELSIUS: Unit = (("celsius", 1),)
FAHRENHEIT: Unit = (("fahrenheit", 1),)
_TEMPERATURES = frozenset({"celsius", "fahrenheit"})
_RATES = {"mph": (("mi", 1), ("h", -1)), "kmh": (("km", 1), ("h", -1))}
_IN_TOTAL = (["in", "total"], ["in", "all"])
_TIMES_OF_DAY = (["a", "m"], ["p", "m"])
_PHRASES: dict[tuple[str, ...], Unit | None] = {
    ("a", "m"): (("am", 1),),
    ("p", "m"): (("pm", 1),),
    ("in", "total"): None,
    ("in", "all"): None,
}
_PLURALS = (("ies", "y"), ("xes", "x"), ("ches", "ch"), ("shes", "sh"), ("sses", "ss"), ("s", ""))


def is_unit(words: Sequence[str], is_singular: bool) -> bool:
    """True if the words after a value are a unit: a known measure, or a noun in the plural (`5 red balls`).

    `is_singular`: the value is 1 or a fraction, so the noun may be singular (`\\frac{1}{2} \\text{ pizza}`).
    """
    if lower_case(words[-2:]) in _IN_TOTAL:
        words = words[:-2]
        if not words:
            return True
    if not words or not is_plain(words):
        return False
    lower = lower_case(words)
    if len(lower) == 1 and lower[0] in AFTER_NUMBER:
        return True
    if _starts_with_measure(words):
        return not _contradict(lower) and all(_may_follow(before, word) for before, word in pairwise(lower))
    return _is_noun_phrase(lower, is_singular)


def _starts_with_measure(words: Sequence[str]) -> bool:
    first = next((word for word in words if word.lower() not in DIMENSION_WORDS), "")
    # `units` alone is a noun like any other, but `square units` is a measure.
    is_any_measure = first.lower() in ANY_MEASURE and first != words[0]
    return is_any_measure or _measure(first) is not None or lower_case(words) in _TIMES_OF_DAY


def _may_follow(before: str, word: str) -> bool:
    """True if a word can follow another one in a unit that starts with a measure."""
    if word in BETWEEN or word in AFTER_UNIT or word in IRREGULAR_PLURALS or word in ANY_MEASURE:
        return True
    if word in DIMENSION_WORDS or word in MEASURE_NAMES:
        return True
    # Any noun may follow `per`: `cents per ticket`.
    return before in BETWEEN and _is_noun(word, may_be_singular=True)


def _is_noun_phrase(lower: list[str], is_singular: bool) -> bool:
    """True if the noun that is counted is in the right number: `red balls in the box`, `books each`."""
    while len(lower) > 1 and lower[-1] in AFTER_UNIT and lower[-2] not in BETWEEN:
        lower = lower[:-1]
    end = next((i for i, word in enumerate(lower) if word in BETWEEN), len(lower))
    return end > 0 and lower[-1] not in BETWEEN and _is_noun(lower[end - 1], is_singular)


def _contradict(lower: Sequence[str]) -> bool:
    """True if neighbouring words are different measures of one dimension."""
    names: list[str | None] = []
    for word in lower[:-1]:
        # `in` means inches only at the end: `5 feet in total`.
        names.append(None if word in BETWEEN else MEASURE_NAMES.get(word))
    names.append(MEASURE_NAMES.get(lower[-1]))
    return any(a != b and _have_same_dimension(a, b) for a, b in pairwise(names))


def _have_same_dimension(a: str | None, b: str | None) -> bool:
    return any(a in measures and b in measures for measures in SAME_DIMENSION)


def _is_noun(word: str, may_be_singular: bool) -> bool:
    # A single letter is not a measure here: `5 M` is five million.
    if word in IRREGULAR_PLURALS or word in ANY_MEASURE or (word in MEASURE_NAMES and len(word) > 1):
        return True
    if may_be_singular:
        return len(word) > 2 and not ADJECTIVE.fullmatch(word)
    return len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is"))


def _measure(word: str) -> str | None:
    # The case of a single letter counts: `5 K` is kelvin, `5 k` is five thousand.
    if word in MEASURE_NAMES or len(word) == 1:
        return MEASURE_NAMES.get(word)
    return MEASURE_NAMES.get(word.lower())


def power(word: str, before: str) -> int:
    """The power of a measure that the word after it names: 2 in `cm squared`, otherwise 0."""
    if before.lower() in ANY_MEASURE or _measure(before) is not None:
        return POWER_WORDS.get(word.lower(), 0)
    return 0


@dataclass
class _Tally:
    """The unit in the words read so far."""

    exponents: dict[str, int] = field(default_factory=dict)
    sign: int = 1
    """-1 after `per`."""
    scale: int = 1
    """The power that `square` or `cubic` gives to the next measure."""
    noun: str = ""
    """The last noun of this side of `per`, which is the unit if no measure follows it."""
    has_measure: bool = False

    def add(self, name: str, exponent: int = 1) -> None:
        self.exponents[name] = self.exponents.get(name, 0) + self.sign * exponent

    def add_measure(self, name: str, exponent: int) -> None:
        for part, part_exponent in _RATES.get(name, ((name, 1),)):
            self.add(part, self.scale * exponent * part_exponent)
        self.scale = 1
        self.noun = ""
        self.has_measure = True

    def end_side(self) -> None:
        """End the words before or after `per`."""
        if self.noun:
            self.add(self.noun)
        self.sign = -1
        self.noun = ""
        self.has_measure = False

    def unit(self) -> Unit | None:
        items = self.exponents.items()
        if not _TEMPERATURES.isdisjoint(self.exponents):  # `degrees Celsius` are Celsius
            items = {name: exponent for name, exponent in items if name != "degree"}.items()
        return tuple(sorted(items)) or None


def unit(words: Sequence[str], powers: Sequence[int] = ()) -> Unit | None:
    """The unit that the words describe: the measures before and after `per`, or the noun if there are none.

    Each word may have a power. `square cm` and `cm` to the power 2 are `(("cm", 2),)`. Adjectives, and words
    after `of` or `in`, do not count.
    """
    lower = lower_case(words)
    if tuple(lower) in _PHRASES:
        return _PHRASES[tuple(lower)]
    tally = _Tally()
    exponents = powers or [1] * len(words)
    for i, (word, exponent) in enumerate(zip(words, exponents, strict=True)):
        name = "unit" if lower[i] in ANY_MEASURE else _measure(word)
        if i and lower[i] in PER:
            tally.end_side()
        elif lower[i] in DIMENSION_WORDS:
            tally.scale = DIMENSION_WORDS[lower[i]]
        elif lower[i] in BETWEEN and not _is_inches(lower, i):
            if i and lower[i] in {"of", "in"}:
                break
        elif name:
            tally.add_measure(name, exponent)
        elif lower[i] not in AFTER_UNIT and not tally.has_measure:
            tally.noun = _singular(lower[i])
    tally.end_side()
    return tally.unit()


def _is_inches(lower: Sequence[str], place: int) -> bool:
    """True for `in` directly after the value, and in `square in`. Elsewhere it is a preposition."""
    return lower[place] == "in" and (place == 0 or lower[place - 1] in DIMENSION_WORDS)


def _singular(noun: str) -> str:
    for plural, singular in _PLURALS:
        if noun.endswith(plural):
            return noun.removesuffix(plural) + singular
    return noun


def combined_unit(sign: Unit | None, words: Unit | None) -> Unit | None:
    """The unit of a value with a sign and words: `\\$5 \\text{ per hour}`.

    Raises ValueError if they are different measures.
    """
    if sign is None or words is None:
        return sign or words
    if all(exponent < 0 for _, exponent in words):
        return tuple(sorted((*sign, *words)))
    if sign != words and any(name in MEASURES for name, _ in words):
        raise ValueError("two units")
    return sign


def are_compatible(a: Unit | None, b: Unit | None) -> bool:
    """True if two units may belong to the same answer.

    They are equal, or one is missing or any unit. Of two prices or numbers of things, one may leave out its
    denominator (`5 dollars`, `5 dollars per hour`).
    """
    if a is None or b is None or a == b or "unit" in dict(a) or "unit" in dict(b):
        return True
    if DEGREE in (a, b) and {CELSIUS, FAHRENHEIT} & {a, b}:
        return True
    numerator = _side(a, 1)
    is_counted = all(name in COUNTED or name not in MEASURES for name, _ in numerator)
    are_both_rates = _side(a, -1) and _side(b, -1)
    return numerator == _side(b, 1) and is_counted and not are_both_rates


def _side(unit: Unit, sign: int) -> Unit:
    """The measures above (`sign` 1) or below (-1) the line of a rate."""
    return tuple((name, exponent) for name, exponent in unit if exponent * sign > 0)


def is_percentage(unit: Unit | None) -> bool:
    return unit is not None and "percent" in dict(unit)
