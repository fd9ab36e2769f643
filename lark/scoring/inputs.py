"""Trajectories as one input of the model, and which of its positions belong to which trajectory.

Packed into one row, attention keeps them apart (lark/models/varlen.py), and those that begin alike may
share their beginning. Otherwise they are padded on the right without a mask: attention is causal, so no
real token sees the padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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
    """A batch, ready to run. Positions are counted over all rows: of b rows with t tokens, from 0 to b · t."""

    batch: Sequence[Encoded]
    ids: Tensor
    """[b, t]"""
    arguments: dict[str, Any]
    own: list[slice]
    """The positions of each trajectory, without a shared beginning."""
    prefixes: list[Tensor]
    """The positions of a beginning that is shared with the trajectory before; empty: the trajectory has all
    its tokens itself.
    """

    @classmethod
    def of(cls, student: "LoadedStudent", batch: Sequence[Encoded], shares: bool | None = None) -> "Inputs":
        """`shares`: whether common beginnings of neighbours are shared; None: if the student can."""
        if not student.packs:
            return cls._padded(student, batch)
        return cls._packed(student, batch, student.shares if shares is None else shares)

    @classmethod
    def _padded(cls, student: "LoadedStudent", batch: Sequence[Encoded]) -> "Inputs":
        ids = right_padded([encoded.ids for encoded in batch]).to(student.head.weight.device)
        own = [
            slice(row * ids.shape[1], row * ids.shape[1] + len(encoded.ids))
            for row, encoded in enumerate(batch)
        ]
        return cls(batch, ids, {}, own, [torch.arange(0)] * len(batch))

    @classmethod
    def _packed(cls, student: "LoadedStudent", batch: Sequence[Encoded], shares: bool) -> "Inputs":
        device = student.head.weight.device
        ids: list[int] = []
        positions: list[int] = []
        own: list[slice] = []
        prefixes: list[Tensor] = []
        where = torch.arange(0)  # of a trajectory's tokens in the row
        for index, encoded in enumerate(batch):
            shared = common(batch[index - 1].ids, encoded.ids) if index and shares else 0
            prefixes.append(where[:shared])
            own.append(slice(len(ids), len(ids) + len(encoded.ids) - shared))
            where = torch.cat([where[:shared], torch.arange(own[-1].start, own[-1].stop)])
            ids += encoded.ids[shared:]
            positions += range(shared, len(encoded.ids))
        segments = Segments.of([part.stop - part.start for part in own], prefixes if shares else None).to(
            device
        )
        arguments = {
            "position_ids": torch.tensor(positions, device=device)[None],
            **segments.arguments(student.model.base_model),
        }
        return cls(
            batch,
            torch.tensor(ids, device=device)[None],
            arguments,
            own,
            [prefix.to(device) for prefix in prefixes],
        )

    @property
    def targets(self) -> Tensor:
        """[T] The response tokens, one trajectory after the other."""
        return torch.tensor(
            [token for encoded in self.batch for token in encoded.response], device=self.ids.device
        )

    def run(self, student: "LoadedStudent") -> Tensor:
        """[b, t, d] The last hidden states."""
        return last_hidden_state(student.model, self.ids, **self.arguments)

    def each(self, states: Tensor) -> list[Tensor]:
        """The rows of `states` [b, t, …] that belong to each trajectory, with its prompt and without
        padding.
        """
        flat = states.flatten(0, 1)
        return [
            torch.cat([flat[prefix], flat[own]]) if len(prefix) else flat[own]
            for own, prefix in zip(self.own, self.prefixes, strict=True)
        ]

    def predicting(self, states: Tensor) -> list[Tensor]:
        """Those whose position predicts a response token."""
        return [predicting(own, encoded) for own, encoded in zip(self.each(states), self.batch, strict=True)]


def common(before: Sequence[int], ids: Sequence[int]) -> int:
    """Length of the common beginning, without the last of `ids`."""
    pairs = zip(before, ids[:-1], strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(before), len(ids) - 1))
