"""The queue of shards. Pure, so that the simulation of a cluster uses the same code as `crew.py`.

Workers take shards from one queue, the costliest first, so that a slow worker or one that joins late takes
fewer, and the last ones are small. A shard of a lost worker goes back to the front of the queue.
"""

from collections import Counter, deque
from collections.abc import Sequence
from math import ceil

from lark.work.sharding import Shard

SHARD_ATTEMPTS = 3
"""How often a shard may fail before the operation stops."""
SHARD_LOSSES = 20
"""How often the machine that a shard is on may be lost. A shard that exhausts the memory of a machine may
cause that.
"""
SHARE_DIVISOR = 2
"""A worker takes 1 / (2 · workers) of the waiting shards at once, if many at once are faster. The shares
get smaller towards the end, so that workers finish at about the same time.
"""


class Dispatch:
    """The queue of an operation's shards."""

    def __init__(self, shards: Sequence[Shard], many: bool = False) -> None:
        self.waiting = deque(sorted(shards, key=lambda shard: -shard.cost))
        self.many = many
        self.failures: Counter[str] = Counter()
        self.losses: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.waiting)

    def take(self, workers: int) -> list[Shard]:
        """The next shards for one of `workers`. A shard that has failed is taken alone, so that only it can
        fail again.
        """
        count = ceil(len(self.waiting) / (SHARE_DIVISOR * max(1, workers))) if self.many else 1
        taken: list[Shard] = []
        while self.waiting and len(taken) < max(1, count):
            if self.failures[self.waiting[0].name] and taken:
                break
            taken.append(self.waiting.popleft())
            if self.failures[taken[-1].name]:
                break
        return taken

    def failed(self, shards: Sequence[Shard]) -> Shard | None:
        """Put shards back that a worker could not do. Returns one that has failed too often, if there is
        one.
        """
        self._back(shards)
        self.failures.update(shard.name for shard in shards)
        return next((shard for shard in shards if self.failures[shard.name] >= SHARD_ATTEMPTS), None)

    def lost(self, shards: Sequence[Shard]) -> Shard | None:
        """Put shards back whose machine was lost. Returns one that has been lost too often, if there is
        one.
        """
        self._back(shards)
        self.losses.update(shard.name for shard in shards)
        return next((shard for shard in shards if self.losses[shard.name] >= SHARD_LOSSES), None)

    def _back(self, shards: Sequence[Shard]) -> None:
        self.waiting.extendleft(reversed(shards))
