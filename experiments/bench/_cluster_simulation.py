"""A part of a run on GPUs that fail, simulated event by event.

Shards are given out by `lark.cluster.dispatch.Dispatch`, the queue that a Ray cluster uses. Workers fail at
random, lose the shard they are at, and are replaced. Training starts again from its last checkpoint when one
of its GPUs fails.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from math import inf

import numpy as np

from lark.cluster.dispatch import Dispatch
from lark.planner.scale import DETECTION, REPLACEMENT, Part
from lark.work.sharding import Shard


@dataclass(frozen=True)
class Simulated:
    """What happened to a part."""

    seconds: float
    lost: float
    """GPU-seconds of work that was done again, and of starting again."""


def simulate(
    part: Part,
    costs: Sequence[float],
    gpus: int,
    failures: float,
    random: np.random.Generator,
    many: bool = False,
) -> Simulated:
    """Carry out a part once.

    `costs`: seconds of its shards, or of its intervals between checkpoints on one GPU. `failures`: per
    GPU-hour. `many`: a worker may take several shards at once.
    """
    used = max(1, min(gpus, part.most))
    rate = failures / 3600
    if part.divided == "not":
        return Simulated(part.start + part.work + part.serial, 0.0)
    if part.divided == "together":
        return _together(part, [cost / used for cost in costs], used, rate, random)
    return _shards(part, costs, min(used, len(costs)), rate, random, many)


def _together(
    part: Part, intervals: Sequence[float], used: int, rate: float, random: np.random.Generator
) -> Simulated:
    """Processes that need each other: one failure costs the interval of all."""
    restart = DETECTION + REPLACEMENT + part.start
    now = part.start
    lost = 0.0
    for interval in intervals:
        while rate and (until := random.exponential(1 / (rate * used))) < interval:
            now += until + restart
            lost += (until + restart) * used
        now += interval
    return Simulated(now + part.serial, lost)


class _Events:
    """What happens next: a worker is ready, it has done the shards that it took, or lost them."""

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, str, list[Shard]]] = []
        self.numbers = count()

    def add(self, time: float, what: str, shards: Sequence[Shard] = ()) -> None:
        # Of events at the same time, the first one added comes first: shards cannot be compared.
        heapq.heappush(self.heap, (time, next(self.numbers), what, list(shards)))

    def next(self) -> tuple[float, str, list[Shard]]:
        time, _, what, shards = heapq.heappop(self.heap)
        return time, what, shards


def _shards(
    part: Part, costs: Sequence[float], workers: int, rate: float, random: np.random.Generator, many: bool
) -> Simulated:
    """Workers that take shards from the real queue."""
    by_name = {str(number): float(cost) for number, cost in enumerate(costs)}
    queue = Dispatch([Shard(name, cost=cost) for name, cost in by_name.items()], many)
    events = _Events()
    for _ in range(workers):
        events.add(part.start, "ready")
    left = len(by_name)
    idle = 0
    lost = 0.0
    now = 0.0
    while left:
        now, what, shards = events.next()
        if what == "lost":
            queue.lost(shards)
            woken = min(idle, len(queue))
            idle -= woken
            for _ in range(woken):
                events.add(now, "ready")
            continue
        if what == "done":
            left -= len(shards)
        if not queue:
            idle += 1
            continue
        taken = queue.take(workers)
        seconds = sum(by_name[shard.name] for shard in taken)
        until = random.exponential(1 / rate) if rate else inf
        if until >= seconds:
            events.add(now + seconds, "done", taken)
            continue
        # The worker fails: what it had finished by then is kept, and the rest goes back to the queue.
        ends = np.cumsum([by_name[shard.name] for shard in taken])
        finished = int(np.searchsorted(ends, until, side="right"))
        left -= finished
        kept = sum(by_name[shard.name] for shard in taken[:finished])
        lost += until - kept + DETECTION + REPLACEMENT + part.start
        events.add(now + until + DETECTION, "lost", taken[finished:])
        events.add(now + until + DETECTION + REPLACEMENT + part.start, "ready")
    return Simulated(now + part.serial, lost)
