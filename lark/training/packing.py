"""Assign trajectories to micro-batches, and build the tensors of a micro-batch. Pure functions.

The paper's global batch is 64 *trajectories* (App. C.3), not tokens, so global batches are fixed first, by
the seeded shuffle of the epoch alone. Only then are their trajectories distributed over processes and
micro-steps: packed or padded, on one GPU or sixty-four, a step sums the same 64 terms. A run resumes from
its step number, with no other state.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
import torch
from torch import Tensor

from lark.errors import LarkError
from lark.models.chat import Encoded
from lark.models.varlen import Segments
from lark.training.loss import NO_TARGET, response_targets

PADDING = 0
"""A token id; which one makes no difference, because no real token sees it."""


@dataclass(frozen=True)
class TrainingStep:
    """One global batch, and how it is distributed over processes."""

    trajectories: tuple[int, ...]
    """The global batch. Its actual size, also if the last one is incomplete, is the |batch| of
    `weighted_loss`.
    """
    micro: tuple[tuple[tuple[int, ...], ...], ...]
    """micro[rank][k]: the trajectories of that process in micro-step k. All processes have the same number
    of micro-steps, because each backward pass is a collective (DDP, ZeRO). A micro-step with nothing left
    to do is empty: it is collated to a single token without target, whose loss is 0 and whose backward pass
    is like any other.
    """


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Indices of `lengths` in packs of at most `capacity` tokens, by best-fit decreasing: the longest
    first, each into the fullest pack that has room for it. At most 11/9 of the fewest packs possible (+
    2/3).
    """
    _check_fits(lengths, capacity)
    packs: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (tokens left, pack), ascending
    for index in _longest_first(lengths):
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


def global_batches(trajectories: int, global_batch: int, seed: int, epoch: int) -> list[tuple[int, ...]]:
    """The epoch's shuffle, cut into global batches. An incomplete last one is kept: every trajectory is
    seen once per epoch.
    """
    order = np.random.default_rng([seed, epoch]).permutation(trajectories).tolist()
    return [tuple(order[start : start + global_batch]) for start in range(0, trajectories, global_batch)]


def plan_batches(
    lengths: Sequence[int],
    *,
    global_batch: int,
    processes: int,
    capacity: int,
    seed: int,
    epoch: int,
    packed: bool = True,
    micro_batch: int = 1,
) -> list[TrainingStep]:
    """The steps of one epoch over trajectories of `lengths` tokens (prompt and response).

    A micro-batch is one pack of at most `capacity` tokens; or, padded, at most `micro_batch` trajectories
    of similar length, with at most `capacity` tokens and padding.
    """
    _check_fits(lengths, capacity)
    if min(global_batch, processes, micro_batch) < 1:
        raise LarkError(
            f"global_batch={global_batch}, processes={processes}, micro_batch={micro_batch}: all must be at"
            " least 1."
        )
    steps = []
    for batch in global_batches(len(lengths), global_batch, seed, epoch):
        sizes = [lengths[i] for i in batch]
        groups = (
            _packed(sizes, processes, capacity)
            if packed
            else _padded(sizes, processes, capacity, micro_batch)
        )
        steps.append(TrainingStep(batch, _deal([[batch[i] for i in group] for group in groups], processes)))
    return steps


def _packed(lengths: Sequence[int], processes: int, capacity: int) -> list[list[int]]:
    """As few packs as possible, rounded up to a multiple of `processes`, all about equally full.

    The rounding leaves room, so filling the emptiest pack first usually succeeds, and no process waits for
    a fuller one. If it does not (one process, hardly any room left), the packs are those of best-fit
    decreasing.
    """
    tight = pack(lengths, capacity)
    count = ceil(len(tight) / processes) * processes
    even: list[list[int]] = [[] for _ in range(count)]
    filled = [(0, k) for k in range(count)]
    for index in _longest_first(lengths):
        tokens, emptiest = filled[0]
        if tokens + lengths[index] > capacity:
            even = tight + [[] for _ in range(count - len(tight))]
            break
        heapq.heapreplace(filled, (tokens + lengths[index], emptiest))
        even[emptiest].append(index)
    return sorted(even, key=lambda group: (-sum(lengths[i] for i in group), group))


def _padded(lengths: Sequence[int], processes: int, capacity: int, micro_batch: int) -> list[list[int]]:
    """Neighbours in the order of length, in as few groups as the two limits allow. To make their number a
    multiple of `processes`, the costliest groups are halved; if none can be halved, empty groups are added.
    """

    def cost(group: list[int]) -> tuple[int, list[int]]:
        """Sorts the costliest first."""
        return (-len(group) * max((lengths[i] for i in group), default=0), group)

    groups: list[list[int]] = []
    for index in _longest_first(lengths):
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


def _deal(groups: list[list[int]], processes: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """micro[rank][k] from groups sorted costliest first. Groups of similar cost share a micro-step, at
    whose end processes may wait for each other; every second micro-step is dealt in reverse, so that no
    process always gets the costliest.
    """
    rounds = [groups[start : start + processes] for start in range(0, len(groups), processes)]
    rounds = [dealt if k % 2 == 0 else dealt[::-1] for k, dealt in enumerate(rounds)]
    return tuple(tuple(tuple(dealt[rank]) for dealt in rounds) for rank in range(processes))


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))


