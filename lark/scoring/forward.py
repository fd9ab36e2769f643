"""The student's forward pass over trajectories: hidden states at response positions, and from them every
statistic.

A GPU runs a whole batch at once. A CPU runs it in several passes (`CPU_TOKENS`), and trajectories that
begin alike, such as the candidates of a question, share their beginning: the layers run on it once per
pass. The statistics of a batch are computed at once on every device.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lark import config
from lark.models.attention import separate_segments, separates, supports_packing, supports_prefixes
from lark.models.chat import Encoded
from lark.models.cpu_linear import pack_linears
from lark.models.head import Head
from lark.models.liger import fuse_forward
from lark.models.load import load_model
from lark.scoring.inputs import Inputs, common, joined_responses
from lark.scoring.pass_sizes import CPU_PADDING, CPU_TOKENS
from lark.scoring.statistics import TokenStatistics, detailed_statistics, token_statistics


@dataclass(frozen=True)
class LoadedStudent:
    """A loaded model and its LM head."""

    model: PreTrainedModel
    head: Head
    packs: bool
    """True if trajectories are scored in packs, otherwise in padded batches."""
    shares: bool = False
    """True if trajectories of a pack share a common beginning."""

    @classmethod
    def load(
        cls, path: str, student: config.Student, device: str, gradients: bool = False, fused: bool = False
    ) -> "LoadedStudent":
        """The model at `path`, with frozen weights. On CPU its hidden states have gradients only if they
        are requested. `fused`: Liger's kernels where they apply (models/liger.py). Their backward passes
        overwrite their inputs, so passes with gradients do without.
        """
        model = load_model(path, student, device)
        if fused:
            fuse_forward(model, device)  # before the check of packing, which then runs with them
        if device == "cpu":
            pack_linears(model.base_model, gradients)
        return cls.of(model)

    @classmethod
    @torch.no_grad()
    def of(cls, model: PreTrainedModel) -> "LoadedStudent":
        implementation = model.config._attn_implementation
        if model.device.type == "cpu":
            separate_segments(model)
        # Without a way to keep trajectories apart, the model runs as it was loaded, on padded batches.
        packs = separates(model) and supports_packing(model, doing="Scoring")
        if not packs:
            model.set_attn_implementation(implementation)
        return cls(model, Head.of(model), packs, shares=packs and supports_prefixes(model))


def batches(lengths: Sequence[int], budget: int, padded: bool, padding: float = inf) -> list[list[int]]:
    """Indices of trajectories in batches of at most `budget` tokens (at least one trajectory).

    Packed, they keep their order, in which candidates of a question are neighbours. Padded, the longest are
    first, and padding counts as tokens; no trajectory needs more than `padding` tokens of it.
    """
    order: Iterable[int] = range(len(lengths))
    if padded:
        order = sorted(order, key=lambda i: -lengths[i])
    result: list[list[int]] = []
    tokens = longest = 0
    for index in order:
        size = longest if padded else lengths[index]
        if result and tokens + size <= budget and size - lengths[index] <= padding:
            result[-1].append(index)
        else:
            result.append([index])
            tokens, longest = 0, lengths[index]
            size = lengths[index]
        tokens += size
    return result


def packs(batch: Sequence[Encoded], budget: int, shares: bool) -> list[list[int]]:
    """Indices of trajectories in packs of at most `budget` tokens (at least one trajectory).

    `shares`: those that begin alike are neighbours, and their common beginning counts once.
    """
    order: Iterable[int] = range(len(batch))
    if shares:
        order = sorted(order, key=lambda i: list(batch[i].ids))
    result: list[list[int]] = []
    tokens = 0
    for index in order:
        ids = batch[index].ids
        shared = common(batch[result[-1][-1]].ids, ids) if result and shares else 0
        if not result or tokens + len(ids) - shared > budget:
            result.append([])
            tokens = shared = 0
        result[-1].append(index)
        tokens += len(ids) - shared
    return result


@torch.no_grad()
def response_statistics(
    student: LoadedStudent, batch: Sequence[Encoded], n_alternatives: int | None = None
) -> Iterator[TokenStatistics]:
    """Statistics of each trajectory's response tokens, in the batch's order. Prompt positions are not
    projected.

    `n_alternatives`: also the entropies and this number of most likely tokens (`DetailedStatistics`). None:
    neither.
    """
    device = student.head.weight.device
    hidden = torch.cat(_hidden(student, batch))
    targets = joined_responses(batch).to(device)
    statistics: TokenStatistics
    if n_alternatives is None:
        statistics = token_statistics(hidden, targets, student.head)
    else:
        statistics = detailed_statistics(hidden, targets, student.head, n_alternatives)
    start = 0
    for encoded in batch:
        part = slice(start, start + encoded.n_response)
        yield type(statistics)(**{name: column[part] for name, column in vars(statistics).items()})
        start = part.stop


def _hidden(student: LoadedStudent, batch: Sequence[Encoded]) -> list[Tensor]:
    """[T, d] for each trajectory: the hidden states that predict its response tokens."""
    states: dict[int, Tensor] = {}
    for chosen in passes(student, batch, student.shares):
        inputs = Inputs.of(student, [batch[i] for i in chosen])
        states |= zip(chosen, inputs.predicting(inputs.run(student)), strict=True)
    return [states[index] for index in range(len(batch))]


def passes(student: LoadedStudent, batch: Sequence[Encoded], shares: bool) -> list[list[int]]:
    """Indices of the trajectories of each forward pass: on a GPU, all of them at once. `shares`: a common
    beginning is in a pass once.
    """
    if student.head.weight.device.type != "cpu":
        return [list(range(len(batch)))]
    if student.packs:
        return packs(batch, CPU_TOKENS, shares)
    return batches([len(encoded.ids) for encoded in batch], CPU_TOKENS, padded=True, padding=CPU_PADDING)
