"""Group the trajectories of one global batch into micro-batches: packed or padded. Pure functions on lengths.

Groups are indices of `lengths`. How they are distributed over processes is decided in packing.py, and in
balance.py where processes would wait for each other.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from math import ceil

from lark.errors import LarkError


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Indices of `lengths` in packs of at most `capacity` tokens, by best-fit decreasing: the longest
    first, each into the fullest pack that has room for it. At most 11/9 of the fewest packs possible (+
    2/3).
    """
    check_fits(lengths, capacity)
    packs: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (tokens left, pack), ascending
    for index in longest_first(lengths):
        best = bisect_left(room, (lengths[index], -1))
        if best == len(room):
            left, target = capacity, len(packs)
            packs.append([])
        else:
            left, target = room.pop(best)
        packs[target].append(index)
        insort(room, (left - lengths[index], target))
    return packs


def utilisation(packs: Sequence[Sequence[int]], lengths: Sequence[int], capacity: int) -> float:
    """The share of token slots that hold a token."""
    return sum(lengths[i] for p in packs for i in p) / (len(packs) * capacity) if packs else 1.0


def even_packs(lengths: Sequence[int], processes: int, capacity: int) -> list[list[int]]:
    """As few packs as possible, rounded up to a multiple of `processes`, all about equally full.

    The rounding leaves room, so filling the emptiest pack first usually succeeds, and no process waits for
    a fuller one. If it does not (one process, hardly any room left), the packs are those of best-fit
    decreasing.
    """
    tight = pack(lengths, capacity)
    count = ceil(len(tight) / processes) * processes
    even: list[list[int]] = [[] for _ in range(count)]
    filled = [(0, k) for k in range(count)]
    for index in longest_first(lengths):
        tokens, emptiest = filled[0]
        if tokens + lengths[index] > capacity:
            even = tight + [[] for _ in range(count - len(tight))]
            break
        heapq.heapreplace(filled, (tokens + lengths[index], emptiest))
        even[emptiest].append(index)
    return sorted(even, key=lambda group: (-sum(lengths[i] for i in group), group))


def padded_groups(lengths: Sequence[int], processes: int, capacity: int, micro_batch: int) -> list[list[int]]:
    """Neighbours in the order of length, in as few groups as the two limits allow. To make their number a
    multiple of `processes`, the costliest groups are halved; if none can be halved, empty groups are added.
    """

    def cost(group: list[int]) -> tuple[int, list[int]]:
        """Sorts the costliest first."""
        return (-len(group) * max((lengths[i] for i in group), default=0), group)

    groups: list[list[int]] = []
    for index in longest_first(lengths):
        last = groups[-1] if groups else []
        if last and len(last) < micro_batch and lengths[last[0]] * (len(last) + 1) <= capacity:
            last.append(index)
        else:
            groups.append([index])
    while len(groups) % processes:
        costliest = min((group for group in groups if len(group) > 1), key=cost, default=None)
        if costliest is None:
            groups.append([])
        else:
            groups.remove(costliest)
            half = len(costliest) // 2
            groups += [costliest[:half], costliest[half:]]
    return sorted(groups, key=cost)


def longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))


def check_fits(lengths: Sequence[int], capacity: int) -> None:
    long = [i for i, length in enumerate(lengths) if length > capacity]
    if long:
        raise LarkError(
            f"{len(long)} trajectories are longer than the {capacity} tokens of a micro-batch (the first:"
            f" trajectory {long[0]}, {lengths[long[0]]} tokens). Raise the pack's capacity to"
            " student.max_length or more."
        )
