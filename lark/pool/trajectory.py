"""One trajectory, and whether it is correct."""

import json
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lark import config as conf
from lark.grading.answers import AnswerFormat, extract_boxed
from lark.grading.final_answers import READERS, equal_answers, gold_answer
from lark.pool.windows import repeated_share, sketch_of, window_hashes

BRANCHES = ("Wait", "Alternatively", "Hmm", "Actually,", "On second thought", "double-check")
"""Words with which a teacher turns to another thought."""
VERDICTS_VERSION = 3
"""Version of `verdict`. Only a pool that is filtered by verdicts depends on it."""


@dataclass(frozen=True)
class Trajectory:
    """One teacher's answer to one question."""

    question_id: str
    candidate_id: str
    teacher: str
    rollout: int
    system: str | None
    question: str
    """The first user turn."""
    response: str
    """The text of the last assistant turn. Empty only if that turn is a tool call."""
    answer: str | None
    correct: bool | None
    thinking: str | None = None
    """The reasoning of the last assistant turn, if the pool stores it separately from its text."""
    conversation: str | None = None
    """JSON text {"messages": […], "tools": […] or null} of a trajectory that has more than a system, a user
    and an assistant turn with text. Its messages have `role` (system, user, assistant, tool), `content`
    and, where given, `reasoning_content`, `tool_calls`, `tool_call_id` and `name`.
    """
    pass_rate: float | None = None
    """Share of the student's own samples for the question that are correct, if it was asked
    (lark/teaching/pass_rates.py).
    """

    @cached_property
    def boxed(self) -> str | None:
        """The answer in the last box of the response."""
        return extract_boxed(self.response)

    @cached_property
    def spoken(self) -> str:
        """What the teacher wrote: reasoning and text of all assistant turns, without calls and their
        results.
        """
        if self.conversation is None:
            return f"{self.thinking}\n{self.response}" if self.thinking else self.response
        texts = []
        for message in json.loads(self.conversation)["messages"]:
            if message["role"] == "assistant":
                texts += [message.get("reasoning_content"), message["content"]]
        return "\n".join(text for text in texts if text)

    @cached_property
    def branches(self) -> int:
        """How often the text turns to another thought."""
        return sum(self.spoken.count(mark) for mark in BRANCHES)

    @cached_property
    def words(self) -> int:
        """About the number of words: one more than there are spaces."""
        return self.spoken.count(" ") + 1

    @cached_property
    def _windows(self) -> tuple[np.ndarray, float]:
        """The sketch of the text, and its share of repeated windows: both from the same hashes, which are
        too large to keep.
        """
        hashes = window_hashes(self.spoken)
        repeated = repeated_share(hashes)
        if self.conversation is not None:
            hashes = window_hashes(self.conversation)
        return sketch_of(hashes), repeated

    @property
    def sketch(self) -> np.ndarray:
        """A summary of the text by which similar ones are recognised (lark/pool/duplicates.py)."""
        return self._windows[0]

    @property
    def repeated(self) -> float:
        """Share of the text that repeats what came before, by windows of 32 bytes."""
        return self._windows[1]

    def final_answer(self, places: Sequence[str]) -> tuple[str | None, str]:
        """The answer in the first of these places of the response that has one, and the place."""
        for place in places:
            answer = self.boxed if place == "box" else READERS[place](self.response)
            if answer is not None:
                return answer, place
        return None, places[-1]

    @property
    def characters(self) -> int:
        """Length of the text that is scored and trained on."""
        if self.conversation is not None:
            return len(self.conversation)
        return len(self.response) + len(self.thinking or "")

    @property
    def texts(self) -> tuple[str, ...]:
        texts = (self.system, self.question, self.response, self.thinking, self.conversation)
        return tuple(text for text in texts if text)


def verdict(trajectory: Trajectory, pool: conf.Pool) -> bool | None:
    """Whether it is correct: by the pool's own verdict, whose verifier knew the task, or else by comparing
    its answer. None if neither is known: an answer that we cannot read is not a wrong one.
    """
    return compared(trajectory, pool) if trajectory.correct is None else trajectory.correct


def compared(trajectory: Trajectory, pool: conf.Pool) -> bool | None:
    """Whether the answer in the response is the gold answer (paper, App. C.1); None without one of them."""
    gold = gold_answer(trajectory.answer, pool.answer_from)
    answer, place = trajectory.final_answer(pool.answer_from)
    if gold is None or answer is None:
        return None
    return equal_answers(answer, gold, place, AnswerFormat(pool.answer_format))


def with_answer_from(pool: conf.Pool, place: str) -> conf.Pool:
    """The pool's settings, with answers read from another place. `hashes` also reads them in gold answers."""
    changed = copy(pool)  # not `replace`, which would check all settings again
    changed.answer_from = [place] if place == "hashes" else [place, "hashes"]
    return changed
