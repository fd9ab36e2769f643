"""The student's forward pass over trajectories: hidden states at response positions, and from them every statistic.

Batches hold trajectories of similar length. On CPU they are padded on the right without a mask: attention is causal, so
no real token sees the padding. On a GPU they are packed into one row, in which attention keeps them apart.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

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


@torch.no_grad()
def response_statistics(
    student: Student, batch: Sequence[Encoded], n_alternatives: int | None = None
) -> Iterator[TokenStatistics]:
    """Statistics of each trajectory's response tokens, in the batch's order. Prompt positions are not projected.

    `n_alternatives`: also the entropies and this number of most likely tokens (`DetailedStatistics`). None: neither.
    """
    device = student.head.weight.device
    hidden = _packed(student, batch) if student.packs else _padded(student, batch)
    targets = torch.tensor([token for e in batch for token in e.response], device=device)
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


def _padded(student: Student, batch: Sequence[Encoded]) -> torch.Tensor:
    """[T, d] the hidden states that predict the response tokens, one trajectory after the other."""
    ids = right_padded([encoded.ids for encoded in batch])
    hidden = last_hidden_state(student.model, ids.to(student.head.weight.device))
    rows = [predicting(hidden[row], e) for row, e in enumerate(batch)]
    return torch.cat(rows)


def _packed(student: Student, batch: Sequence[Encoded]) -> torch.Tensor:
    """The same states from one row in which attention separates the trajectories."""
    device = student.head.weight.device
    ids = torch.tensor([token for encoded in batch for token in encoded.ids], device=device)[None]
    positions = torch.cat([torch.arange(len(encoded.ids)) for encoded in batch]).to(device)[None]
    segments = Segments.of([len(encoded.ids) for encoded in batch]).to(device).arguments(student.model.base_model)
    hidden = last_hidden_state(student.model, ids, position_ids=positions, **segments)[0]
    rows, start = [], 0
    for encoded in batch:
        rows.append(predicting(hidden[start:], encoded))
        start += len(encoded.ids)
    return torch.cat(rows)
