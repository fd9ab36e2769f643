"""Final answers that are not in a box: in tags, after `####`, or the last number of a response.

Evaluation reads boxes only (lark/grading/answers.py), and tags too in benchmarks with
`answer_format: exact_text`. These forms are for pools, where `pool.answer_from` asks for them, and for the
gold answers of benchmarks whose files have solutions (`answer_from`).
"""

import re
from collections.abc import Callable, Sequence

from lark.grading.answers import AnswerFormat, boxed_places, extract_boxed, grade_paper
from lark.grading.canonical import canonical_number

HASHES = "####"
"""GSM8K's mark before the answer."""
OPEN = "<answer>"
CLOSE = "</answer>"
ENDING = 1000
"""Characters at the end of a response in which its last number is looked for."""
NUMBER = re.compile(r"(?<![\w.,])[-−]?\d[\d,]*(?:\.\d+)?(?:/\d+)?")


def in_tags(text: str) -> str | None:
    """The content of the last `<answer>…</answer>`."""
    end = text.rfind(CLOSE)
    start = text.rfind(OPEN, 0, max(end, 0))
    if start < 0:
        return None
    return text[start + len(OPEN) : end].strip() or None


def exact_answer(text: str) -> str | None:
    """The answer of a benchmark with `answer_format: exact_text`: the last box or the last tags, whichever
    begins later. A box in tags is the answer, without the words around it.
    """
    boxed = extract_boxed(text)
    tagged = in_tags(text)
    if boxed is None or tagged is None:
        return tagged if boxed is None else boxed
    box = boxed_places(text)[-1]
    opening = text.rfind(OPEN, 0, text.rfind(CLOSE))
    return boxed if box.start > opening else tagged


def after_hashes(text: str) -> str | None:
    """The rest of the line after the last `####`."""
    start = text.rfind(HASHES)
    if start < 0:
        return None
    line, *_ = text[start + len(HASHES) :].strip().split("\n", 1)
    return _without_commas(line.strip()) or None


def last_number(text: str) -> str | None:
    """The last number, without separators of thousands."""
    numbers = NUMBER.findall(text[-ENDING:])
    return _without_commas(numbers[-1]).replace("−", "-") if numbers else None


def _without_commas(text: str) -> str:
    is_grouped = re.fullmatch(r"[$-]*\d{1,3}(?:,\d{3})+(?:\.\d+)?", text)
    return text.replace(",", "") if is_grouped else text.rstrip(",")


READERS: dict[str, Callable[[str], str | None]] = {
    "box": extract_boxed,
    "tags": in_tags,
    "hashes": after_hashes,
    "last_number": last_number,
}
"""How the places of `pool.answer_from` are read."""


def gold_answer(stored: str | None, places: Sequence[str]) -> str | None:
    """The answer to compare with. A solution that ends in `#### 540` has one only if `hashes` is among the
    places: as it is, no response could be equal to it.
    """
    if stored is None or not stored.strip():
        return None
    if HASHES not in stored:
        return stored
    return after_hashes(stored) if "hashes" in places else None


def equal_answers(answer: str, gold: str, place: str, form: AnswerFormat) -> bool:
    """Whether an answer from this place is the gold answer. Numbers outside of boxes are compared as numbers:
    they are written as prose, such as `1,540.00`.
    """
    if place in ("hashes", "last_number") and canonical_number(gold) is not None:
        form = AnswerFormat.NUMERIC
    return grade_paper(answer, gold, form)
