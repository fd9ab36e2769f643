"""Summary of a pool, to check before spending hours on it."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from functools import partial
from itertools import chain
from typing import Any

from lark import config as conf
from lark.grading.canonical import canonical_number
from lark.models.dialogue import is_instruction
from lark.pool.cleaning import EXAMPLES, Tally
from lark.pool.duplicates import NearDuplicates
from lark.pool.findings import Findings
from lark.pool.hashing import hash64
from lark.pool.trajectory import Trajectory, verdict

BY_BOX = "the answer in the last \\boxed{}"
BY_POOL = "the pool's own verdict"
BY_VOTE = "a majority vote of the candidates (not gold answers)"
PLACES = {
    "box": BY_BOX,
    "tags": "the answer in <answer> tags",
    "hashes": "the answer after ####",
    "last_number": "the last number",
}
VERDICT_SOURCES = (BY_POOL, *PLACES.values(), BY_VOTE)
"""Sources of verdicts, in the order in which the summary names them."""


class Summary:
    """Statistics of a pool, collected one trajectory at a time."""

    def __init__(self, pool: conf.Pool, tally: Tally) -> None:
        self.pool = pool
        self.tally = tally
        self.near = NearDuplicates()
        self.findings = Findings()
        self.candidates: Counter[str] = Counter()
        self.lengths: defaultdict[str, array[int]] = defaultdict(partial(array, "L"))
        self.right: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()
        """Trajectories of each teacher with a verdict."""
        self.sources: set[str] = set()
        """Where the verdicts come from: some of VERDICT_SOURCES."""
        self.traits: Counter[str] = Counter()
        """Trajectories with a box, with separate reasoning, and so on."""
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
        if is_correct is not None:
            verdicts = self.right if is_correct else self.wrong
            verdicts[trajectory.teacher] += 1
            self.sources.add(self._source(trajectory))
        self.traits["boxed"] += trajectory.boxed is not None
        self.traits["thinking"] += trajectory.thinking is not None
        self.traits["conversations"] += trajectory.conversation is not None
        if trajectory.conversation is None:  # a conversation is used as it is
            self.traits["instruction_as_system"] += is_instruction(trajectory.system or "")
        self.near.add(trajectory)
        self.findings.add(trajectory, self.pool, is_correct, self._is_voted(trajectory))
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
        self.right.update(other.right)
        self.wrong.update(other.wrong)
        self.sources |= other.sources
        self.traits.update(other.traits)
        self.near.merge(other.near)
        self.findings.merge(other.findings)
        self.texts = {**other.texts, **self.texts}
        self.contradicted |= other.contradicted
        for question, answer in other.answers.items():
            self._add_answer(question, answer)

    def _source(self, trajectory: Trajectory) -> str:
        if trajectory.correct is None:
            _, place = trajectory.final_answer(self.pool.answer_from)
            return PLACES[place]
        return BY_VOTE if self._is_voted(trajectory) else BY_POOL

    def _is_voted(self, trajectory: Trajectory) -> bool:
        return self.tally.votes is not None and self.tally.votes.decides(trajectory.question_id)

    def to_dict(self) -> dict[str, Any]:
        """The entries of the manifest. Those of things that a pool rarely has are left out if it has none.
        The pool is not empty (`trajectories.described`).
        """
        sizes = sorted(self.candidates.values())
        rare = {
            "thinking": self.traits["thinking"],
            "conversations": self.traits["conversations"],
            "instruction_as_system": self.traits["instruction_as_system"],
            "near_duplicates": self.near.to_dict(),
            "same_text": self._same_text(),
            "contradicted": _counted(self.contradicted),
        }
        teachers: dict[str, Any] = {}
        for teacher in sorted(self.lengths):
            teachers[teacher] = _part(self.lengths[teacher], self.right[teacher], self.wrong[teacher])
        every_length = chain.from_iterable(self.lengths.values())
        return {
            "questions": len(self.candidates),
            "trajectories": self.trajectories,
            "candidates": {"min": sizes[0], "median": sizes[len(sizes) // 2], "max": sizes[-1]},
            "teachers": teachers,
            "all": _part(every_length, self.right.total(), self.wrong.total()),
            "boxed": self.traits["boxed"] / self.trajectories,
            "verdicts": " and, without one, ".join(sorted(self.sources, key=VERDICT_SOURCES.index)),
            **{name: value for name, value in rare.items() if value},
            **self.findings.to_dict(self.pool),
        }

    def _same_text(self) -> dict[str, Any]:
        """Questions whose text another question has too."""
        times = Counter(self.texts.values())
        return _counted([question for question, text in self.texts.items() if times[text] > 1])


def _part(characters: Iterable[int], right: int, wrong: int) -> dict[str, Any]:
    """Number, lengths and share of correct trajectories of one teacher, or of all. Never empty."""
    lengths = sorted(characters)
    mean = round(sum(lengths) / len(lengths), 1)
    return {
        "trajectories": len(lengths),
        "characters": {"median": lengths[len(lengths) // 2], "mean": mean, "max": lengths[-1]},
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
