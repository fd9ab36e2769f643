"""The words that may accompany a value in a box: units (`5 \\text{ apples}`), names (`\\text{Area} = 5`) and an opening
(`\\text{The answer is } 5`).

Only noun phrases are labels. A word that denies, hedges, offers an alternative, compares or counts makes the answer wrong,
because the box then says something else than the value.
"""

import re
from collections.abc import Sequence
from itertools import pairwise


def word_set(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


_MEASURES = {
    "cm": "centimeter centimeters centimetre centimetres", "mm": "millimeter millimeters millimetre millimetres",
    "m": "meter meters metre metres", "km": "kilometer kilometers kilometre kilometres", "in": "inch inches",
    "ft": "foot feet", "yd": "yard yards yds", "mi": "mile miles", "kg": "kilogram kilograms kilo kilos", "g": "gram grams gm gms",
    "mg": "milligram milligrams", "lb": "lbs pound pounds", "oz": "ounce ounces", "l": "L liter liters litre litres",
    "ml": "mL milliliter milliliters", "gal": "gallon gallons", "s": "sec secs second seconds", "min": "mins minute minutes",
    "h": "hr hrs hour hours", "day": "days", "week": "weeks", "month": "months", "year": "yr yrs years", "mph": "",
    "kmh": "kmph kph", "percent": "pct percentage percents",
    "degree": "deg degrees", "radian": "rad radians rads", "dollar": "dollars USD",
    "cent": "cents", "euro": "euros EUR", "rupee": "rupees", "am": "", "pm": "", "n": "N newton newtons", "j": "J joule joules",
    "w": "W watt watts", "v": "V volt volts", "a": "A amp amps", "hz": "Hz hertz", "k": "K kelvin", "ohm": "ohms", "acre": "acres",
}  # fmt: skip
_SAME_KIND = [
    word_set(names)
    for names in ("cm mm m km in ft yd mi", "kg g mg lb oz", "l ml gal", "s min h day week month year", "mph kmh", "am pm",
                  "percent degree radian", "dollar cent euro rupee")
]  # fmt: skip
"""Measures of which a value has one: `5 m cm` is neither 5 m nor 5 cm."""
_UPPER = word_set("n j w v a k")
"""Names here of units whose symbol is a capital letter: `5 k` is five thousand, not five kelvin."""
_ALIASES = {alias: name for name, aliases in _MEASURES.items() for alias in (name, *aliases.split()) if alias not in _UPPER}
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_ANY_MEASURE = frozenset({"unit", "units"})
_IRREGULAR = word_set("people men women children feet teeth mice geese sheep fish deer dice cattle mph kmh pm am")
_BETWEEN = word_set("per of in a an the each every")
_AFTER = word_set("old long tall high wide deep away apart total altogether each left remaining overall")
_QUANTITIES = word_set(
    "age amount angle answer area average base circumference coefficient cost count degree degrees denominator determinant"
    " diameter difference dimensions discriminant distance earnings expectation factor height hypotenuse intercept interest"
    " length limit maximum max mean median minimum min mode money number numbers numerator outcomes perimeter period price"
    " probability product profit quotient radius range rate ratio remainder result root roots salary score side slope solution"
    " solutions speed sum term time total value values variance velocity volume weight width mass vertex center"
)
DENIED = word_set(
    # negation, doubt, judgement
    "no not none never neither nor nope nah without except excluding minus negative non wrong false untrue incorrect invalid bad"
    " wrongs falsehood falsehoods contradiction contradictions error errors mistake mistakes fake"
    " lie lies bogus nonsense rubbish trash garbage"
    " joke oops sorry wait hmm impossible"
    " undefined unknown unsure uncertain doubt doubts doubtful guess guesses maybe perhaps possible probable likely unlikely"
    " might may could would should can cannot must will shall actual instead rather otherwise else unless if whether though"
    " although however but yet still versus vs alternative alternatives option options choice choices right correct true sure"
    " certain yes ok okay confirmed rejected refuted disproved opposite contrary ignore cancel delete scratch change"
    # alternatives, comparison, approximation
    " or and either both any some all other others another also plus more less fewer most least over under above below beyond"
    " between within than up down almost about around approx roughly near nearly close exact ish upper lower bound bounds"
    " greater larger smaller bigger sometimes always often seldom rarely besides whereas regardless nevertheless"
    # verbs and pronouns
    " is are was were be been being do does did has have had get gets give gives make makes mean means say says"
    " think thinks thought believe believes equal equals fail fails hold holds become becomes seem seems appear appears depend"
    " depends work works apply applies exist exists remain remains look looks sound sounds feel feels win wins lose loses need"
    " needs want wants require requires miss misses mislead misleads disagree disagrees kidding joking vary"
    " varies differ differs exceed exceeds contradict contradicts stand stands let lets go goes it its this that"
    " these those they them he she we you i my your who which what when where why how there here as so because since then thus"
    " hence therefore"
    # numbers
    " zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen"
    " nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred hundreds thousand thousands million millions"
    " billion billions trillion trillions dozen dozens half halves quarter third thirds fourths fifths tenths hundredths"
    " thousandths double twice thrice triple squared cubed mod modulo"
)
"""Words that no label contains. They are of closed classes, except for those that judge an answer."""
_ADVERB = re.compile(r"(?!family|assembly|butterfly|jelly|lily|bully|belly|supply|monopoly|anomaly|fly).+ly")
_ADJECTIVE = re.compile(
    r"(?!(?:vege)?table|cable|bed|seed|dish|fish|olive|five).+(?:ous|ible|able|ish|ful|less|ive|ed|ect|ish|wise|ic|al)"
)
_OPENING = re.compile(
    r"(?:(?:so|thus|hence|therefore) )?(?:the )?(?:final |correct )?(?:answer|result|solution|value)(?: is| are)?"
)
_BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9", "ten": "10"}
LONGEST_LABEL = 6
"""Words."""

Measure = tuple[str, int]
"""The unit's name and its power."""


def is_plain(words: Sequence[str]) -> bool:
    """Whether the words may be part of a label: few, and none that denies, hedges, compares or counts."""
    lower = [word.lower() for word in words]
    return len(words) <= LONGEST_LABEL and not any(word in DENIED or _ADVERB.fullmatch(word) for word in lower)


def is_unit(words: Sequence[str], is_singular: bool) -> bool:
    """Whether the words after a value are a unit: a known measure, or a noun in the plural (`5 red balls`).

    `is_singular`: the value is 1 or a fraction, so that the noun may be in the singular (`\\frac{1}{2} \\text{ pizza}`).
    """
    if not words or not is_plain(words):
        return False
    lower = [word.lower() for word in words]
    if lower in (["in", "total"], ["in", "all"]):
        return True
    if measure(words):
        if _contradict(lower):
            return False
        known = _BETWEEN | _AFTER | _IRREGULAR | _ANY_MEASURE | set(_POWERS) | set(_ALIASES)
        # `cents per ticket`: any noun may follow `per`
        return all(word in known or (before in _BETWEEN and _is_noun(word, True)) for before, word in pairwise(lower))
    while len(lower) > 1 and lower[-1] in _AFTER and lower[-2] not in _BETWEEN:
        lower.pop()
    end = next((i for i, word in enumerate(lower) if word in _BETWEEN), len(lower))
    return end > 0 and lower[-1] not in _BETWEEN and _is_noun(lower[end - 1], is_singular)


def _contradict(lower: Sequence[str]) -> bool:
    """Whether neighbouring words are different measures of one kind. `in` is inches only at the end: `5 feet in total`."""
    names = [None if word in _BETWEEN else _ALIASES.get(word) for word in lower[:-1]] + [_ALIASES.get(lower[-1])]
    return any(a != b and any(a in kind and b in kind for kind in _SAME_KIND) for a, b in pairwise(names))


def _is_noun(word: str, may_be_singular: bool) -> bool:
    if word in _IRREGULAR or word in _ANY_MEASURE or word in _ALIASES:
        return True
    if may_be_singular:
        return len(word) > 2 and not _ADJECTIVE.fullmatch(word)
    return len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is"))


def measure(words: Sequence[str], power: int = 1) -> Measure | None:
    """The first measure of a unit: `square cm` and `cm` to the power 2 are `("cm", 2)`. None if the measure is not known."""
    if [word.lower() for word in words] in (["a", "m"], ["p", "m"]):
        return words[0].lower() + "m", 1
    for i, word in enumerate(words):
        if word.lower() in _POWERS:
            power = _POWERS[word.lower()]
        elif name := _ALIASES.get(word) or (_ALIASES.get(word.lower()) if len(word) > 1 else None):
            return name, power
        else:
            return ("unit", 1) if i and word.lower() in _ANY_MEASURE else None
    return None


def are_compatible(a: Measure | None, b: Measure | None) -> bool:
    """Whether two units may belong to the same answer: they are equal, or one is missing, unknown or any unit."""
    return a is None or b is None or a == b or "unit" in (a[0], b[0])


def is_quantity(words: Sequence[str]) -> bool:
    """Whether the words before `=` name a quantity: `Area`, `Total cost`, `number of ways`."""
    return is_plain(words) and any(word.lower() in _QUANTITIES for word in words)


def opening_length(words: Sequence[str]) -> int:
    """How many of the words are an opening such as `The answer is`."""
    for count in range(min(len(words), LONGEST_LABEL), 0, -1):
        if _OPENING.fullmatch(" ".join(words[:count]).lower()):
            return count
    return 0


def base(word: str) -> str | None:
    """The base that a word in a subscript names: `five` is 5."""
    return _BASES.get(word.lower())
