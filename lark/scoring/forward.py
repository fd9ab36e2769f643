"""The student's forward pass over trajectories: hidden states at response positions, and from them every statistic.

Batches hold trajectories of similar length. On CPU they are padded on the right without a mask: attention is causal, so
no real token sees the padding. With FlashAttention they are packed into one row, and position ids that restart at each
trajectory keep them apart.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from transformers import PreTrainedModel

from lark.errors import LarkError
from lark.models.attention import assert_packing_separates
from lark.models.chat import Encoded
from lark.models.head import Head, last_hidden_state, predicting
from lark.models.padding import right_padded
from lark.scoring.statistics import TokenStatistics, token_statistics

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Student:
    """A loaded model and its LM head."""

    model: PreTrainedModel
    head: Head
    packs: bool

    @classmethod
    def of(cls, model: PreTrainedModel) -> "Student":
        return cls(model, Head.of(model), packs=model.config._attn_implementation == "flash_attention_2" and _packs(model))


@torch.no_grad()
def _packs(model: PreTrainedModel) -> bool:
    """Whether the model keeps packed trajectories apart, tested once. One that mixes them is scored in padded batches."""
    try:
        assert_packing_separates(model)
    except LarkError as error:
        log.warning("Scoring padded batches instead of packs: %s", error)
        return False
    return True


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
def response_statistics(student: Student, batch: Sequence[Encoded]) -> Iterator[TokenStatistics]:
    """Statistics of each trajectory's response tokens, in the batch's order. Prompt positions are not projected."""
    device = student.head.weight.device
    hidden = _packed(student, batch) if student.packs else _padded(student, batch)
    targets = torch.tensor([token for e in batch for token in e.response], device=device)
    statistics = token_statistics(hidden, targets, student.head)
    start = 0
    for encoded in batch:
        stop = start + encoded.n_response
        yield TokenStatistics(*(getattr(statistics, f.name)[start:stop] for f in fields(statistics)))
        start = stop


def _padded(student: Student, batch: Sequence[Encoded]) -> torch.Tensor:
    """[T, d] the hidden states that predict the response tokens, one trajectory after the other."""
    ids = right_padded([encoded.ids for encoded in batch])
    hidden = last_hidden_state(student.model, ids.to(student.head.weight.device))
    rows = [predicting(hidden[row], e) for row, e in enumerate(batch)]
    return torch.cat(rows)


def _packed(student: Student, batch: Sequence[Encoded]) -> torch.Tensor:
    """The same states from one row in which position ids separate the trajectories."""
    device = student.head.weight.device
    ids = torch.tensor([token for encoded in batch for token in encoded.ids], device=device)[None]
    positions = torch.cat([torch.arange(len(encoded.ids)) for encoded in batch]).to(device)[None]
    hidden = last_hidden_state(student.model, ids, position_ids=positions)[0]
    rows, start = [], 0
    for encoded in batch:
        rows.append(predicting(hidden[start:], encoded))
        start += len(encoded.ids)
    return torch.cat(rows)
