"""A case of the fuzz: what is changed follows from the seed, the kind and the number alone, so that it can
be repeated.
"""

import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.hostile import BUG, STACK, Ended

SAME, REFUSED = "same result", "sentence"
GOOD = (SAME, REFUSED)
"""How a case may end."""
STACK_TRACE, HANG, CRASH, SILENT, DIFFERENT = (
    "stack trace",
    "hang",
    "crash",
    "no sentence",
    "silent difference",
)


@dataclass(frozen=True)
class Case:
    """One case."""

    seed: int
    kind: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.number}"

    @property
    def rng(self) -> random.Random:
        return random.Random(f"{self.seed}/{self.name}")


@dataclass(frozen=True)
class Result:
    """How a case ended."""

    outcome: str
    what: str
    """What was changed."""
    details: str = ""

    @property
    def failed(self) -> bool:
        return self.outcome not in GOOD


class Kind(Protocol):
    """One kind of cases. `prepare` makes what they share, in a folder of its own; `run` has an empty folder
    for each.
    """

    name: str
    share: float
    """Of the time."""

    def prepare(self, shared: Path) -> None: ...

    def run(self, case: Case, folder: Path) -> Result: ...


def judged(ended: Ended, what: str, difference: Callable[[], str | None] = lambda: None) -> Result:
    """The result of a command. `difference`: what differs from the expected result, for a command that
    succeeds.
    """
    if ended.hung:
        return Result(HANG, what, tail(ended.output))
    if STACK in ended.output or BUG in ended.output:
        return Result(STACK_TRACE, what, tail(ended.output))
    if ended.code < 0:
        return Result(CRASH, what, f"signal {-ended.code}\n{tail(ended.output)}")
    if ended.code != 0:
        said = re.search(r"error: \S.{10,}", ended.output, re.DOTALL)
        return Result(
            REFUSED if said else SILENT,
            what,
            tail(ended.output[said.start() :] if said else ended.output, 600),
        )
    differs = difference()
    return (
        Result(SAME, what)
        if differs is None
        else Result(DIFFERENT, what, f"{differs}\n{tail(ended.output, 1000)}")
    )


def tail(text: str, characters: int = 3000) -> str:
    return text.strip()[-characters:]


@dataclass
class Outcome:
    """What was tried, and what went wrong."""

    seed: int
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Cases by kind and outcome."""
    failures: list[tuple[Case, Result]] = field(default_factory=list)
    seconds: Counter[str] = field(default_factory=Counter)

    def add(self, case: Case, result: Result, seconds: float) -> None:
        self.counts[case.kind, result.outcome] += 1
        self.seconds[case.kind] += seconds  # type: ignore[assignment]
        if result.failed:
            self.failures.append((case, result))

    def __str__(self) -> str:
        kinds = list(dict.fromkeys(kind for kind, _ in self.counts))
        outcomes = [*GOOD, *sorted({outcome for _, outcome in self.counts} - set(GOOD))]
        lines = [
            f"{'kind':<16}{'cases':>8}"
            + "".join(f"{outcome:>19}" for outcome in outcomes)
            + f"{'seconds':>10}"
        ]
        for kind in kinds:
            cells = [self.counts[kind, outcome] for outcome in outcomes]
            lines.append(
                f"{kind:<16}{sum(cells):>8}"
                + "".join(f"{cell:>19}" for cell in cells)
                + f"{self.seconds[kind]:>10.0f}"
            )
        state = (
            f"{len(self.failures)} FAILED"
            if self.failures
            else "every case ended with a sentence or the same result"
        )
        return "\n".join([*lines, f"seed {self.seed}: {self.counts.total()} cases, {state}"])
