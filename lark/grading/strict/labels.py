"""The words that may accompany a value in a box: units (`5 \\text{ apples}`), names (`\\text{Area} = 5`)
and an opening (`\\text{The answer is } 5`).

Only noun phrases are labels. A word that denies, hedges, offers an alternative, compares or counts makes
the answer wrong, because the box then says something else than the value.
"""

import re
from collections.abc import Sequence
from itertools import pairwise


def word_set(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


_MEASURES = {
    "cm": "centimeter centimeters centimetre centimetres",
    "mm": "millimeter millimeters millimetre millimetres",
    "m": "meter meters metre metres",
    "km": "kilometer kilometers kilometre kilometres",
    "in": "inch inches",
    "ft": "foot feet",
    "yd": "yard yards yds",
    "mi": "mile miles",
    "kg": "kilogram kilograms kilo kilos",
    "g": "gram grams gm gms",
    "mg": "milligram milligrams",
    "lb": "lbs pound pounds",
    "oz": "ounce ounces",
    "l": "L liter liters litre litres",
    "ml": "mL milliliter milliliters",
    "gal": "gallon gallons",
    "s": "sec secs second seconds",
    "min": "mins minute minutes",
    "h": "hr hrs hour hours",
    "day": "days",
    "week": "weeks",
    "month": "months",
    "year": "yr yrs years",
    "mph": "",
    "kmh": "kmph kph",
    "percent": "pct percentage percents",
    "degree": "deg degrees",
    "celsius": "centigrade",
    "fahrenheit": "",
    "radian": "rad radians rads",
    "dollar": "dollars USD",
    "cent": "cents",
    "euro": "euros EUR",
    "rupee": "rupees",
    "yen": "",
    "am": "",
    "pm": "",
    "n": "N newton newtons",
    "j": "J joule joules",
    "w": "W watt watts",
    "v": "V volt volts",
    "a": "A amp amps",
    "hz": "Hz hertz",
    "k": "K kelvin",
    "ohm": "ohms",
    "acre": "acres",
    "kj": "kilojoule kilojoules",
    "kw": "kilowatt kilowatts",
    "kwh": "",
    "pa": "pascal pascals",
    "kpa": "",
    "atm": "",
    "mol": "mole moles",
    "rpm": "",
    "bpm": "",
    "kb": "kilobyte kilobytes",
    "mb": "megabyte megabytes",
    "gb": "gigabyte gigabytes",
}
_SAME_KIND = [
    word_set(names)
    for names in (
        "cm mm m km in ft yd mi",
        "kg g mg lb oz",
        "l ml gal",
        "s min h day week month year",
        "mph kmh",
        "am pm",
        "percent degree radian",
        "celsius fahrenheit",
        "dollar cent euro rupee yen",
    )
]
"""Measures of which a value has one: `5 m cm` is neither 5 m nor 5 cm."""
_UPPER = word_set("n j w v a k")
"""Names here of units whose symbol is a capital letter: `5 k` is five thousand, not five kelvin."""
_ALIASES = {
    alias: name
    for name, aliases in _MEASURES.items()
    for alias in (name, *aliases.split())
    if alias not in _UPPER
}
_RATES = {"mph": (("mi", 1), ("h", -1)), "kmh": (("km", 1), ("h", -1))}
_COUNTED = word_set("percent dollar cent euro rupee yen unit")
"""Measures of which a rate may leave out what it is per: a price of `5 cents` per mile. Nouns are counted,
too.
"""
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_ANY_MEASURE = frozenset({"unit", "units"})
_IRREGULAR = word_set(
    "people men women children feet teeth mice geese sheep fish deer dice cattle mph kmh pm am"
)
_BETWEEN = word_set("per of in a an the each every")
_PER = word_set("per a an each every")
_AFTER = word_set(
    "old long tall high wide deep away apart total altogether each left remaining overall later ago"
)
_TOTAL = word_set("total altogether overall each left remaining")
"""Words that may follow a value without a unit."""
_QUANTITIES = word_set(
    "age amount angle answer area average base circumference coefficient cost count degree degrees"
    " denominator determinant diameter difference dimensions discriminant distance earnings expectation"
    " factor height hypotenuse intercept interest length limit maximum max mean median minimum min mode money"
    " number numbers numerator outcomes perimeter period price probability product profit quotient radius"
    " range rate ratio remainder result root roots salary score side slope solution solutions speed sum term"
    " time total value values variance velocity volume weight width mass vertex center centroid equation"
    " expression function polynomial derivative integral inverse domain interval set point vector matrix"
    " coordinates temperature day date"
)
JUDGING = word_set(
    "wrong wrongs false falsehood falsehoods untrue incorrect invalid bad contradiction contradictions error"
    " errors mistake mistakes fake lie lies bogus nonsense rubbish trash garbage joke rejected refuted"
    " disproved discarded eliminated dismissed"
)
"""Words that call an answer wrong."""
_DENYING = JUDGING | word_set(
    "no not none never neither nor nope nah without except excluding minus minuses negative negatives non"
    " factorials oops sorry wait hmm impossible undefined unknown unsure uncertain doubt doubts doubtful"
    " guess guesses maybe perhaps possible probable likely unlikely might may could would should can cannot"
    " must will shall actual instead rather otherwise else unless if whether though although however but yet"
    " still versus vs alternative alternatives option options choice choices right correct true sure certain"
    " yes ok okay confirmed opposite contrary ignore cancel delete scratch change"
)
"""Words that deny, hedge or judge."""
DENIED = _DENYING | word_set(
    # alternatives, comparison, approximation
    " or and either both any some all other others another also plus more less fewer most least over under"
    " above below beyond between within than up down almost about around approx approximate approximated"
    " rough roughly estimate estimated near nearly close exact ish upper lower bound bounds greater larger"
    " smaller bigger sometimes always often seldom rarely besides whereas regardless nevertheless"
    # verbs and pronouns
    " is are was were be been being do does did has have had get gets give gives make makes means say says"
    " think thinks thought believe believes equal equals fail fails hold holds become becomes seem seems"
    " appear appears depend depends work works apply applies exist exists remain remains look looks sound"
    " sounds feel feels win wins lose loses need needs want wants require requires miss misses mislead"
    " misleads disagree disagrees kidding joking vary varies differ differs exceed exceeds contradict"
    " contradicts stand stands let lets go goes it its this that these those they them he she we you i my"
    " your who which what when where why how there here as so because since then thus hence therefore"
    # operations
    " double twice thrice triple squared cubed mod modulo"
)
"""Words that no label contains. They are of closed classes, except for those that judge an answer. Numbers
are `_NUMBER_WORD`.
"""
_NUMBER_WORD = re.compile(
    r"(?:(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|half|halve|quarter|third|dozen|score|gross|lakh|crore"
    r"|googol|myriad|hundred|thousand|[a-z]*illion|(?:thir|four|fif|six|seven|eigh|nine)teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty)"
    r"|(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|(?:thir|four|fif|six|seven|eigh|nine)teen|hundred|thousand|[a-z]*illion|googol"
    r"|(?:twen|thir|for|fif|six|seven|eigh|nine)tie)th)(?:e?s)?"
)
"""A cardinal or ordinal number, in the singular or plural: `six`, `sixes`, `sixth`, `sixths`. They multiply
or divide.
"""
_ADVERB = re.compile(r"(?!family|assembly|butterfly|jelly|lily|bully|belly|supply|monopoly|anomaly|fly).+ly")
_ADJECTIVE = re.compile(
    r"(?!(?:vege)?table|cable|bed|seed|dish|fish|olive|five).+(?:ous|ible|able|ish|ful|less|ive|ed|ect|ish|wise|ic|al)"
)
_OPENING = re.compile(
    r"it is|(?:(?:so|thus|hence|therefore) )?(?:the )?(?:final |correct )?(?:answer|result|solution|value)(?:"
    r" is| are)?"
)
_ANSWER = re.compile(r"(?:the )?(?:final |correct )?(?:answer|result)")
_BASES = {
    "two": "2",
    "three": "3",
    "four": "4",
    "five": "5",
    "six": "6",
    "seven": "7",
    "eight": "8",
    "nine": "9",
    "ten": "10",
}
LONGEST_LABEL = 6
"""Words."""

Unit = tuple[tuple[str, int], ...]
"""Measures or nouns and their powers, sorted by name: metres per second are `(("m", 1), ("s", -1))`."""
PERCENT: Unit = (("percent", 1),)
DEGREE: Unit = (("degree", 1),)
CELSIUS: Unit = (("celsius", 1),)
FAHRENHEIT: Unit = (("fahrenheit", 1),)
_TEMPERATURES = frozenset({"celsius", "fahrenheit"})
_PHRASES: dict[tuple[str, ...], Unit | None] = {
    ("a", "m"): (("am", 1),), ("p", "m"): (("pm", 1),), ("in", "total"): None, ("in", "all"): None
}  # fmt: skip


def is_plain(words: Sequence[str]) -> bool:
    """Whether the words may be part of a label: few, and none that denies, hedges, compares or counts."""
    lower = [word.lower() for word in words]
    return (
        len(words) <= LONGEST_LABEL
        and not any(word in DENIED or _ADVERB.fullmatch(word) for word in lower)
        and not counts(words)
    )


def counts(words: Sequence[str]) -> bool:
    """Whether one of the words is a number: `5 \\text{ million}` and `5 \\text{ sixths}` are not 5."""
    return any(_NUMBER_WORD.fullmatch(word.lower()) for word in words)


def is_unit(words: Sequence[str], is_singular: bool) -> bool:
    """Whether the words after a value are a unit: a known measure, or a noun in the plural (`5 red balls`).

    `is_singular`: the value is 1 or a fraction, so that the noun may be in the singular (`\\frac{1}{2}
    \\text{ pizza}`).
    """
    if [word.lower() for word in words[-2:]] in (["in", "total"], ["in", "all"]):
        words = words[:-2]
        if not words:
            return True
    if not words or not is_plain(words):
        return False
    lower = [word.lower() for word in words]
    if len(lower) == 1 and lower[0] in _TOTAL:
        return True
    if _starts_with_measure(words):
        if _contradict(lower):
            return False
        known = _BETWEEN | _AFTER | _IRREGULAR | _ANY_MEASURE | set(_POWERS) | set(_ALIASES)
        # `cents per ticket`: any noun may follow `per`
        return all(
            word in known or (before in _BETWEEN and _is_noun(word, True)) for before, word in pairwise(lower)
        )
    while len(lower) > 1 and lower[-1] in _AFTER and lower[-2] not in _BETWEEN:
        lower.pop()
    end = next((i for i, word in enumerate(lower) if word in _BETWEEN), len(lower))
    return end > 0 and lower[-1] not in _BETWEEN and _is_noun(lower[end - 1], is_singular)


def _contradict(lower: Sequence[str]) -> bool:
    """Whether neighbouring words are different measures of one kind. `in` is inches only at the end: `5
    feet in total`.
    """
    names = [None if word in _BETWEEN else _ALIASES.get(word) for word in lower[:-1]] + [
        _ALIASES.get(lower[-1])
    ]
    return any(a != b and any(a in kind and b in kind for kind in _SAME_KIND) for a, b in pairwise(names))


def _is_noun(word: str, may_be_singular: bool) -> bool:
    if (
        word in _IRREGULAR or word in _ANY_MEASURE or (word in _ALIASES and len(word) > 1)
    ):  # `5 M` is five million
        return True
    if may_be_singular:
        return len(word) > 2 and not _ADJECTIVE.fullmatch(word)
    return len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is"))


def _starts_with_measure(words: Sequence[str]) -> bool:
    first = next((word for word in words if word.lower() not in _POWERS), "")
    is_any = first.lower() in _ANY_MEASURE and first != words[0]
    return (
        is_any or _measure(first) is not None or [word.lower() for word in words] in (["a", "m"], ["p", "m"])
    )


def _measure(word: str) -> str | None:
    return _ALIASES.get(word) or (_ALIASES.get(word.lower()) if len(word) > 1 else None)


def unit(words: Sequence[str], powers: Sequence[int] = ()) -> Unit | None:
    """The unit that the words describe: the measures before and after `per`, or the noun if there are none.
    Each word may have a power. `square cm` and `cm` to the power 2 are `(("cm", 2),)`. What follows `of` or
    `in`, and adjectives, do not count.
    """
    if (phrase := tuple(word.lower() for word in words)) in _PHRASES:
        return _PHRASES[phrase]
    found: dict[str, int] = {}
    sign, scale, noun = 1, 1, ""
    for i, (word, power) in enumerate(zip(words, powers or [1] * len(words), strict=True)):
        lower = word.lower()
        if lower in _PER and i:
            if noun.strip("-"):
                found[noun] = found.get(noun, 0) + sign
            sign, noun = -1, ""
        elif lower in _POWERS:
            scale = _POWERS[lower]
        elif lower in _BETWEEN and not (lower == "in" and (i == 0 or words[i - 1].lower() in _POWERS)):
            if i and lower in {"of", "in"}:
                break
        elif name := "unit" if lower in _ANY_MEASURE else _measure(word):
            for part, exponent in _RATES.get(name, ((name, 1),)):
                found[part] = found.get(part, 0) + sign * scale * power * exponent
            scale, noun = 1, "-"
        elif lower not in _AFTER and noun != "-":
            noun = _singular(lower)
    if noun.strip("-"):
        found[noun] = found.get(noun, 0) + sign
    is_temperature = not _TEMPERATURES.isdisjoint(found)
    return (
        tuple(sorted(item for item in found.items() if not (is_temperature and item[0] == "degree"))) or None
    )


def _singular(noun: str) -> str:
    for plural, singular in (
        ("ies", "y"),
        ("xes", "x"),
        ("ches", "ch"),
        ("shes", "sh"),
        ("sses", "ss"),
        ("s", ""),
    ):
        if noun.endswith(plural):
            return noun.removesuffix(plural) + singular
    return noun


def joined(sign: Unit | None, words: Unit | None) -> Unit | None:
    """The unit of a value with a sign and words: `\\$5 \\text{ per hour}`. Raises ValueError if they are
    different measures.
    """
    if sign is None or words is None:
        return sign or words
    if all(power < 0 for _, power in words):
        return tuple(sorted((*sign, *words)))
    if sign != words and any(name in _MEASURES for name, _ in words):
        raise ValueError("two units")
    return sign


def are_compatible(a: Unit | None, b: Unit | None) -> bool:
    """Whether two units may belong to the same answer: they are equal, or one is missing or any unit; or
    they are a price or a number of things, and one leaves out what it is per.
    """
    if a is None or b is None or a == b or "unit" in dict(a) or "unit" in dict(b):
        return True
    if DEGREE in (a, b) and {CELSIUS, FAHRENHEIT} & {a, b}:
        return True
    above, below = (
        [[(name, power) for name, power in unit if power * sign > 0] for unit in (a, b)] for sign in (1, -1)
    )
    is_counted = all(name in _COUNTED or name not in _MEASURES for name, _ in above[0])
    return above[0] == above[1] and is_counted and not all(below)


def is_quantity(words: Sequence[str]) -> bool:
    """Whether the words before `=` name a quantity: `Area`, `Total cost`, `number of ways`."""
    lower = [word.lower() for word in words]
    if {"answer", "result"} & set(lower):  # not `old answer`
        return _ANSWER.fullmatch(" ".join(lower)) is not None
    return is_plain(words) and any(word in _QUANTITIES for word in lower)


def is_point_name(letters: str, in_figure: bool) -> bool:
    """Whether capital letters can be points (`AB`), and are not a word that denies or counts (`NOT`,
    `SIX`). With the sign of a figure (`in_figure`), the first letters of the alphabet are always points:
    `\\angle BAD`.
    """
    word = letters.lower()
    return (in_figure and set(letters) <= set("ABCDEFGH")) or (word not in _DENYING and not counts([word]))


def is_event(words: Sequence[str]) -> bool:
    """Whether the words in `P(…)` can be an event (`no rain`), not only a denial or a judgement."""
    lower = [word.lower() for word in words]
    return not JUDGING & set(lower) and not DENIED.issuperset(lower)


def opening_length(words: Sequence[str]) -> int:
    """How many of the words are an opening such as `The answer is`."""
    for count in range(min(len(words), LONGEST_LABEL), 0, -1):
        if _OPENING.fullmatch(" ".join(words[:count]).lower()):
            return count
    return 0


def is_name(words: Sequence[str]) -> bool:
    """Whether the words before a value name it, as before `=`: `The total cost is`, `Total cost`."""
    return is_quantity(words[:-1] if words[-1:] and words[-1].lower() in {"is", "are"} else words)


def power(word: str, before: str) -> int:
    """The power of a measure that the word after it names: 2 in `cm squared`, otherwise 0."""
    is_measure = before.lower() in _ANY_MEASURE or _measure(before) is not None
    return {"squared": 2, "cubed": 3}.get(word.lower(), 0) if is_measure else 0


def base(word: str) -> str | None:
    """The base that a word in a subscript names: `five` is 5."""
    return _BASES.get(word.lower())
