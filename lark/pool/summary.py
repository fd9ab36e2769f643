"""Summary of a pool, to check before spending hours on it."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Collection
from functools import partial
from typing import Any

from lark import config as conf
from lark.grading.canonical import canonical_number
from lark.models.dialogue import is_instruction
from lark.pool.cleaning import EXAMPLES, Tally
from lark.pool.duplicates import NearDuplicates
from lark.pool.hashing import hash64
from lark.pool.trajectory import Trajectory, is_compared, verdict

BY_BOX = "the answer in the last \\boxed{}"
BY_POOL = "the pool's own verdict"
BY_VOTE = "a majority vote of the candidates (not gold answers)"
SOURCES = (BY_BOX, BY_POOL, BY_VOTE)
"""Sources of verdicts, in the order in which the summary names them."""


class Summary:
    """Statistics of a pool, collected one trajectory at a time."""

    def __init__(self, pool: conf.Pool, tally: Tally | None = None) -> None:
        self.pool = pool
        self.tally = Tally() if tally is None else tally
        self.near = NearDuplicates()
        self.candidates: Counter[str] = Counter()
        self.lengths: defaultdict[str, array[int]] = defaultdict(partial(array, "L"))
        self.verdicts: Counter[tuple[str, bool | None]] = Counter()
        self.sources: set[str] = set()
        self.boxed = 0
        self.thinking = 0
        self.conversations = 0
        self.instructed = 0
        """Trajectories whose system message is the instruction."""
        self.texts: dict[str, int] = {}
        """Hash of each question's text."""
        self.answers: dict[str, int] = {}
        """Hash of the first answer of each question."""
        self.contradicted: set[str] = set()
        """Questions with another answer in a later row."""

    @property
    def trajectories(self) -> int:
        return self.candidates.total()

    def add(self, trajectory: Trajectory) -> None:
        self.candidates[trajectory.question_id] += 1
        self.lengths[trajectory.teacher].append(trajectory.characters)
        is_correct = verdict(trajectory, self.pool)
        self.verdicts[trajectory.teacher, is_correct] += 1
        if is_correct is not None:
            self.sources.add(self._source(trajectory))
        self.boxed += trajectory.boxed is not None
        self.thinking += trajectory.thinking is not None
        self.conversations += trajectory.conversation is not None
        if trajectory.conversation is None:  # a conversation is used as it is
            self.instructed += is_instruction(trajectory.system or "")
        self.near.add(trajectory)
        self.texts.setdefault(trajectory.question_id, hash64(" ".join(trajectory.question.split())))
        if trajectory.answer is not None:
            self._add_answer(trajectory.question_id, hash64(_answer_text(trajectory.answer)))

    def _add_answer(self, question: str, answer: int) -> None:
        if self.answers.setdefault(question, answer) != answer:
            self.contradicted.add(question)

    def merge(self, other: "Summary") -> None:
        """Add the statistics of a later part of the pool."""
        self.candidates.update(other.candidates)
        for teacher, lengths in other.lengths.items():
            self.lengths[teacher].extend(lengths)
        self.verdicts.update(other.verdicts)
        self.sources |= other.sources
        self.boxed += other.boxed
        self.thinking += other.thinking
        self.conversations += other.conversations
        self.instructed += other.instructed
        for question, sketches in other.near.sketches.items():
            self.near.sketches[question] += sketches
        self.texts = {**other.texts, **self.texts}
        self.contradicted |= other.contradicted
        for question, answer in other.answers.items():
            self._add_answer(question, answer)

    def _source(self, trajectory: Trajectory) -> str:
        if is_compared(trajectory):
            return BY_BOX
        is_voted = self.tally.votes is not None and self.tally.votes.decides(trajectory.question_id)
        return BY_VOTE if is_voted else BY_POOL

    def to_dict(self) -> dict[str, Any]:
        """The entries of the manifest. Those of things that a pool rarely has are left out if it has none."""
        sizes = sorted(self.candidates.values())
        candidates = {}
        if sizes:
            candidates = {"min": sizes[0], "median": sizes[len(sizes) // 2], "max": sizes[-1]}
        rare = {
            "thinking": self.thinking,
            "conversations": self.conversations,
            "instruction_as_system": self.instructed,
            "near_duplicates": self.near.to_dict(),
            "same_text": self._same_text(),
            "contradicted": _counted(self.contradicted),
        }
        return {
            "questions": len(self.candidates),
            "trajectories": self.trajectories,
            "candidates": candidates,
            "teachers": {teacher: self._part([teacher]) for teacher in sorted(self.lengths)},
            "all": self._part(list(self.lengths)),
            "boxed": self.boxed / max(1, self.trajectories),
            "verdicts": " and, without one, ".join(sorted(self.sources, key=SOURCES.index)),
            **{name: value for name, value in rare.items() if value},
        }

    def _same_text(self) -> dict[str, Any]:
        """Questions whose text another question has too."""
        times = Counter(self.texts.values())
        return _counted([question for question, text in self.texts.items() if times[text] > 1])

    def _part(self, teachers: list[str]) -> dict[str, Any]:
        """Number, lengths in characters and share of correct trajectories of some teachers together."""
        lengths = sorted(length for teacher in teachers for length in self.lengths[teacher])
        right = sum(self.verdicts[teacher, True] for teacher in teachers)
        wrong = sum(self.verdicts[teacher, False] for teacher in teachers)
        mean = round(sum(lengths) / max(1, len(lengths)), 1)
        median = lengths[len(lengths) // 2] if lengths else 0
        longest = lengths[-1] if lengths else 0
        return {
            "trajectories": len(lengths),
            "characters": {"median": median, "mean": mean, "max": longest},
            "correct": right / (right + wrong) if right + wrong else None,
        }


def _answer_text(answer: str) -> str:
    """An answer in a form in which equal ones are the same: 5 and 5.0."""
    number = canonical_number(answer)
    return " ".join(answer.split()) if number is None else str(number)


def _counted(questions: Collection[str]) -> dict[str, Any]:
    if not questions:
        return {}
    return {"questions": len(questions), "examples": sorted(questions)[:EXAMPLES]}
