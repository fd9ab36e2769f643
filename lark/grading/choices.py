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
_OPENING = re.compile(
    r"(?:the )?(?:final |correct )?(?:answer|option|choice)(?: is)?\s*:?\s+(?=\(?[A-Za-z]\b)", re.IGNORECASE
)
_LETTER = re.compile(
    r"(?P<open>[(\[{]?)\s*(?P<letter>[A-Za-z])\s*(?P<end>$|[)\]}][.:]?|[.:](?=\s|$)|(?<=\s)[-\u2013\u2014](?=\s+[0-9]))"
)
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_QUOTED = re.compile(r"([\"'`_]|\*{1,3}|__)(\(?[A-Za-z][).:]?)\1")
_LAYOUT = re.compile(
    r"\\(?:(?:left|right|displaystyle|textstyle|bf|rm|q?quad|[Ll]arge)(?![A-Za-z])|[,;:!()\[\] ])"
)
_SHORTENED_NOT = re.compile(r"(?<=[a-z])n['\u2019]t\b")
_SHORTENED_IS = re.compile(r"['\u2019](?:m|s|re)\b")
_FIRST_PERSON = re.compile(
    r"\bI(?:['\u2019]|\s+(?:am|think|believe|guess|suppose|feel|was|would|will|can|cannot|could|may|might|do|did|have|choose|chose)\b)"
    r"|\b(?:[Ll]et me|[Ll]et['\u2019]s|[Mm]y)\b"
)
"""An option's text does not speak of the writer."""
_EMPHASIS = re.compile(r"(\*{1,3}|__)([^*_]+)\1")
"""Markdown's emphasis around the whole answer."""
_SPECIES = re.compile(
    r"(?<![A-Za-z])(?:E\. coli|E\. faecalis|C\. elegans|C\. albicans|C\. difficile|C\. botulinum|C\."
    r" tetani|D\. melanogaster"
    r"|D\. rerio|D\. discoideum|H\. pylori|H\. influenzae|H\. sapiens|A\. thaliana|A\. fumigatus|A\."
    r" niger|B\. subtilis"
    r"|B\. anthracis|B\. cereus|G\. gallus)(?![A-Za-z])"
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


def choice_letter(answer: str) -> str | None:
    """The chosen letter in upper case: `B`, `b`, `(B)`, `B.`, `\\text{B}`, `B) 5 cm`. None for no letter,
    or for two.
    """
    if len(answer) > LONGEST_CHOICE:
        return None
    text = answer.strip()
    for _ in range(3):
        text = _MACRO.sub(r"\1", text)
    if whole := _EMPHASIS.fullmatch(text):
        text = whole[2]
    text = _LAYOUT.sub(" ", text)
    text = _OPENING.sub("", _QUOTED.sub(r"\2", text).replace("$", "").strip(), count=1)
    match = _LETTER.match(text)
    if match is None or not _is_enclosed(match["open"], match["end"][:1]):
        return None
    rest = unicodedata.normalize("NFKC", text[match.end() :].translate(_LOOKALIKES))
    rest = _SYMBOLS.sub("symbol", _SPECIES.sub("species", rest))
    if match["end"][-1:] in {")", "."} and _YES_OR_NO.fullmatch(rest):
        return match["letter"].upper()
    return match["letter"].upper() if _describes(rest.strip()) else None


def _is_enclosed(opening: str, closing: str) -> bool:
    """Whether the brackets around a letter belong together. `B)` has only the closing one."""
    return closing == _CLOSING[opening] if opening else closing not in {"]", "}"}


def _describes(text: str) -> bool:
    """Whether the text after the letter can be the chosen option's own, and names no other option."""
    words = re.findall(r"[a-z]+", _SHORTENED_IS.sub(" is", _SHORTENED_NOT.sub(" not", text.lower())))
    if (
        _LABEL.search(text)
        or _LOWER_OPTION.search(text)
        or _ARROW.search(text)
        or re.match(r"[-=/,;&|]\s*[A-Za-z]", text)
    ):
        return False
    if (
        _ABOUT_OPTIONS.search(_OF_THE_OPTIONS.sub("", text))
        or _HESITATION.search(text)
        or _FIRST_PERSON.search(text)
    ):
        return False
    first = re.match(r"if and only if|[a-z]*", text.lower())
    if (first and first[0] in _CONNECTIVES) or _RETRACTIONS & set(words):
        return False
    if words and words[0] in {"no", "not"} and (len(words) == 1 or not is_plain(words[1:2])):
        return False
    verdicts = _VERDICT | _SUITS if "not" in words else _VERDICT
    if words and verdicts.issuperset(words) and not any(character.isdigit() for character in text):
        return False
    return not any(_is_another_option(text, match) for match in _OPTION.finditer(text))


def _is_another_option(text: str, match: re.Match[str]) -> bool:
    """Whether a capital letter is another option, and not an article (`A new star`), a label (`vitamin C`)
    or a quantity.
    """
    before, after = text[: match.start()], text[match.end() :]
    if (formula := _FORMULA.match(after)) and is_plain([formula["symbols"] or ""]):
        return False
    if (
        match[0] == "A"
        and re.match(r" [a-z]{2,}", after)
        and not _BARE_COMPARISON.match(text[match.start() :])
    ):
        return False
    if not before:
        compared = _BARE_COMPARISON.fullmatch(text)
        return compared is None or bool(_JUDGEMENTS & set(re.findall(r"[a-z]+", compared["rest"].lower())))
    if re.search(r"[0-9}] $", before) and not re.match(r"\s*[A-Za-z]", after):
        return False  # a unit: 300 J
    words = re.findall(r"[a-z]+", before.lower())
    return not (words and words[-1] in _LABELLED and before.endswith(" "))
