"""Trajectories as one input of the model, and which of its positions belong to which trajectory.

Packed into one row, attention keeps them apart (lark/models/varlen.py), and those with the same prompt may share it. Otherwise they
are padded on the right without a mask: attention is causal, so no real token sees the padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lark.models.chat import Encoded
from lark.models.head import last_hidden_state, predicting
from lark.models.padding import right_padded
from lark.models.varlen import Prefix, Segments

if TYPE_CHECKING:
    from lark.scoring.forward import Student


@dataclass(frozen=True)
class Inputs:
    """A batch, ready to run. Positions are counted over all rows: of b rows with t tokens, from 0 to b · t."""

    batch: Sequence[Encoded]
    ids: Tensor
    """[b, t]"""
    arguments: dict[str, Any]
    own: list[slice]
    """The positions of each trajectory, without a shared prompt."""
    prefixes: list[Prefix]
    """The positions of a shared prompt, as start and length; length 0: the trajectory has its own."""

    @classmethod
    def of(cls, student: "Student", batch: Sequence[Encoded], shares: bool | None = None) -> "Inputs":
        """`shares`: whether prompts are shared; None: if the student can."""
        if not student.packs:
            return cls._padded(student, batch)
        return cls._packed(student, batch, student.shares if shares is None else shares)

    @classmethod
    def _padded(cls, student: "Student", batch: Sequence[Encoded]) -> "Inputs":
        ids = right_padded([encoded.ids for encoded in batch]).to(student.head.weight.device)
        own = [slice(row * ids.shape[1], row * ids.shape[1] + len(encoded.ids)) for row, encoded in enumerate(batch)]
        return cls(batch, ids, {}, own, [(0, 0)] * len(batch))

    @classmethod
    def _packed(cls, student: "Student", batch: Sequence[Encoded], shares: bool) -> "Inputs":
        device = student.head.weight.device
        ids: list[int] = []
        positions: list[int] = []
        own: list[slice] = []
        prefixes: list[Prefix] = []
        starts: dict[tuple[int, ...], int] = {}
        for encoded in batch:
            start = starts.setdefault(prompt_of(encoded), len(ids)) if shares else len(ids)
            before = encoded.prompt_length if start < len(ids) else 0
            prefixes.append((start, before))
            own.append(slice(len(ids), len(ids) + len(encoded.ids) - before))
            ids += encoded.ids[before:]
            positions += range(before, len(encoded.ids))
        shared = prefixes if any(before for _, before in prefixes) else None
        segments = Segments.of([part.stop - part.start for part in own], shared).to(device)
        arguments = {
            "position_ids": torch.tensor(positions, device=device)[None],
            **segments.arguments(student.model.base_model),
        }
        return cls(batch, torch.tensor(ids, device=device)[None], arguments, own, prefixes)

    @property
    def targets(self) -> Tensor:
        """[T] The response tokens, one trajectory after the other."""
        return torch.tensor([token for encoded in self.batch for token in encoded.response], device=self.ids.device)

    def run(self, student: "Student") -> Tensor:
        """[b, t, d] The last hidden states."""
        return last_hidden_state(student.model, self.ids, **self.arguments)

    def each(self, states: Tensor) -> list[Tensor]:
        """The rows of `states` [b, t, …] that belong to each trajectory, with its prompt and without padding."""
        flat = states.flatten(0, 1)
        return [
            torch.cat([flat[start : start + before], flat[own]]) if before else flat[own]
            for own, (start, before) in zip(self.own, self.prefixes, strict=True)
        ]

    def predicting(self, states: Tensor) -> list[Tensor]:
        """Those whose position predicts a response token."""
        return [predicting(own, encoded) for own, encoded in zip(self.each(states), self.batch, strict=True)]


def prompt_of(encoded: Encoded) -> tuple[int, ...]:
    return tuple(encoded.ids[: encoded.prompt_length])
