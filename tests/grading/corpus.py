"""Read corpus.txt: answers that try to cheat the verify grader, and honest ones that a careful marker
accepts.
"""

import re
from pathlib import Path

from lark.grading.answers import AnswerFormat
from lark.grading.verify import Pair

_MARK = "(choice)"


def corpus(is_honest: bool) -> list[Pair]:
    """The honest answers, or the cheating ones, with their gold answers."""
    pairs: list[Pair] = []
    gold = ""
    for line in Path(__file__).with_name("corpus.txt").read_text(encoding="utf-8").splitlines():
        kind, text = line[:1], re.sub(r"\\u([0-9a-f]{4})", lambda match: chr(int(match[1], 16)), line[2:])
        if kind == "=":
            gold = text
        elif kind == ("v" if is_honest else "x"):
            answer_format = AnswerFormat.CHOICE if gold.endswith(_MARK) else AnswerFormat.FREE_FORM
            pairs.append((text, gold.removesuffix(_MARK).strip(), answer_format))
    return pairs
