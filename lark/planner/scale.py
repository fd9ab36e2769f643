"""N trajectories on G GPUs that fail at some rate: expected hours, lost work, and what limits the speed.
Pure formulas.

A step is divided in one of three ways (`Part.divided`): into shards, which workers take from a queue; among
processes that need each other, as in training; or not at all. The expected time of a piece of work of c
seconds on a worker with failure rate λ, which starts from the beginning of the piece after a failure and
loses R seconds each time, is

    E(c) = (1/λ + R) (exp(λ c) - 1)                            (Daly 2006, "A higher order estimate …", eq. 1)

For shards, c is a shard and λ the rate of one GPU. For training, c is the time between two checkpoints and
λ the rate of all GPUs together. A piece that needs more than ATTEMPTS attempts on average counts as one
that never ends: E is infinite. experiments/bench/cluster.py compares these formulas with a simulation of
the real queue.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, expm1, inf, log, sqrt
from typing import Literal

DETECTION = 20.0
"""Seconds until the loss of a node is noticed (docs/cluster.md)."""
REPLACEMENT = 120.0
"""Seconds until another GPU takes the place of a lost one."""
ATTEMPTS = 1000
"""Attempts at a piece of work, on average, beyond which it counts as one that never ends."""


@dataclass(frozen=True)
class Part:
    """A step of the plan, as far as its time depends on the number of GPUs."""

    name: str
    divided: Literal["shards", "together", "not"]
    work: float
    """Seconds of one GPU, without starting."""
    start: float
    """Seconds until a process works: imports and loading weights."""
    pieces: int = 1
    """Shards, or intervals between checkpoints."""
    spread: float = 0.0
    """Standard deviation of the shards' times, relative to their mean."""
    most: int = 2**31
    """GPUs that it can use at most."""
    serial: float = 0.0
    """Seconds that one process needs afterwards, whatever the number of GPUs: merging."""


@dataclass(frozen=True)
class Expected:
    """The expected time of a part. Infinite if failures do not let it end."""

    name: str
    seconds: float
    lost: float
    """GPU-seconds of work that is done again, and of starting again."""
    gpus: int


def expected(part: Part, gpus: int, failures_per_gpu_hour: float) -> Expected:
    """The expected time of a part on `gpus` GPUs."""
    rate = failures_per_gpu_hour / 3600
    used = max(1, min(gpus, part.most))
    restart = DETECTION + REPLACEMENT + part.start
    if part.divided == "not":
        return Expected(part.name, part.start + part.work + part.serial, 0.0, 1)
    if part.divided == "together":
        # Any GPU's failure stops all of them, so their rates add up.
        interval = part.work / used / part.pieces
        seconds = part.start + part.pieces * _until_done(interval, rate * used, restart)
        lost = max(0.0, (seconds - part.start) * used - part.work)
        return Expected(part.name, seconds + part.serial, lost, used)
    used = min(used, part.pieces)
    shard = part.work / part.pieces
    busy = part.pieces * _until_done(shard, rate, restart)
    finish = _finish(part, busy, used, rate) if busy < inf else inf
    return Expected(part.name, part.start + finish + part.serial, max(0.0, busy - part.work), used)


def _until_done(piece: float, rate: float, restart: float) -> float:
    """E(c) above; `restart` is R."""
    if rate * piece > log(ATTEMPTS):  # exp(λ c) attempts
        return inf
    if rate * piece < 1e-12:  # almost never fails; 1/λ may be infinite
        return piece
    return (1 / rate + restart) * expm1(rate * piece)


def _finish(part: Part, busy: float, workers: int, rate: float) -> float:
    """Time until the last of `workers` has finished shards that keep them busy for `busy` seconds in total.

    Shards of equal size are done in rounds: workers take as long as ceil(pieces / workers) shards. If their
    sizes differ, the costliest are first and the cheapest fill the gaps, so that workers finish within
    about one small shard of each other; but no sooner than the longest shard. A failure in the last round,
    when nothing else is left to do, delays the end.
    """
    mean = busy / part.pieces
    mixed = min(1.0, part.spread / 0.25)
    rounds = ceil(part.pieces / workers) * mean
    smooth = busy / workers + mean * max(0.0, 1 - part.spread) / 2
    longest = mean * (1 + part.spread * sqrt(2 * log(part.pieces)))
    late = -expm1(-rate * workers * mean) * (DETECTION + mean)
    return max(longest, (1 - mixed) * rounds + mixed * smooth) + late


def stops_falling(times: Mapping[int, float], gain: float = 0.1) -> int | None:
    """The number of GPUs after which the next larger number saves less than `gain` of the time; None if
    none of them does.

    `times`: by number of GPUs.
    """
    counts = sorted(times)
    for count, following in pairwise(counts):
        if times[following] > (1 - gain) * times[count]:
            return count
    return None
