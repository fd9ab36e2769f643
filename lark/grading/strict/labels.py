"""The words that may accompany a value in a box: units (`5 \\text{ apples}`, see `units`), names
(`\\text{Area} = 5`) and an opening (`\\text{The answer is } 5`).

Only noun phrases are labels. A word that denies, hedges, offers an alternative, compares or counts makes the
answer wrong, because the box then says something other than the value.
"""

import re
from collections.abc import Sequence

from lark.grading.strict.vocabulary import ADVERB, DENIED, DENYING, JUDGING, NUMBER_WORD, QUANTITIES

LONGEST_LABEL = 6
"""Words."""
_OPENING_PHRASE = re.compile(
    r"it is|(?:(?:so|thus|hence|therefore) )?(?:the )?(?:final |correct )?(?:answer|result|solution|value)"
    r"(?: is| are)?"
)
_ANSWER = re.compile(r"(?:the )?(?:final |correct )?(?:answer|result)")


def lower_case(words: Sequence[str]) -> list[str]:
    return [word.lower() for word in words]


def is_plain(words: Sequence[str]) -> bool:
    """True if the words may be part of a label: few, and none that denies, hedges, compares or counts."""
    if len(words) > LONGEST_LABEL or has_number_word(words):
        return False
    return not any(word in DENIED or ADVERB.fullmatch(word) for word in lower_case(words))


def has_number_word(words: Sequence[str]) -> bool:
    """True if one of the words is a number: `5 \\text{ million}` and `5 \\text{ sixths}` are not 5."""
    return any(NUMBER_WORD.fullmatch(word) for word in lower_case(words))


def is_quantity(words: Sequence[str]) -> bool:
    """True if the words before `=` name a quantity: `Area`, `Total cost`, `number of ways`."""
    lower = lower_case(words)
    if "answer" in lower or "result" in lower:  # not `old answer`
        return _ANSWER.fullmatch(" ".join(lower)) is not None
    return is_plain(words) and not QUANTITIES.isdisjoint(lower)


def is_name(words: Sequence[str]) -> bool:
    """True if the words before a value name it, as before `=`: `The total cost is`, `Total cost`."""
    if words[-1:] and words[-1].lower() in {"is", "are"}:
        words = words[:-1]
    return is_quantity(words)


def is_point_name(letters: str, in_figure: bool) -> bool:
    """True if capital letters can be points (`AB`), and are not a word that denies or counts (`NOT`, `SIX`).

    With the sign of a figure (`in_figure`), the first letters of the alphabet are always points:
    `\\angle BAD`.
    """
    if in_figure and set(letters) <= set("ABCDEFGH"):
        return True
    word = letters.lower()
    return word not in DENYING and not has_number_word([word])


def is_event(words: Sequence[str]) -> bool:
    """True if the words in `P(…)` can be an event (`no rain`), not only a denial or a judgement."""
    lower = lower_case(words)
    return JUDGING.isdisjoint(lower) and not DENIED.issuperset(lower)


def opening_length(words: Sequence[str]) -> int:
    """How many of the words are an opening such as `The answer is`."""
    for count in range(min(len(words), LONGEST_LABEL), 0, -1):
        if _OPENING_PHRASE.fullmatch(" ".join(words[:count]).lower()):
            return count
    return 0
