"""Heats: all teachers answer a few questions, and those that are significantly behind stop
(lark/selection/leads.py decides). The others answer more.

The questions of a heat contain those of the heats before it, in one order, so a teacher that stopped has
answered the first of them. Every heat has ordinary artifacts: questions, rollouts, verdicts, a pool and its
scores. Rollouts of an earlier heat are copied (lark/teaching/earlier.py), and scores are taken over.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lark.printing import counted
from lark.reading.untrusted import read_object
from lark.store.store import write_text
from lark.teaching.artifacts import STANDING


@dataclass(frozen=True)
class Stopped:
    """Why a teacher stopped. A lead is the share of other teachers' rollouts for the same question that a
    rollout ranks before, on average.
    """

    heat: int
    questions: int
    """Questions that it has answered."""
    ahead: str
    """The teacher with the best lead among those that are significantly better."""
    difference: float
    """By how much its lead is larger."""
    low: float
    high: float
    """Interval of the difference, for all pairs of teachers and all heats together."""

    def __str__(self) -> str:
        interval = f"{self.low:.3f} to {self.high:.3f}"
        return f"{self.difference:.3f} behind {self.ahead} (simultaneous interval {interval})"


@dataclass(frozen=True)
class Standing:
    """The state after a heat. Without a heat, everything is empty."""

    heat: int = 0
    questions: int = 0
    """Questions of the heats so far."""
    leads: Mapping[str, float] = field(default_factory=dict)
    """The mean lead of every teacher of this heat (`Stopped`)."""
    stopped: Mapping[str, Stopped] = field(default_factory=dict)
    spent: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Tokens and cost of every teacher so far."""
    undecided: str | None = None
    """Why nobody could be stopped after this heat."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Standing":
        stopped = {name: Stopped(**reason) for name, reason in values["stopped"].items()}
        return cls(**{**values, "stopped": stopped})

    @property
    def running(self) -> list[str]:
        """The teachers that continue, the best lead first."""
        names = [name for name in self.leads if name not in self.stopped]
        return sorted(names, key=lambda name: -self.leads[name])

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def heat_line(standing: Standing) -> str:
    """The state after a heat, for the log."""
    parts = [f"{name} stops: {why}" for name, why in standing.stopped.items() if why.heat == standing.heat]
    if standing.undecided:
        parts.append(f"nobody stops: {standing.undecided}")
    elif not parts:
        parts.append("nobody is significantly behind")
    leads = ", ".join(f"{name} ({standing.leads[name]:.3f})" for name in standing.running)
    questions = counted(standing.questions, "question")
    return f"after {questions}: {'; '.join(parts)}. Continue, with their leads: {leads}"


def write_standing(standing: Standing, folder: Path) -> None:
    write_text(folder / STANDING.file, json.dumps(standing.to_dict(), indent=2) + "\n")


def standing_of(inputs: Mapping[str, Path]) -> Standing:
    """The state after the heat before, which is one of a step's inputs."""
    folder = inputs.get(STANDING.name)
    return Standing() if folder is None else Standing.of(read_object(folder / STANDING.file))
