"""The student's forward pass over trajectories: hidden states at response positions, and from them every statistic.

Batches hold trajectories of similar length. On CPU they are padded on the right without a mask: attention is causal, so
no real token sees the padding. On a GPU they are packed into one row, in which attention keeps them apart.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any

import torch
from transformers import PreTrainedModel

from lark.models.attention import separates, supports_packing
from lark.models.chat import Encoded
from lark.models.head import Head, last_hidden_state, predicting
from lark.models.padding import right_padded
from lark.models.varlen import Segments
from lark.scoring.statistics import TokenStatistics, detailed_statistics, token_statistics


@dataclass(frozen=True)
class Student:
    """A loaded model and its LM head."""

    model: PreTrainedModel
    head: Head
    packs: bool
    """Whether trajectories are scored in packs. If not, in padded batches."""

    @classmethod
    @torch.no_grad()
    def of(cls, model: PreTrainedModel) -> "Student":
        return cls(model, Head.of(model), packs=separates(model) and supports_packing(model, doing="Scoring"))


def batches(lengths: Sequence[int], budget: int, padded: bool) -> list[list[int]]:
    """Indices of trajectories, longest first, in batches of at most `budget` tokens with padding (at least one trajectory)."""
    result: list[list[int]] = []
    tokens = longest = 0
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        size = longest if padded else lengths[index]
        if result and tokens + size <= budget:
            result[-1].append(index)
        else:
            result.append([index])
            tokens, longest = 0, lengths[index]
            size = lengths[index]
        tokens += size
    return result


@dataclass(frozen=True)
class Inputs:
    """A batch as one input of the model: padded on the right, or one row in which attention separates the trajectories."""

    batch: Sequence[Encoded]
    ids: torch.Tensor
    """[b, t]"""
    arguments: dict[str, Any]
    starts: list[int]
    """The first position of each trajectory, counted over all b · t positions."""

    @classmethod
    def of(cls, student: Student, batch: Sequence[Encoded]) -> "Inputs":
        device, sizes = student.head.weight.device, [len(encoded.ids) for encoded in batch]
        if not student.packs:
            ids = right_padded([encoded.ids for encoded in batch]).to(device)
            return cls(batch, ids, {}, [row * ids.shape[1] for row in range(len(batch))])
        ids = torch.tensor([token for encoded in batch for token in encoded.ids], device=device)[None]
        positions = torch.cat([torch.arange(size) for size in sizes]).to(device)[None]
        segments = Segments.of(sizes).to(device).arguments(student.model.base_model)
        return cls(batch, ids, {"position_ids": positions, **segments}, [0, *accumulate(sizes[:-1])])

    @property
    def targets(self) -> torch.Tensor:
        """[T] The response tokens, one trajectory after the other."""
        return torch.tensor([token for encoded in self.batch for token in encoded.response], device=self.ids.device)

    def run(self, student: Student) -> torch.Tensor:
        """[b, t, d] The last hidden states."""
        return last_hidden_state(student.model, self.ids, **self.arguments)

    def predicting(self, states: torch.Tensor) -> torch.Tensor:
        """[T, …] The rows of `states` [b, t, …] whose position predicts a response token, one trajectory after the other."""
        flat = states.flatten(0, 1)
        return torch.cat([predicting(flat[start:], e) for start, e in zip(self.starts, self.batch, strict=True)])

    def each(self, states: torch.Tensor) -> list[torch.Tensor]:
        """The rows of `states` [b, t, …] that belong to each trajectory, without padding."""
        flat = states.flatten(0, 1)
        return [flat[start : start + len(e.ids)] for start, e in zip(self.starts, self.batch, strict=True)]


@torch.no_grad()
def response_statistics(
    student: Student, batch: Sequence[Encoded], n_alternatives: int | None = None
) -> Iterator[TokenStatistics]:
    """Statistics of each trajectory's response tokens, in the batch's order. Prompt positions are not projected.

    `n_alternatives`: also the entropies and this number of most likely tokens (`DetailedStatistics`). None: neither.
    """
    inputs = Inputs.of(student, batch)
    hidden = inputs.predicting(inputs.run(student))
    targets = inputs.targets
    statistics = (
        token_statistics(hidden, targets, student.head)
        if n_alternatives is None
        else detailed_statistics(hidden, targets, student.head, n_alternatives)
    )
    start = 0
    for encoded in batch:
        stop = start + encoded.n_response
        yield type(statistics)(**{f.name: getattr(statistics, f.name)[start:stop] for f in fields(statistics)})
        start = stop
