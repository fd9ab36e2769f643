"""Words and digits in the tokens of an answer: bare words of gold answers, and numbers that nobody would
write there.
"""

import re

from lark.grading.strict.answer_tokens import Tokens, letter, texts_of
from lark.grading.strict.notation import LITERAL

_BARE_LITERAL = re.compile(rf"(?<![0-9A-Za-z]){LITERAL}(?![0-9A-Za-z])")
_BARE_WORD = re.compile(
    rf"{_BARE_LITERAL.pattern}"  # before words, because its digits are letters
    r"|(?<![\\A-Za-z{])(?:[A-Za-z]{4,}|and|or)(?![A-Za-z}])|(?<=[0-9] )(?:cm|mm|km|kg|ft|mph)(?![A-Za-z])"
)
_PROSE = re.compile(r"[A-Za-z]+(?:,? [A-Za-z]+)*\.?")
_SHORT_WORD = re.compile(
    r"\b(?:[A-Z][a-z]{2}|(?i:yes|no|not|odd|red|all|both|the|an|of|is|are|in|on|to|at|by|for))\b"
)
"""A bare word of two or three letters, in a gold answer of nothing but words. Other short ones are products:
`ab`, `Rh`.
"""
_WORD_LIST = re.compile(r"(?=.*[A-Za-z]{3})(?:[A-Za-z]+|[0-9]+)(?:, ?(?:[A-Za-z]+|[0-9]+))+")
"""A list of bare words and numbers: `cat, ox, 10`. One word has at least three letters; `ab, cd` is a list of
products.
"""
_LISTED_WORD = re.compile(r"\b[A-Za-z]{2,}\b")
_OTHER_TEXT = re.compile(r"\\text\{(?!(?:and|or)\})")
_ENDS_OF_FACTORS = frozenset({r"\pi", ")", "!"})


def with_words(gold: str) -> str:
    """A gold answer with its bare words in `\\text{…}`. Its other letters are symbols, or digits of a
    hexadecimal number.
    """
    if _WORD_LIST.fullmatch(gold):
        return _LISTED_WORD.sub(_as_text, gold)
    is_prose = _PROSE.fullmatch(gold) is not None
    gold = _BARE_WORD.sub(_as_text, gold)
    return _SHORT_WORD.sub(_as_text, gold) if is_prose else gold


def _as_text(match: re.Match[str]) -> str:
    return match[0] if _BARE_LITERAL.fullmatch(match[0]) else rf"\text{{{match[0]}}}"


def is_prose_of(predicted: Tokens, gold: str) -> bool:
    """True if the prediction has the words of a gold answer of bare words in `\\text{…}`, also if they were
    read as products.

    Upper and lower case differ if nothing shows that they are words: `\\text{Jo}` is Jo, and `\\text{AB}` is
    not ab.
    """
    has_only_letters = len(gold.split()) == len(gold.replace(" ", ""))
    if not _PROSE.fullmatch(gold) or has_only_letters:
        return False
    tokens = without_period(predicted)
    if not all(token.is_word for token in tokens):
        return False
    prose = gold.removesuffix(".")
    words = " ".join(texts_of(tokens))
    if _OTHER_TEXT.search(with_words(gold)):
        return words.lower() == prose.lower()
    return words == prose


def without_period(tokens: Tokens) -> Tokens:
    return tokens[:-1] if len(tokens) > 1 and tokens[-1].text == "." else tokens


def is_one_letter(tokens: Tokens) -> bool:
    return len(tokens) == 1 and tokens[0].is_word and len(tokens[0].text) == 1


def has_factor_behind(tokens: Tokens) -> bool:
    """True if a number directly follows a value: `c1`, `\\sqrt{3}1`. Nobody writes a product like that,
    except `2+i3`: it is a name, or there is a digit too many.
    """
    for place, after in enumerate(tokens[1:]):
        if after.is_number and _ends_value(tokens, place) and not _is_imaginary_unit(tokens, place):
            return True
    return False


def _is_imaginary_unit(tokens: Tokens, place: int) -> bool:
    if tokens[place] != letter("i"):
        return False
    return place == 0 or tokens[place - 1].text in {"+", "-", "=", "("}


def _ends_value(tokens: Tokens, place: int) -> bool:
    """True if the token at this place ends a value. The script of a function does not: `\\log_{2} 8`."""
    last = tokens[place]
    if last.text != "}":
        return last.is_symbol or last.text in _ENDS_OF_FACTORS
    start = _opening_brace(tokens, place)
    before = tokens[start - 1].text if start else ""
    if before in {"^", "_"}:
        return start > 1 and _ends_value(tokens, start - 2)
    return before in {"}", r"\sqrt", r"\frac", r"\binom"}


def _opening_brace(tokens: Tokens, place: int) -> int:
    """The place of the brace that is closed at `place`."""
    depth = 1
    while place > 0 and depth:
        place -= 1
        depth += {"}": 1, "{": -1}.get(tokens[place].text, 0)
    return place
