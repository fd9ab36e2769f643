"""The letter of a multiple-choice answer.

A box may hold the letter and the text of the chosen option: `B) 5 cm`. The text must not name another
option, and must not take the choice back. The options are not known here, so a text that may do either
makes the answer wrong.
"""

import re
import unicodedata

from lark.grading.strict.labels import is_plain
from lark.grading.strict.vocabulary import JUDGING, word_set

LONGEST_CHOICE = 1000
"""Characters. A longer answer is not read, and counts as no choice."""

_MACRO = re.compile(r"\\(?:text[a-z]*|math(?:rm|bf|sf|it)|mbox|boxed|fbox|operatorname)\s*\{([^{}]*)\}")
_ANNOUNCEMENT = re.compile(
    r"(?:the )?(?:final |correct )?(?:answer|option|choice)(?: is)?\s*:?\s+(?=\(?[A-Za-z]\b)", re.IGNORECASE
)
_CHOSEN_LETTER = re.compile(
    r"(?P<open>[(\[{]?)\s*(?P<letter>[A-Za-z])\s*"
    r"(?P<end>$|[)\]}][.:]?|[.:](?=\s|$)|(?<=\s)[-\u2013\u2014](?=\s+[0-9]))"
)
_CLOSING_OF = {"(": ")", "[": "]", "{": "}"}
_QUOTED = re.compile(r"([\"'`_]|\*{1,3}|__)(\(?[A-Za-z][).:]?)\1")
_INVISIBLE = re.compile(
    r"\\(?:(?:left|right|displaystyle|textstyle|bf|rm|q?quad|[Ll]arge)(?![A-Za-z])|[,;:!()\[\] ])"
)
_SHORTENED_NOT = re.compile(r"(?<=[a-z])n['\u2019]t\b")
_SHORTENED_IS = re.compile(r"['\u2019](?:m|s|re)\b")
_FIRST_PERSON = re.compile(
    r"\bI(?:['\u2019]|\s+(?:am|think|believe|guess|suppose|feel|was|would|will|can|cannot|could|may|might|do|did"
    r"|have|choose|chose)\b)|\b(?:[Ll]et me|[Ll]et['\u2019]s|[Mm]y)\b"
)
"""An option's text does not speak of the writer."""
_EMPHASIS = re.compile(r"(\*{1,3}|__)([^*_]+)\1")
"""Markdown's emphasis around the whole answer."""
_SPECIES = re.compile(
    r"(?<![A-Za-z])(?:A\. (?:thaliana|fumigatus|niger)|B\. (?:subtilis|anthracis|cereus)"
    r"|C\. (?:elegans|albicans|difficile|botulinum|tetani)|D\. (?:melanogaster|rerio|discoideum)"
    r"|E\. (?:coli|faecalis)|G\. gallus|H\. (?:pylori|influenzae|sapiens))(?![A-Za-z])"
)
"""Names of species whose genus is abbreviated to a letter that could be an option's."""
_YES_OR_NO = re.compile(r"\s*(?:Yes|No|True|False)\.?")
_ARROW = re.compile(r"->|=>|\u2192|\u21d2|\\to\b|\\[A-Za-z]*arrow|\?")
_LABEL = re.compile(r"(?<![A-Za-z0-9])\(?[A-HJa-hj][).:](?!-)(?:\s|[A-Za-z]\)|$)")
"""Another option's label: `C)`, `(C)`, `c.`. Not the start of a chemical name, `(E)-but-2-ene`."""
_OPTION = re.compile(r"(?<![A-Za-z0-9_=^\\'])(?<![A-Za-z0-9)\]}]-)[A-HJ](?![A-Za-z0-9_=^'-]|\)-)")
"""A capital letter that can be another option's, and is not a part of a word or formula such as `C-H`, or
the numeral I.
"""
_LOWER_OPTION = re.compile(
    r"(?:^|\b(?:or|and|not|maybe|rather|actually|is)|[,;:/&|]|\.\.|\u2026)\s*[(\[]?[a-hj][)\]]?\s*$"
)
_LOOKALIKES = str.maketrans(
    "\u0391\u0392\u0395\u0397\u03f9\u0410\u0412\u0421\u0415\u041d\u0430\u0441\u0435", "ABEHCABCEHace"
)
"""Greek and Cyrillic letters that look like an option's."""
_ABOUT_OPTIONS = re.compile(r"\b(?:option|choice|answer)s?\b", re.IGNORECASE)
_OF_THE_OPTIONS = re.compile(
    r"^(?:all|any|both|each|neither|none) of (?:the|these)(?: (?:above|following|given|other))?"
    r" (?:option|choice|answer)s\b",
    re.IGNORECASE,
)
"""An option's text is about the question, not about the options, unless it is `none of the other options`."""
_HESITATION = re.compile(r"\b(?:h+m{2,}|u+h+m*)\b", re.IGNORECASE)
_FORMULA = re.compile(r"\s*=\s*(?:[0-9\\(-]|(?P<symbols>[A-Za-z]{1,2})(?![A-Za-z]))")
"""The right side of a formula whose left side is a letter: `E = mc^2`."""
_SYMBOLS = re.compile(
    r"\b(?:hydrogen \(H|boron \(B|carbon \(C|fluorine \(F|adenine \(A|cytosine \(C|guanine \(G)\)",
    re.IGNORECASE,
)
"""Chemical symbols after their names."""
_BARE_COMPARISON = re.compile(r"[A-J] (?:is|are|has|have|was) (?P<rest>.+)", re.DOTALL)
"""`C is larger`: the chosen option's text may be about a quantity C."""
_JUDGEMENTS = word_set("right correct better best true answer it one likely more")
_LABELLED = word_set(
    "vitamin hepatitis point vertex line plane set event type group class grade phase state stage step"
    " compound element protein gene enzyme molecule reagent product sample solution vessel container tank box"
    " block object body car planet star particle charge ball person player team figure table region zone"
    " layer site matrix vector graph circuit resistor factor antigen influenza process reaction structure"
    " species isomer strain peak band"
)
"""Nouns that a letter follows as a label: `vitamin C`."""
_RETRACTIONS = word_set(
    "maybe perhaps possibly probably presumably actually wrong incorrect unsure uncertain guess oops sorry"
    " wait hmm nope nah mistake ignore scratch instead unlikely doubt doubtful guessing alternatively"
    " otherwise correction kidding joking lol strike decide undecided convinced unclear"
)
_CONNECTIVES = word_set("or but nor and rather unless except though although if versus vs also is")
_VERDICT = JUDGING | word_set(
    "it this that these those i you he she they is are was were be been has not no never sure right correct"
    " true false am could would does did ca wo cannot excluded ruled crossed struck out off"
)
"""Words that judge the choice if the text has no others."""
_SUITS = word_set("fit fits work works make makes sense do can")
"""Words that judge the choice together with `not`."""


