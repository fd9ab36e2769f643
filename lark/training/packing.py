"""Assign trajectories to micro-batches, and build the tensors of a micro-batch. Pure functions.

The paper's global batch is 64 *trajectories* (App. C.3), not tokens, so global batches are fixed first, by
the seeded shuffle of the epoch and `training.order` alone. Only then are their trajectories distributed over
processes and micro-steps: packed or padded, on one GPU or sixty-four, a step sums the same 64 terms. A run
resumes from its step number, with no other state.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
import torch
from torch import Tensor

from lark.errors import LarkError
from lark.models.chat import Encoded
from lark.models.varlen import Segments
from lark.training.balance import balanced
from lark.training.grouping import check_fits, even_packs, padded_groups
from lark.training.loss import NO_TARGET, response_targets

PADDING = 0
"""A token id; which one makes no difference, because no real token sees it."""


MOST_BALANCED = 1024
"""Trajectories of a global batch whose packs are balanced by cost. The time to do it grows with their square:
1 ms for 64, 0.1 s for 1,024. A held-out set is one batch that may have many more, and has no backward pass.
"""


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


def global_batches(
    trajectories: int, global_batch: int, seed: int, epoch: int, places: Sequence[float] | None = None
) -> list[tuple[int, ...]]:
    """The epoch's shuffle, cut into global batches. An incomplete last one is kept: every trajectory is
    seen once per epoch.

    `places`: one number per trajectory, by which they are sorted, smallest first (`training.order`). Those
    with equal numbers stay in the order of the shuffle. None: nothing is sorted.
    """
    order = np.random.default_rng([seed, epoch]).permutation(trajectories).tolist()
    if places is not None:
        order.sort(key=places.__getitem__)
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
    crossover: float | None = None,
    places: Sequence[float] | None = None,
) -> list[TrainingStep]:
    """The steps of one epoch over trajectories of `lengths` tokens (prompt and response).

    A micro-batch is one pack of at most `capacity` tokens; or, padded, at most `micro_batch` trajectories
    of similar length, with at most `capacity` tokens and padding. `crossover`: balance packs by their cost
    (balance.py) with the length at which attention costs as much as everything else. None: by their tokens.
    `places`: see `global_batches`.
    """
    check_fits(lengths, capacity)
    if min(global_batch, processes, micro_batch) < 1:
        raise LarkError(
            f"global_batch={global_batch}, processes={processes}, micro_batch={micro_batch}: all must be at"
            " least 1."
        )
    steps = []
    for batch in global_batches(len(lengths), global_batch, seed, epoch, places):
        sizes = [lengths[i] for i in batch]
        if packed:
            rounds = _rounds(even_packs(sizes, processes, capacity), processes)
        else:
            rounds = _rounds(padded_groups(sizes, processes, capacity, micro_batch), processes)
        if packed and crossover is not None and len(batch) <= MOST_BALANCED:
            rounds = balanced(sizes, rounds, capacity, crossover)
        steps.append(TrainingStep(batch, _deal(rounds, batch)))
    return steps


def _rounds(groups: list[list[int]], processes: int) -> list[list[list[int]]]:
    """The groups of each micro-step, from groups sorted costliest first. Groups of similar cost share a
    micro-step, at whose end processes may wait for each other.
    """
    return [groups[start : start + processes] for start in range(0, len(groups), processes)]


def _deal(rounds: list[list[list[int]]], batch: Sequence[int]) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """micro[rank][k] from the groups of each micro-step, sorted costliest first. Every second micro-step is
    dealt in reverse, so that no process always gets the costliest.
    """
    by_micro_step = []
    for number, groups in enumerate(rounds):
        named = [tuple(batch[i] for i in group) for group in groups]
        by_micro_step.append(named[::-1] if number % 2 else named)
    return tuple(zip(*by_micro_step, strict=True))


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
