"""English words that grading knows: measures, nouns, and the words that deny, hedge, judge or count.

Tables only. `labels` and `units` give them their meaning.
"""

import re


def word_set(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


def first_of_line(table: str) -> dict[str, str]:
    """For each word of a table, the first word of its line."""
    firsts: dict[str, str] = {}
    for line in table.strip().splitlines():
        words = line.split()
        firsts |= dict.fromkeys(words, words[0])
    return firsts


_MEASURES = """
cm centimeter centimeters centimetre centimetres
mm millimeter millimeters millimetre millimetres
m meter meters metre metres
km kilometer kilometers kilometre kilometres
in inch inches
ft foot feet
yd yard yards yds
mi mile miles
kg kilogram kilograms kilo kilos
g gram grams gm gms
mg milligram milligrams
lb lbs pound pounds
oz ounce ounces
l L liter liters litre litres
ml mL milliliter milliliters
gal gallon gallons
s sec secs second seconds
min mins minute minutes
h hr hrs hour hours
day days
week weeks
month months
year yr yrs years
mph
kmh kmph kph
percent pct percentage percents
degree deg degrees
celsius centigrade
fahrenheit
radian rad radians rads
dollar dollars USD
cent cents
euro euros EUR
rupee rupees
yen
am
pm
n N newton newtons
j J joule joules
w W watt watts
v V volt volts
a A amp amps
hz Hz hertz
k K kelvin
ohm ohms
acre acres
kj kilojoule kilojoules
kw kilowatt kilowatts
kwh
pa pascal pascals
kpa
atm
mol mole moles
rpm
bpm
kb kilobyte kilobytes
mb megabyte megabytes
gb gigabyte gigabytes
"""
"""Measures, one per line: the name here, and its other spellings."""
_DIMENSIONS = """
cm mm m km in ft yd mi
kg g mg lb oz
l ml gal
s min h day week month year
mph kmh
am pm
percent degree radian
celsius fahrenheit
dollar cent euro rupee yen
"""
SAME_DIMENSION = tuple(map(word_set, _DIMENSIONS.strip().splitlines()))
"""Measures of which a value has one: `5 m cm` is neither 5 m nor 5 cm."""
_CAPITAL_SYMBOLS = word_set("n j w v a k")
"""Names of units whose symbol is a capital letter: `5 k` is five thousand, not five kelvin."""
_SPELLINGS = first_of_line(_MEASURES)
MEASURES = frozenset(_SPELLINGS.values())
MEASURE_NAMES = {text: name for text, name in _SPELLINGS.items() if text not in _CAPITAL_SYMBOLS}
"""The name of the measure that each spelling means."""
COUNTED = word_set("percent dollar cent euro rupee yen unit")
"""Measures whose rate may be left out: a price of `5 cents` per mile. Nouns are counted, too."""
DIMENSION_WORDS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
"""Words before a measure that raise it to a power."""
POWER_WORDS = {"squared": 2, "cubed": 3}
"""Words after a measure that raise it to a power."""
ANY_MEASURE = frozenset({"unit", "units"})
IRREGULAR_PLURALS = word_set(
    "people men women children feet teeth mice geese sheep fish deer dice cattle mph kmh pm am"
)
BETWEEN = word_set("per of in a an the each every")
"""Words between the nouns of a unit."""
PER = word_set("per a an each every")
"""Words that begin the denominator of a rate."""
AFTER_UNIT = word_set(
    "old long tall high wide deep away apart total altogether each left remaining overall later ago"
)
AFTER_NUMBER = word_set("total altogether overall each left remaining")
"""Words that may follow a value without a unit."""
NUMBER_NAMES = {
    "two": "2", "three": "3", "four": "4", "five": "5", "six": "6",
    "seven": "7", "eight": "8", "nine": "9", "ten": "10",
}  # fmt: skip
QUANTITIES = word_set(
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
DENYING = JUDGING | word_set(
    "no not none never neither nor nope nah without except excluding minus minuses negative negatives non"
    " factorials oops sorry wait hmm impossible undefined unknown unsure uncertain doubt doubts doubtful"
    " guess guesses maybe perhaps possible probable likely unlikely might may could would should can cannot"
    " must will shall actual instead rather otherwise else unless if whether though although however but yet"
    " still versus vs alternative alternatives option options choice choices right correct true sure certain"
    " yes ok okay confirmed opposite contrary ignore cancel delete scratch change"
)
"""Words that deny, hedge or judge."""
DENIED = DENYING | word_set(
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
are `NUMBER_WORD`.
"""
_TEENS = "(?:thir|four|fif|six|seven|eigh|nine)teen"
_TENS = "(?:twen|thir|for|fif|six|seven|eigh|nine)"
_LARGE = "hundred|thousand|[a-z]*illion|googol"
_CARDINAL = (
    "zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|half|halve|quarter|third"
    f"|dozen|score|gross|lakh|crore|myriad|{_TEENS}|{_TENS}ty|{_LARGE}"
)
_ORDINAL = f"(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|{_TEENS}|{_TENS}tie|{_LARGE})th"
NUMBER_WORD = re.compile(rf"(?:{_CARDINAL}|{_ORDINAL})(?:e?s)?")
"""A cardinal or ordinal number, in the singular or plural: `six`, `sixes`, `sixth`, `sixths`."""
ADVERB = re.compile(r"(?!family|assembly|butterfly|jelly|lily|bully|belly|supply|monopoly|anomaly|fly).+ly")
"""Adverbs hedge (`nearly 5`). The exceptions are nouns."""
ADJECTIVE = re.compile(
    r"(?!(?:vege)?table|cable|bed|seed|dish|fish|olive|five).+"
    r"(?:ous|ible|able|ish|ful|less|ive|ed|ect|wise|ic|al)"
)