_WORDS = re.compile(r"[a-z]+")
_JOINED_LETTER = re.compile(r"[-=/,;&|]\s*[A-Za-z]")
_FIRST_WORD = re.compile(r"if and only if|[a-z]*")
_TWO_OPTIONS = (_LABEL, _LOWER_OPTION, _ARROW)
_ABOUT_THE_CHOICE = (_HESITATION, _FIRST_PERSON)


def choice_letter(answer: str) -> str | None:
    """The chosen letter in upper case: `B`, `b`, `(B)`, `B.`, `\\text{B}`, `B) 5 cm`. None for no letter, or
    for two.
    """
    if len(answer) > LONGEST_CHOICE:
        return None
    text = _visible(answer)
    match = _CHOSEN_LETTER.match(text)
    if match is None or not _is_enclosed(match["open"], match["end"][:1]):
        return None
    letter = match["letter"].upper()
    # Options that are written in full-width, mathematical, Greek or Cyrillic letters count, too.
    rest = unicodedata.normalize("NFKC", text[match.end() :].translate(_LOOKALIKES))
    rest = _SYMBOLS.sub("symbol", _SPECIES.sub("species", rest))
    # `B) No` is an option's text, but `B no` takes the choice back.
    if match["end"][-1:] in {")", "."} and _YES_OR_NO.fullmatch(rest):
        return letter
    return letter if _describes(rest.strip()) else None


def _visible(answer: str) -> str:
    """The answer without layout, emphasis, quotes and an announcement such as `The answer is`."""
    text = answer.strip()
    for _ in range(3):  # macros in macros: `\boxed{\text{B}}`
        text = _MACRO.sub(r"\1", text)
    emphasised = _EMPHASIS.fullmatch(text)
    if emphasised:
        text = emphasised[2]
    text = _INVISIBLE.sub(" ", text)
    text = _QUOTED.sub(r"\2", text).replace("$", "").strip()
    return _ANNOUNCEMENT.sub("", text, count=1)


def _is_enclosed(opening: str, closing: str) -> bool:
    """True if the brackets around a letter belong together. `B)` has only the closing one."""
    return closing == _CLOSING_OF[opening] if opening else closing not in {"]", "}"}


def _describes(text: str) -> bool:
    """True if the text after the letter can be the chosen option's text, and names no other option."""
    if any(pattern.search(text) for pattern in _TWO_OPTIONS) or _JOINED_LETTER.match(text):
        return False
    if any(pattern.search(text) for pattern in _ABOUT_THE_CHOICE):
        return False
    if _ABOUT_OPTIONS.search(_OF_THE_OPTIONS.sub("", text)) or _takes_back(text):
        return False
    return not any(_is_another_option(text, match) for match in _OPTION.finditer(text))


def _takes_back(text: str) -> bool:
    """True if the text denies, doubts or only judges the choice."""
    full_forms = _SHORTENED_IS.sub(" is", _SHORTENED_NOT.sub(" not", text.lower()))
    words = _WORDS.findall(full_forms)
    first = _FIRST_WORD.match(text.lower())
    if (first and first[0] in _CONNECTIVES) or not _RETRACTIONS.isdisjoint(words):
        return True
    if words and words[0] in {"no", "not"} and (len(words) == 1 or not is_plain(words[1:2])):
        return True
    verdicts = _VERDICT | _SUITS if "not" in words else _VERDICT
    has_digit = any(character.isdigit() for character in text)
    return bool(words) and verdicts.issuperset(words) and not has_digit


def _is_another_option(text: str, match: re.Match[str]) -> bool:
    """True if a capital letter is another option, and not an article (`A new star`), a label (`vitamin C`) or
    a quantity.
    """
    before = text[: match.start()]
    after = text[match.end() :]
    formula = _FORMULA.match(after)
    if formula and is_plain([formula["symbols"] or ""]):
        return False
    is_article = match[0] == "A" and re.match(r" [a-z]{2,}", after)
    if is_article and not _BARE_COMPARISON.match(text[match.start() :]):
        return False
    if not before:
        comparison = _BARE_COMPARISON.fullmatch(text)
        if comparison is None:
            return True
        return not _JUDGEMENTS.isdisjoint(_WORDS.findall(comparison["rest"].lower()))
    is_unit = re.search(r"[0-9}] $", before) and not re.match(r"\s*[A-Za-z]", after)  # 300 J
    words = _WORDS.findall(before.lower())
    is_label = bool(words) and words[-1] in _LABELLED and before.endswith(" ")
    return not is_unit and not is_label
