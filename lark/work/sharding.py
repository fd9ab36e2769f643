"""An operation's work in shards: described once, done by the processes of one machine or by the actors of a
Ray cluster.

A function that is declared with `in_shards` describes its work: the shards, which of them are missing, and
how a process that has loaded what it needs does some of them. On one machine, every process does the shards
that `deal` assigns to it. On a cluster, actors take them from a queue (lark/cluster/crew.py). Both run the
same code on the same shards, so they write the same files, and a run that was started in one way can
continue in the other.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import update_wrapper
from typing import Any, Protocol

from tqdm import tqdm

from lark.work.operation import Counts, Job


@dataclass(frozen=True)
class Shard:
    """A part of the work, whose result is a file or some lines of one. It does not depend on the number of
    processes.
    """

    name: str
    """Identifies it within its operation, in every process."""
    size: float = 1.0
    """Its share of the progress bar, in `Work.unit`."""
    cost: float = 1.0
    """Expected time, in any unit. The costliest shards are done first."""


class Progress(Protocol):
    """Where a process reports how far it is."""

    def update(self, size: float) -> object: ...

    def note(self, text: str) -> object:
        """Show a remark next to the progress, such as a rate."""
        ...


Do = Callable[[Sequence[Shard], Progress], None]
"""Does some shards and writes their results."""


@dataclass(frozen=True)
class WorkDone:
    """The work that was done in this run, without what an earlier run has left."""

    size: float = 0.0
    """Size of the shards that were missing."""
    rate: float | None = None
    """Size per second; None if there was nothing to do."""


@dataclass(frozen=True)
class Work:
    """The work of an operation in shards."""

    shards: Sequence[Shard]
    """All of them, in the same order in every process."""
    missing: Callable[[Sequence[Shard]], list[Shard]]
    """Selects, from the given shards, those whose results do not exist yet, or are damaged."""
    load: Callable[[], contextlib.AbstractContextManager[Do]]
    """Loads what the work needs, such as a model. Called only if something is missing."""
    counts: Callable[[WorkDone], Counts]
    """The counts of the operation for the manifest."""
    describe: Callable[[Shard], str]
    """The trajectories or problems in a shard, for the message if it fails."""
    label: str
    """Describes the work in the progress bar."""
    unit: str
    many: bool = False
    """True if many shards at once are faster than one after the other, as in engines that batch requests."""


class InShards:
    """A function that describes the work of an operation. When called, it does the share of this process."""

    def __init__(self, work: Callable[[Job], Work]) -> None:
        self.work = work
        update_wrapper(self, work)

    def __call__(self, job: Job) -> dict[str, Any]:
        work = self.work(job)
        mine = deal(work.shards, job.world)[job.rank]
        missing = work.missing(mine)
        if not missing:
            return dict(work.counts(WorkDone()))
        label = work.label if job.world == 1 else f"{work.label} (process 1 of {job.world})"
        total = sum(shard.size for shard in mine)
        remaining = sum(shard.size for shard in missing)
        with work.load() as do, Bar(work, label, total, total - remaining, hidden=not job.is_main) as bar:
            do(missing, bar)
            return dict(work.counts(WorkDone(remaining, bar.rate)))


def in_shards(work: Callable[[Job], Work]) -> InShards:
    """Declare a function that describes an operation's work."""
    return InShards(work)


class Bar:
    """A progress bar."""

    def __init__(self, work: Work, label: str, total: float, initial: float, hidden: bool = False) -> None:
        scaled = work.unit == "tok"
        self._bar = tqdm(
            total=total, initial=initial, desc=label, unit=work.unit, unit_scale=scaled, disable=hidden
        )

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def update(self, size: float) -> None:
        self._bar.update(size)

    def note(self, text: str) -> None:
        self._bar.set_postfix_str(text, refresh=False)

    @property
    def rate(self) -> float | None:
        return self._bar.format_dict["rate"]


def deal(shards: Sequence[Shard], processes: int) -> list[list[Shard]]:
    """The shards of each process, in order: the costliest is assigned first, each to the process with the
    least work so far.
    """
    hands: list[set[int]] = [set() for _ in range(processes)]
    loads = [0.0] * processes
    for index in sorted(range(len(shards)), key=lambda index: (-shards[index].cost, index)):
        rank = min(range(processes), key=lambda r: (loads[r], r))
        hands[rank].add(index)
        loads[rank] += shards[index].cost
    return [[shards[index] for index in sorted(hand)] for hand in hands]


def batched(shards: Sequence[Shard], size: int) -> Iterator[Sequence[Shard]]:
    """Up to `size` shards at a time."""
    for start in range(0, len(shards), size):
        yield shards[start : start + size]


TIMEOUT = timedelta(hours=3)
"""How long a process waits for the others that it works together with. The libraries' defaults (10 and 30
minutes) are shorter than a 7B student's checkpoint takes on a slow disk.
"""


class Together:
    """A function whose processes need each other, as in training: if one is lost, all of them start again."""

    def __init__(self, function: Callable[[Job], Counts]) -> None:
        self.function = function
        update_wrapper(self, function)

    def __call__(self, job: Job) -> dict[str, Any]:
        return dict(self.function(job))


def together(function: Callable[[Job], Counts]) -> Together:
    """Declare a function whose processes need each other. It resumes from what it finds in the job's
    folder.
    """
    return Together(function)