def _check_fits(lengths: Sequence[int], capacity: int) -> None:
    long = [i for i, length in enumerate(lengths) if length > capacity]
    if long:
        raise LarkError(
            f"{len(long)} trajectories are longer than the {capacity} tokens of a micro-batch (the first:"
            f" trajectory {long[0]}, {lengths[long[0]]} tokens). Raise the pack's capacity to"
            " student.max_length or more."
        )


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch: [1, t] packed or [b, t] padded, with S trajectories.

    Neither needs an attention mask. Packed, attention separates the trajectories (`lark.models.attention`);
    padded, causality does: the padding is on the right, where no real token attends to it.
    """

    input_ids: Tensor
    position_ids: Tensor
    segment: Tensor
    """The trajectory of each position."""
    targets: Tensor
    """The token that each position predicts, -100 if none."""
    weights: Tensor
    """[S] fp32."""
    lengths: Tensor
    """[S] response tokens of each trajectory."""
    segments: Segments | None = None
    """Where the trajectories of a pack are. None if padded."""
    token_weights: Tensor | None = None
    """The weight of each position's target, if any trajectory has weights for its tokens; 1 for those of
    the others.
    """

    def to(self, device: torch.device | str) -> "MicroBatch":
        moved = {
            name: value.to(device, non_blocking=True)
            for name, value in vars(self).items()
            if value is not None
        }
        return replace(self, **moved)


TokenWeights = Sequence[float] | None
"""One weight per response token of a trajectory. None: all are 1."""


def collate_packed(
    trajectories: Sequence[Encoded],
    weights: Sequence[float],
    multiple: int = 1,
    token_weights: Sequence[TokenWeights] = (),
) -> MicroBatch:
    """Trajectories one after the other in a row of width k · `multiple`; positions restart at each."""
    batch = _collate([list(trajectories)], weights, multiple, token_weights)
    lengths = [len(trajectory.ids) for trajectory in trajectories] or [0]
    # Padding continues the last trajectory, as its positions do.
    lengths[-1] += batch.input_ids.shape[1] - sum(lengths)
    return replace(batch, segments=Segments.of(lengths))


def collate_padded(
    trajectories: Sequence[Encoded],
    weights: Sequence[float],
    multiple: int = 1,
    token_weights: Sequence[TokenWeights] = (),
) -> MicroBatch:
    """One row per trajectory, padded on the right. The width is a multiple of `multiple`."""
    return _collate([[trajectory] for trajectory in trajectories] or [[]], weights, multiple, token_weights)


def _collate(
    rows: list[list[Encoded]], weights: Sequence[float], multiple: int, token_weights: Sequence[TokenWeights]
) -> MicroBatch:
    width = ceil(max(1, *(sum(len(e.ids) for e in row) for row in rows)) / multiple) * multiple
    input_ids, position_ids, segment, targets = [], [], [], []
    lengths: list[int] = []
    for row in rows:
        ids: list[int] = []
        positions: list[int] = []
        owners: list[int] = []
        expected: list[int] = []
        for trajectory in row:
            ids += trajectory.ids
            positions += range(len(trajectory.ids))
            owners += [len(lengths)] * len(trajectory.ids)
            expected += response_targets(trajectory)
            lengths.append(trajectory.n_response)
        padding = width - len(ids)
        last = positions[-1] if positions else -1
        input_ids.append(ids + [PADDING] * padding)
        position_ids.append([*positions, *range(last + 1, last + 1 + padding)])
        segment.append(owners + [max(0, len(lengths) - 1)] * padding)
        targets.append(expected + [NO_TARGET] * padding)
    if len(weights) != len(lengths):
        raise LarkError(
            f"{len(lengths)} trajectories, but {len(weights)} weights: each trajectory needs one."
        )
    target_ids = torch.tensor(targets)
    return MicroBatch(
        torch.tensor(input_ids),
        torch.tensor(position_ids),
        torch.tensor(segment),
        target_ids,
        torch.tensor(list(weights), dtype=torch.float32),
        torch.tensor(lengths, dtype=torch.long),
        token_weights=_aligned(target_ids, lengths, token_weights),
    )


def _aligned(targets: Tensor, lengths: Sequence[int], token_weights: Sequence[TokenWeights]) -> Tensor | None:
    """The tokens' weights at their positions. Trajectories are in the order of the positions, row by row."""
    if all(given is None for given in token_weights):
        return None
    flat: list[float] = []
    for length, given in zip(lengths, token_weights, strict=True):
        weights = [1.0] * length if given is None else given
        if len(weights) != length:
            raise LarkError("Each trajectory needs one weight for each of its response tokens, or none.")
        flat += weights
    aligned = torch.zeros(targets.shape)
    aligned[targets != NO_TARGET] = torch.tensor(flat, dtype=torch.float32)
    return aligned
