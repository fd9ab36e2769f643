"""Trajectories as one input of the model, and which of its positions belong to which trajectory.

Packed into one row, attention keeps them apart (lark/models/varlen.py), and those that begin alike may
share their beginning. Otherwise they are padded on the right without a mask: attention is causal, so no
real token sees the padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lark.models.chat import Encoded
from lark.models.head import last_hidden_state, predicting
from lark.models.padding import right_padded
from lark.models.varlen import Segments

if TYPE_CHECKING:
    from lark.scoring.forward import LoadedStudent


@dataclass(frozen=True)
class Inputs:
    """A batch, ready to run. Positions are counted over all rows: b rows of t tokens have 0 to b · t."""

    batch: Sequence[Encoded]
    ids: Tensor
    """[b, t]"""
    arguments: dict[str, Any]
    tails: list[slice]
    """The positions of each trajectory after a shared beginning."""
    prefixes: list[Tensor]
    """The positions of the beginning that it shares with the trajectory before it; often empty."""

    @classmethod
    def of(cls, student: "LoadedStudent", batch: Sequence[Encoded], shares: bool | None = None) -> "Inputs":
        """`shares`: whether common beginnings of neighbours are shared; None: if the student can."""
        if not student.packs:
            return cls._padded(student, batch)
        return cls._packed(student, batch, student.shares if shares is None else shares)

    @classmethod
    def _padded(cls, student: "LoadedStudent", batch: Sequence[Encoded]) -> "Inputs":
        ids = right_padded([encoded.ids for encoded in batch]).to(student.head.weight.device)
        tails = []
        for row, encoded in enumerate(batch):
            start = row * ids.shape[1]
            tails.append(slice(start, start + len(encoded.ids)))
        return cls(batch, ids, {}, tails, [torch.arange(0)] * len(batch))

    @classmethod
    def _packed(cls, student: "LoadedStudent", batch: Sequence[Encoded], shares: bool) -> "Inputs":
        device = student.head.weight.device
        ids: list[int] = []
        positions: list[int] = []
        tails: list[slice] = []
        prefixes: list[Tensor] = []
        before: Sequence[int] = ()
        where = torch.arange(0)  # of the tokens before, in the row
        for encoded in batch:
            shared = common(before, encoded.ids) if shares else 0
            tail = slice(len(ids), len(ids) + len(encoded.ids) - shared)
            prefixes.append(where[:shared])
            tails.append(tail)
            ids += encoded.ids[shared:]
            positions += range(shared, len(encoded.ids))
            # The next one may share tokens that this one shares with others itself.
            where = torch.cat([where[:shared], torch.arange(tail.start, tail.stop)])
            before = encoded.ids
        sizes = [tail.stop - tail.start for tail in tails]
        segments = Segments.of(sizes, prefixes if shares else None).to(device)
        arguments = segments.arguments(student.model.base_model)
        arguments["position_ids"] = torch.tensor(positions, device=device)[None]
        prefixes = [prefix.to(device) for prefix in prefixes]
        return cls(batch, torch.tensor(ids, device=device)[None], arguments, tails, prefixes)

    @property
    def targets(self) -> Tensor:
        """[T] The response tokens, one trajectory after the other."""
        return joined_responses(self.batch).to(self.ids.device)

    def run(self, student: "LoadedStudent") -> Tensor:
        """[b, t, d] The last hidden states."""
        return last_hidden_state(student.model, self.ids, **self.arguments)

    def by_trajectory(self, states: Tensor) -> list[Tensor]:
        """The rows of `states` [b, t, …] that belong to each trajectory, with its prompt and without
        padding.
        """
        flat = states.flatten(0, 1)
        parts = []
        for tail, prefix in zip(self.tails, self.prefixes, strict=True):
            part = flat[tail]
            parts.append(torch.cat([flat[prefix], part]) if len(prefix) else part)
        return parts

    def predicting(self, states: Tensor) -> list[Tensor]:
        """The rows of each trajectory that predict its response tokens."""
        pairs = zip(self.by_trajectory(states), self.batch, strict=True)
        return [predicting(part, encoded) for part, encoded in pairs]


def joined_responses(batch: Sequence[Encoded]) -> Tensor:
    """[T] The response tokens of a batch, one trajectory after the other."""
    return torch.tensor(list(chain.from_iterable(encoded.response for encoded in batch)))


def common(before: Sequence[int], ids: Sequence[int]) -> int:
    """Length of the common beginning, without the last of `ids`."""
    pairs = zip(before, ids[:-1], strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(before), len(ids) - 1))
