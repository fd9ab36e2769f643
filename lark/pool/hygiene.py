"""What spoils long traces: loops, text after the conclusion, mixed scripts, branching, no reasoning,
refusals.

Every trajectory of a pool is measured while it is read, so a measure costs microseconds: it counts
characters and compares hashes. `pool.drop` and `pool.trim` act on what the summary reports.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf

import numpy as np

from lark import config as conf
from lark.grading.final_answers import CLOSE, HASHES, OPEN, after_hashes
from lark.pool.trajectory import Trajectory

FAULTS_VERSION = 1
"""Version of the measures. Only a pool with pool.drop or pool.trim depends on it."""
SHORTEST_LOOP = 2000
"""Characters of a text in which loops are looked for. Shorter ones that repeat themselves are lists and
grids.
"""
SHORTEST_TAIL = 400
"""Characters after a conclusion that are worth counting."""
SHORTEST_REASONING = 200
"""Characters before a conclusion. A teacher that answers first and then explains has not gone on too long."""
LONGEST_GOLD = 60
MOST_PLACES = 100
"""Places of the gold answer that are looked at."""
BEFORE = 60
"""Characters before the gold answer that say whether it is given as the answer."""
CONCLUDES = re.compile(r"\\boxed\s*\{|<answer>|####|\banswer\b[^.?\n]*?(?:\bis\b|:|=|\bbe\b)", re.IGNORECASE)
"""Marks and words before an answer that is given as the answer. (`Therefore` and `thus` also begin steps.)"""
FEWEST_BRANCHES = 5
REFUSES = re.compile(
    r"\s*(?:i'?m (?:very |really )?sorry|sorry|i apologi[sz]e|unfortunately|as an ai\b|i "
    r"(?:can(?:'|no)?t|cannot|am unable"
    r"|won'?t|must decline|am not"
    r" able))[^\n]{0,120}?\b(?:assist|help|comply|provide|fulfil|answer|support|engage|do that"
    r"|continue|able|decline|discuss|create|generate)\b",
    re.IGNORECASE,
)
LONGEST_REFUSAL = 1200
SCRIPTS = {
    "Cyrillic": ((0x400, 0x52F),),
    "Hebrew": ((0x590, 0x5FF),),
    "Arabic": ((0x600, 0x6FF), (0x750, 0x77F)),
    "Devanagari": ((0x900, 0x97F),),
    "Thai": ((0xE00, 0xE7F),),
    "Kana": ((0x3040, 0x30FF),),
    "Han": ((0x3400, 0x4DBF), (0x4E00, 0x9FFF)),
    "Hangul": ((0xAC00, 0xD7AF),),
}
"""Scripts by their code points. Latin and Greek are not among them: Greek letters are mathematics."""
FEWEST_LETTERS = 4
LANGUAGE = re.compile(
    r"translat|\b(?:languages?|Arabic|Chinese|Hebrew|Hindi|Japanese|Korean|Mandarin|Russian|Thai|Ukrainian)\b",
    re.IGNORECASE,
)
"""Questions that ask for another language."""
WITHOUT_SPACES = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]")
"""Letters of scripts in which a word has one or two of them."""
ANSWER = re.compile(r"\\boxed\s*\{[^{}]*\}|<answer>.*?</answer>|</?think>|####[^\n]*", re.DOTALL)
LONGEST_EMPTY = 600


def faults_of(trajectory: Trajectory, pool: conf.Pool) -> Iterator[str]:
    """The faults of a trajectory, by their names in `pool.drop`."""
    for fault, measure in MEASURES.items():
        if measure(trajectory) >= pool.threshold(fault):
            yield fault
    if words(trajectory) < pool.threshold("empty"):
        yield "empty"


def loops(trajectory: Trajectory) -> float:
    """Share of the text that repeats what came before."""
    return trajectory.repeated if len(trajectory.spoken) >= SHORTEST_LOOP else 0.0


def branching(trajectory: Trajectory) -> float:
    """Turns of thought (Wait, Alternatively, …) per 1,000 words."""
    count = trajectory.branches
    return 1000 * count / trajectory.words if count >= FEWEST_BRANCHES else 0.0


def scripts(trajectory: Trajectory) -> float:
    """Share of the letters in scripts that the question does not have."""
    text = trajectory.spoken
    if text.isascii():
        return 0.0
    strange = _letters(text)
    if not strange:
        return 0.0
    asked = _letters(trajectory.question)
    # Chinese and Japanese texts share characters, so one of them explains the other.
    if {"Han", "Kana"} & asked.keys():
        asked = {**asked, "Han": 1, "Kana": 1}
    if LANGUAGE.search(trajectory.question):
        return 0.0
    count = sum(number for name, number in strange.items() if name not in asked)
    return count / len(text) if count >= FEWEST_LETTERS else 0.0


def _letters(text: str) -> dict[str, int]:
    """Letters of each script that is not Latin."""
    if text.isascii():
        return {}
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    points = points[points >= 0x400]
    counts: dict[str, int] = {}
    for name, ranges in SCRIPTS.items():
        count = sum(int(((points >= first) & (points <= last)).sum()) for first, last in ranges)
        if count:
            counts[name] = count
    return counts


def refusals(trajectory: Trajectory) -> float:
    """1 for a response that declines to answer."""
    text = trajectory.response
    is_short = len(text) <= LONGEST_REFUSAL and trajectory.boxed is None and CLOSE not in text
    return float(is_short and REFUSES.match(text) is not None)


def words(trajectory: Trajectory) -> float:
    """Words of reasoning: all but the final answer. Of a long text, those at its beginning."""
    if trajectory.conversation is not None:
        return inf
    text = ANSWER.sub(" ", trajectory.spoken[:LONGEST_EMPTY])
    return len(text.split()) + len(WITHOUT_SPACES.findall(text)) // 2


def conclusion(trajectory: Trajectory) -> float:
    """Share of the reasoning that follows the line in which the gold answer is first given as the answer."""
    place = _conclusion(trajectory)
    if place is None:
        return 0.0
    start, end, stop = place
    return (stop - end) / (stop - start)


def _conclusion(trajectory: Trajectory) -> tuple[int, int, int] | None:
    """Start of the reasoning, end of the line that concludes it, end of the reasoning: in `thinking` or else
    in the response. None if nothing long follows.
    """
    gold = (trajectory.answer or "").strip()
    if HASHES in gold:
        gold = after_hashes(gold) or ""
    is_right = trajectory.conversation is None and trajectory.correct is not False
    if not (is_right and 0 < len(gold) <= LONGEST_GOLD):
        return None
    text = trajectory.thinking or trajectory.response
    start = max(0, text.find("<think>"))
    stop = text.find("</think>", start)
    stop = len(text) if stop < 0 else stop
    if stop - start < SHORTEST_REASONING + SHORTEST_TAIL:
        return None
    at = text.find(gold, start + SHORTEST_REASONING, stop - SHORTEST_TAIL)
    for _ in range(MOST_PLACES):
        if at < 0:
            return None
        if _is_whole(text, at, at + len(gold)) and CONCLUDES.search(text, max(start, at - BEFORE), at):
            break
        at = text.find(gold, at + 1, stop - SHORTEST_TAIL)
    else:
        return None
    line = text.find("\n", at + len(gold), stop)
    end = stop if line < 0 else line
    return (start, end, stop) if stop - end >= SHORTEST_TAIL else None


def _is_whole(text: str, start: int, end: int) -> bool:
    """Whether a piece of the text is not part of a longer word or number."""
    before = text[start - 1 : start]
    after = text[end : end + 2]
    is_decimal = after[:1] in (".", ",") and after[1:].isdigit()
    return not (before.isalnum() or before in ("-", ".") or after[:1].isalnum() or is_decimal)


def trimmed(trajectory: Trajectory, threshold: float) -> Trajectory:
    """The trajectory without the reasoning after its conclusion, if that is at least this share."""
    place = _conclusion(trajectory)
    if place is None or conclusion(trajectory) < threshold:
        return trajectory
    _, end, stop = place
    if trajectory.thinking:
        return replace(trajectory, thinking=trajectory.thinking[:end] + trajectory.thinking[stop:])
    text = trajectory.response
    if stop == len(text):  # no end of thinking: the final answer must stay
        stop = _final_part(text, end)
    rest = text[stop:].lstrip("\n")
    return replace(trajectory, response=f"{text[:end].rstrip()}\n\n{rest}".rstrip())


def _final_part(text: str, end: int) -> int:
    """Where the paragraph with the final answer begins; the text's end if what is kept has one already."""
    mark = max(text.rfind("\\boxed"), text.rfind(OPEN), text.rfind(HASHES))
    if mark < end:
        return len(text)
    return max(text.rfind("\n", end, mark), end)


MEASURES: dict[str, Callable[[Trajectory], float]] = {
    "loops": loops,
    "conclusion": conclusion,
    "scripts": scripts,
    "branching": branching,
    "refusals": refusals,
}
"""Measures that are faults from their thresholds on. (`empty` is one below its threshold.)"""
