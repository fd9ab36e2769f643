"""The letter of a multiple-choice answer.

A box may hold the letter with the text of the chosen option: `B) 5 cm`. It names no other option, and the text does not take
the choice back. The options are not known here, so a text that may do so makes the answer wrong.
"""

import re

from lark.grading.labels import DENIED

LONGEST_CHOICE = 1000
"""Characters. A longer text is not read, and counts as no choice."""

_MACRO = re.compile(r"\\(?:text[a-z]*|math(?:rm|bf|sf|it)|mbox|boxed|fbox|operatorname)\s*\{([^{}]*)\}")
_OPENING = re.compile(r"(?:the )?(?:final |correct )?(?:answer|option|choice)(?: is)?\s*:?\s+(?=\(?[A-Za-z]\b)", re.IGNORECASE)
_LETTER = re.compile(r"(?P<open>[(\[{]?)\s*(?P<letter>[A-Za-z])\s*(?P<end>$|[)\]}][.:]?|[.:](?=\s|$))")
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_OPTION = re.compile(r"(?<![A-Za-z0-9_=^\\'-])[A-J](?![A-Za-z0-9_=^'-])")
"""A capital letter that can be an option's, but not a part of a word or formula: not `C-H` or `(R)-2-bromobutane`."""
_LOWER_OPTION = re.compile(r"(?:^|\b(?:or|and|not|maybe|rather|actually|option|choice|answer|is)|[,;/&|>])\s*[(\[]?[a-j][)\]]?[.:]?\s*$")
_LABEL = re.compile(r"(?<![A-Za-z0-9])\(?[A-Ja-j][).:](?!-)(?:\s|[A-Za-z]\)|$)")
_LABELLED = frozenset(
    "vitamin hepatitis point vertex line plane set event type group class grade phase state stage step compound element protein"
    " gene enzyme molecule reagent product sample solution vessel container tank box block object body car planet star particle"
    " charge ball person player team figure table region zone layer site matrix vector graph circuit resistor bond factor"
    " antigen influenza process reaction structure species isomer strain peak band".split()
)
_COMPARED = re.compile(r"[A-J] (?:is|are|has|have|was|and [A-J] are) (?P<rest>.+)")
_RETRACTIONS = frozenset(
    "maybe perhaps possibly probably presumably actually wrong incorrect false unsure uncertain guess oops sorry wait hmm nope nah"
    " mistake ignore scratch rather instead unlikely doubt doubtful alternatively otherwise correction really choose switch pick"
    " select mean meant option options choice choices answer answers either whichever unless think thought believe".split()
)
_CONNECTIVES = re.compile(r"(?:or|and|but|not this|not it|not that|not sure|not really|not correct|not right|no|nor)\b(?! \w+ \w|\s[a-z]+s?$)|[-=/,;&|<>\u2192?]")
_JUDGED = frozenset("right correct better best true answer it one likely".split())


def choice_letter(answer: str) -> str | None:
    """The chosen letter in upper case: `B`, `b`, `(B)`, `B.`, `\\text{B}`, `B) 5 cm`. None for no letter, or for two."""
    if len(answer) > LONGEST_CHOICE:
        return None
    text = answer.strip()
    for _ in range(3):
        text = _MACRO.sub(r"\1", text)
    text = _OPENING.sub("", text.replace("$", "").strip(), count=1)
    match = _LETTER.match(text)
    if match is None or (match["open"] and _PAIRS[match["open"]] != match["end"][:1]):
        return None
    return match["letter"].upper() if _describes(text[match.end() :].strip()) else None


def _describes(text: str) -> bool:
    """Whether the text after the letter can be the chosen option's own, and names no other option."""
    words = re.findall(r"[a-z]+", text.lower())
    if _LABEL.search(text) or _LOWER_OPTION.search(text) or r"\to" in text or "arrow" in text or "?" in text:
        return False
    if _RETRACTIONS & set(words) or _CONNECTIVES.match(text.lower()):
        return False
    if words and all(word in DENIED for word in words) and not re.search(r"[0-9]", text):
        return words[0] in {"both", "all", "none", "neither", "yes", "no", "because"} | _NUMBERS and len(words) <= 4
    return not any(_names_an_option(text, match) for match in _OPTION.finditer(text))


_NUMBERS = frozenset("zero one two three four five six seven eight nine ten twenty hundred thousand".split())


def _names_an_option(text: str, match: re.Match[str]) -> bool:
    """Whether a single capital letter is another option, rather than an article (`A polygenic score`) or a label (`vitamin C`)."""
    before = re.findall(r"[A-Za-z]+", text[: match.start()])
    after = text[match.end() :]
    if match[0] == "A" and re.match(r" [a-z]{2,}", after):
        return False
    if before and before[-1].lower() in _LABELLED and re.search(r"[A-Za-z] $", text[: match.start()]):
        return False
    compared = _COMPARED.fullmatch(text[match.start() :]) if not before else None
    return not (compared and not _JUDGED & set(re.findall(r"[a-z]+", compared["rest"].lower())))
