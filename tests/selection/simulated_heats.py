"""Heats between simulated teachers whose true order is known: how often is the best one lost, and what is
saved?

Run as: python -m tests.selection.simulated_heats [repetitions]     prints the table of docs/teach.md

A rollout's score is the ability of its teacher, plus the teacher's taste for the question, plus noise. Wrong
rollouts cannot be selected; how many are wrong depends on the question and, if asked for, on the teacher.
Nothing in lark/selection/leads.py assumes this form.
"""

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lark.printing import log_to
from lark.scoring.by_question import Floats
from lark.selection.leads import behind, leads

log = logging.getLogger("simulated")
QUESTIONS = 1000
SIZES = (50, 200)
"""Questions after each heat that is followed by a decision: teach.heats=[50,200,all]."""
SAMPLES = 4
TASTE = 0.7
"""Standard deviation of what a question adds to a teacher's scores; that of single rollouts is 1."""
HARD = 1.2
"""Standard deviation of the difficulty of questions, in logits."""


@dataclass(frozen=True)
class Teachers:
    """Planted teachers. Those with the highest ability are the best."""

    name: str
    abilities: tuple[float, ...]
    right: float = 1.0
    """Log-odds that a rollout is right."""

    @property
    def best(self) -> list[int]:
        return [number for number, ability in enumerate(self.abilities) if ability == max(self.abilities)]

    def rollouts(self, rng: np.random.Generator) -> Floats:
        """[Q, T, S] Scores; wrong rollouts have none."""
        teachers = len(self.abilities)
        ability = np.array(self.abilities)[:, None]
        taste = rng.normal(0, TASTE, (QUESTIONS, teachers, 1))
        scores = ability + taste + rng.normal(size=(QUESTIONS, teachers, SAMPLES))
        difficulty = rng.normal(0, HARD, (QUESTIONS, 1, 1))
        chance = 1 / (1 + np.exp(difficulty - self.right - ability))
        return np.where(rng.random(scores.shape) < chance, scores, -np.inf)


@dataclass(frozen=True)
class Outcomes:
    """Of many runs, as shares."""

    lost: float
    """A best teacher stopped."""
    worst_stopped: float
    """The last teacher stopped."""
    first_heat: float
    """It stopped after the first heat."""
    saved: float
    """Rollouts that were not asked for."""


def run(rollouts: Floats, sizes: Sequence[int] = SIZES) -> dict[int, int]:
    """The questions that the teachers who stop have answered."""
    stopped: dict[int, int] = {}
    for heat, size in enumerate(sizes, start=1):
        running = [number for number in range(rollouts.shape[1]) if number not in stopped]
        if len(running) < 2:
            break
        results = dict(zip(map(str, running), leads(rollouts[:size, running]).T, strict=True))
        for name in behind(results, heat, len(sizes)):
            stopped[int(name)] = size
    return stopped


def outcomes(teachers: Teachers, repetitions: int) -> Outcomes:
    rng = np.random.default_rng(5)
    ends = [run(teachers.rollouts(rng)) for _ in range(repetitions)]
    last = len(teachers.abilities) - 1
    saved = [sum(QUESTIONS - size for size in end.values()) for end in ends]
    return Outcomes(
        float(np.mean([any(best in end for best in teachers.best) for end in ends])),
        float(np.mean([last in end for end in ends])),
        float(np.mean([end.get(last) == SIZES[0] for end in ends])),
        float(np.mean(saved) / (QUESTIONS * len(teachers.abilities))),
    )


PLANTED = (
    Teachers("all six equal", (0.0,) * 6),
    Teachers("two equal", (0.0, 0.0)),
    Teachers("one best, four equal, one worst", (1.0, 0.0, 0.0, 0.0, 0.0, -1.0)),
    Teachers("two best, three equal, one worst", (0.5, 0.5, 0.0, 0.0, 0.0, -1.0)),
    Teachers("each a little better than the next", (0.25, 0.2, 0.15, 0.1, 0.05, 0.0)),
    Teachers("all six equal, most rollouts wrong", (0.0,) * 6, right=-2.0),
    Teachers("one best, four equal, one worst, most rollouts wrong", (1.0, *(0.0,) * 4, -1.0), right=-2.0),
)


def main(arguments: Sequence[str]) -> None:
    repetitions = int(arguments[0]) if arguments else 1000
    log.info("| planted teachers | best lost | last one stopped | after 50 questions | rollouts saved |")
    log.info("|---|---|---|---|---|")
    for teachers in PLANTED:
        end = outcomes(teachers, repetitions)
        shares = [end.lost, end.worst_stopped, end.first_heat, end.saved]
        log.info("| %s | %s |", teachers.name, " | ".join(f"{100 * share:.1f}%" for share in shares))


if __name__ == "__main__":
    log_to(sys.stdout)
    main(sys.argv[1:])
