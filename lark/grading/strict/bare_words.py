"""Words and digits in the tokens of an answer: bare words of gold answers, and numbers that nobody would
write there.
"""

import re
from itertools import pairwise

from lark.grading.answers import LITERAL
from lark.grading.strict.expressions import Tokens
from lark.grading.strict.lexer import GREEK, Kind, Token

_LITERAL = re.compile(rf"(?<![0-9A-Za-z]){LITERAL}(?![0-9A-Za-z])")
_BARE_WORD = re.compile(
    rf"{_LITERAL.pattern}"  # before words, because its digits are letters
    r"|(?<![\\A-Za-z{])(?:[A-Za-z]{4,}|and|or)(?![A-Za-z}])|(?<=[0-9] )(?:cm|mm|km|kg|ft|mph)(?![A-Za-z])"
)
_PROSE = re.compile(r"[A-Za-z]+(?:,? [A-Za-z]+)*\.?")
_SHORT_WORD = re.compile(
    r"\b(?:[A-Z][a-z]{2}|(?i:yes|no|not|odd|red|all|both|the|an|of|is|are|in|on|to|at|by|for))\b"
)
"""A bare word of two or three letters, in a gold answer of nothing but words. Other short ones are
products: `ab`, `Rh`.
"""
_WORD_LIST = re.compile(r"(?=.*[A-Za-z]{3})(?:[A-Za-z]+|[0-9]+)(?:, ?(?:[A-Za-z]+|[0-9]+))+")
"""A list of bare words and numbers: `cat, ox, 10`. One word has at least three letters; `ab, cd` is a list
of products.
"""
_LISTED_WORD = re.compile(r"\b[A-Za-z]{2,}\b")


def with_words(gold: str) -> str:
    """A gold answer with its bare words in `\\text{…}`. All its other letters are symbols, or digits of a
    hexadecimal number.
    """
    if _WORD_LIST.fullmatch(gold):
        return _LISTED_WORD.sub(_as_text, gold)
    is_prose = _PROSE.fullmatch(gold) is not None
    gold = _BARE_WORD.sub(_as_text, gold)
    return _SHORT_WORD.sub(_as_text, gold) if is_prose else gold


def _as_text(match: re.Match[str]) -> str:
    return match[0] if _LITERAL.fullmatch(match[0]) else rf"\text{{{match[0]}}}"


def is_prose_of(predicted: Tokens, gold: str) -> bool:
    """Whether the prediction has the words of a gold answer of bare words in `\\text{…}`, also if they were
    read as products. Upper and lower case differ if nothing shows that they are words: `\\text{Jo}` is Jo,
    and `\\text{AB}` is not ab.
    """
    words = [token.text for token in without_period(predicted)]
    if (
        not _PROSE.fullmatch(gold)
        or len(gold.split()) == len(gold.replace(" ", ""))
        or not all(token.kind is Kind.WORD for token in without_period(predicted))
    ):
        return False
    text, has_words = (
        gold.removesuffix("."),
        re.search(r"\\text\{(?!(?:and|or)\})", with_words(gold)) is not None,
    )
    return " ".join(words) == text or (has_words and " ".join(words).lower() == text.lower())


def without_period(tokens: Tokens) -> Tokens:
    return tokens[:-1] if len(tokens) > 1 and tokens[-1].text == "." else tokens


def is_one_letter(tokens: Tokens) -> bool:
    return len(tokens) == 1 and tokens[0].kind is Kind.WORD and len(tokens[0].text) == 1


def has_factor_behind(tokens: Tokens) -> bool:
    """Whether a number directly follows a value: `c1`, `\\sqrt{3}1`. Nobody writes a product like that,
    except `2+i3`: it is a name, or there is a digit too many.
    """
    return any(
        after.kind is Kind.NUMBER and _ends_value(tokens, i) and not _is_imaginary_unit(tokens, i)
        for i, (_, after) in enumerate(pairwise(tokens))
    )


def _is_imaginary_unit(tokens: Tokens, place: int) -> bool:
    return tokens[place] == Token(Kind.LETTER, "i") and (
        place == 0 or tokens[place - 1].text in {"+", "-", "=", "("}
    )


def _ends_value(tokens: Tokens, place: int) -> bool:
    """Whether the token at this place ends a value. The script of a function does not: `\\log_{2} 8`."""
    last = tokens[place]
    if last.text == "}":
        start, depth = place, 1
        while start > 0 and depth:  # to the brace that is closed here
            start -= 1
            depth += {"}": 1, "{": -1}.get(tokens[start].text, 0)
        before = tokens[start - 1].text if start else ""
        if before in ("^", "_"):
            return start > 1 and _ends_value(tokens, start - 2)
        return before == "}" or before in (r"\sqrt", r"\frac", r"\binom")
    return last.kind is Kind.LETTER or last.text in GREEK or last.text in (r"\pi", ")", "!")
