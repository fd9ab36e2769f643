"""Settings of teaching: the questions, and how teachers answer them."""

import re
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from lark.config.checks import Section, require, seed
from lark.config.pool import Source
from lark.names import is_demo

VERIFICATIONS = ("answer", "vote", "judge", "command", "none")
ALL = "all"
"""The last of `teach.heats`: all questions."""


@dataclass
class Questions(Source):
    """Where the questions are, and which of them are asked."""

    format: str = "auto"
    """auto: a dataset id (owner/name) is read from the hub, everything else from files. rows, hub: always
    that. demo: generated.
    """
    number: int | None = None
    """Use this many questions, in a sample that does not depend on their order. None: all. The demo generates
    this many.
    """
    seed: int = 42
    """Seed of that sample and of the demo's generator."""
    pass_rate: list[float] | None = None
    """Least and highest share of the student's own samples that are correct, e.g. [0.05, 0.9]. The other
    teachers are asked only the questions between them. Needs the teacher `self`. None: all questions.
    """

    def __post_init__(self) -> None:
        section = Section("questions", self)
        section.one_of("format", ("auto", "rows", "hub", "demo"))
        section.require("number", self.number is None or self.number >= 1, "must be at least 1, or null")
        section.seed("seed")
        if self.pass_rate is not None:
            is_interval = len(self.pass_rate) == 2 and 0 <= self.pass_rate[0] <= self.pass_rate[1] <= 1
            rule = "give the least and the highest share, e.g. [0.05, 0.9]"
            section.require("pass_rate", is_interval, rule)

    def resolve(self) -> None:
        """Replace the format auto. Not in `__post_init__`, which also runs for the default settings, and
        those have no path.
        """
        if self.format == "auto":
            self.format = _format(self.path)


def _format(path: str | None) -> str:
    """How questions at a path are read."""
    if is_demo(path):
        return "demo"
    is_id = path is not None and re.fullmatch(r"\w[\w.-]*/[\w.-]+", path) is not None
    is_file = path is not None and (Path(path).suffix != "" or Path(path).exists())
    return "hub" if is_id and not is_file else "rows"


@dataclass
class Command:
    """A program that verifies answers."""

    run: str | None = None
    """Command line, e.g. "python verify.py". It reads one JSON object per line with the question, the answer
    and the response, and writes one per line with `correct` (docs/teach.md).
    """
    seconds: float = 60.0
    """Time that it may take for one answer."""
    memory_gib: float = 4.0
    """Memory that each of its processes may use."""
    batch: int = 100
    """Answers that one process of it verifies."""

    def __post_init__(self) -> None:
        section = Section("teach.command", self)
        section.require("seconds", 0 < self.seconds < inf, "must be more than 0")
        section.require("memory_gib", 0 < self.memory_gib < inf, "must be more than 0")
        section.at_least(1, "batch")


@dataclass
class Teach:
    """How teachers are asked, and how their answers are verified."""

    samples: int = 4
    """Samples per question and teacher."""
    seed: int = 0
    """Seed of the samples. Each question and sample has its own random numbers."""
    verify: str = "answer"
    """answer: the final answer is compared with the question's. vote: with the majority of all candidates.
    judge: another model decides. command: a program of yours decides. none: nothing is verified.
    """
    grader: str = "verify"
    """The grader that decides: paper (string rules) or verify (mathematical equality). Both grades are kept.
    pool.answer_format and pool.answer_from say how answers are read.
    """
    judge: str | None = None
    """Name of the teacher that judges, with verify=judge. It is one of `teacher=[…]`, and is not asked the
    questions itself.
    """
    command: Command = field(default_factory=Command)
    heats: list[str] = field(default_factory=list)
    """Ask in heats, e.g. [50, 200, all]: all teachers answer 50 questions, and those whose rollouts are
    significantly behind under the method stop; the others answer 200, and so on. Empty: all teachers are
    asked all questions.
    """
    enough: int | None = None
    """Do not ask a teacher a question that has this many different rollouts of earlier teachers that are not
    cut off or known to be wrong. With heats, only in the last one. None: every teacher is asked.
    """
    limit_tokens: int | None = None
    """The run ends after about this many generated tokens, with what is done. None: no limit."""
    limit_money: float | None = None
    """The run ends after about this cost, in the currency of the teachers' prices. None: no limit."""

    def __post_init__(self) -> None:
        section = Section("teach", self)
        section.at_least(1, "samples")
        seed("teach.seed", self.seed)
        section.one_of("verify", VERIFICATIONS)
        section.one_of("grader", ("paper", "verify"))
        section.require(
            "heats", _are_heats(self.heats), "must be numbers of questions that rise, and then all"
        )
        section.require("enough", self.enough is None or self.enough >= 1, "must be at least 1, or null")
        for name in ("limit_tokens", "limit_money"):
            value = getattr(self, name)
            section.require(name, value is None or value > 0, "must be more than 0, or null")
        needs_command = self.verify == "command" and not self.command.run
        require(not needs_command, "teach.verify", "command", "set teach.command.run=<command line> too")
        needs_judge = self.verify == "judge" and not self.judge
        require(not needs_judge, "teach.verify", "judge", "set teach.judge=<name of a teacher> too")

    @property
    def is_limited(self) -> bool:
        return self.limit_tokens is not None or self.limit_money is not None

    @property
    def decisions(self) -> int:
        """How often teachers may be stopped: after each heat but the last."""
        return max(0, len(self.heats) - 1)

    def first_questions(self, heat: int) -> int | None:
        """The number of questions that a heat (from 1) ends with. None: all."""
        size = self.heats[heat - 1]
        return None if size == ALL else int(size)


def _are_heats(heats: list[str]) -> bool:
    """Whether these are sizes of heats: numbers that rise, and then all questions."""
    if not heats:
        return True
    *sizes, last = heats
    if last != ALL or not sizes or not all(re.fullmatch(r"[1-9]\d{0,8}", size) for size in sizes):
        return False
    numbers = [int(size) for size in sizes]
    return numbers == sorted(set(numbers))
