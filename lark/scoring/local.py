"""Local Naturalness, exactly (paper, App. C.2; decision 14): each step's likelihood given the prompt and
the m steps before it.

Blocks. Step j is scored in a separate sequence, the prompt and steps j-m ... j, with positions as if
nothing had been left out. Sorted by j modulo m+1, these blocks are the m+1 partitions of the response in
the paper's account: each partition contains every token once, each step is the last of one block, and only
that last step is projected to the vocabulary. The context of the first m+1 steps contains everything before
them, so one block scores them all. A response of n tokens therefore costs less than (m+1) n, and its prompt
is run once.

The prompt's keys and values are the same in all blocks of all candidates of a question. They are computed
once for the candidates in a shard, and every batch of blocks continues from a copy of them. A test at
start-up decides whether a model can do this; if it cannot, each block is run after the full prompt, which
is slower and gives the same numbers.

Steps and tokens. The response is tokenised once, as for every other method, and split into steps by its
characters (lark/scoring/sentences.py). Every token belongs to exactly one step (`token_steps`), the end of
the turn to the last. Text that truncation cuts off belongs to no step.
"""

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from lark.errors import LarkError, first_line
from lark.models.chat import Encoded
from lark.models.head import last_hidden_state
from lark.models.padding import right_padded
from lark.scoring.forward import Student, batches, response_statistics
from lark.scoring.sentences import SPLITTERS, token_steps
from lark.scoring.statistics import token_statistics

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Block:
    """Tokens `start` to `stop` of a response, run as one sequence after the prompt; those from `scored` on
    are scored.
    """

    start: int
    scored: int
    stop: int


def steps_of(encoded: Encoded, local_steps: str = "sentences") -> list[int]:
    """[n_response] The number of each token's step. `local_steps`: see `scoring.local_steps`."""
    assert encoded.offsets is not None
    assert encoded.text is not None
    return token_steps(encoded.offsets, SPLITTERS[local_steps](encoded.text))


def blocks(steps: Sequence[int], m: int) -> list[Block]:
    """The blocks of a response: they score every token once, given up to m whole steps before its own."""
    count = steps[-1] + 1
    bounds = [0, *(np.flatnonzero(np.diff(steps)) + 1).tolist(), len(steps)]
    first = Block(0, 0, bounds[min(m + 1, count)])
    return [first, *(Block(bounds[j - m], bounds[j], bounds[j + 1]) for j in range(m + 1, count))]


def local_naturalness(surprisal: np.ndarray, steps: Sequence[int]) -> float:
    """1/J sum_j 1/|s_j| sum_u log pi(s_ju | x, s_{j-m:j-1}, s_{j,<u}) (App. C.2)."""
    return float(np.mean(np.bincount(steps, weights=-surprisal) / np.bincount(steps)))


class LocalScorer:
    """Runs blocks through a student."""

    def __init__(self, student: Student, m: int, budget: int) -> None:
        """`m`: steps of context. `budget`: tokens in one batch, including prompts and padding."""
        self.student = student
        self.m = m
        self.budget = budget
        self.continues = can_continue(student)

    def surprisals(
        self,
        group: Sequence[Encoded],
        steps: Sequence[Sequence[int]],
        advance: Callable[[float], object] = lambda share: None,
    ) -> list[np.ndarray]:
        """Each response token's surprisal in its local context, for trajectories that share their prompt.

        `advance` is called after each batch with the batch's share of the group's tokens.
        """
        prompt = group[0].ids[: group[0].prompt_length]
        found = [np.full(encoded.n_response, np.nan) for encoded in group]
        todo = [(index, block) for index, numbers in enumerate(steps) for block in blocks(numbers, self.m)]
        sizes = [len(prompt) + block.stop - block.start for _, block in todo]
        total = sum(block.stop - block.start for _, block in todo)
        shared = self.continues and len(prompt) > 1
        cache = prompt_cache(self.student, prompt) if shared else None
        for batch in batches(sizes, self.budget, padded=shared or not self.student.packs):
            chosen = [todo[i] for i in batch]
            sequences = [
                group[index].ids[len(prompt) + block.start : len(prompt) + block.stop]
                for index, block in chosen
            ]
            scored = [block.scored - block.start for _, block in chosen]
            values = self._run(prompt, cache, sequences, scored)
            for (index, block), surprisal in zip(chosen, values, strict=True):
                found[index][block.scored : block.stop] = surprisal
            advance(sum(map(len, sequences)) / total)
        return found

    @torch.no_grad()
    def _run(
        self,
        prompt: Sequence[int],
        cache: DynamicCache | None,
        sequences: Sequence[Sequence[int]],
        scored: list[int],
    ) -> Iterator[np.ndarray]:
        """Surprisals of the tokens from `scored` on of each sequence that follows the prompt."""
        if cache is None:
            whole = [
                Encoded([*prompt, *ids], len(prompt) + first, truncated=False)
                for ids, first in zip(sequences, scored, strict=True)
            ]
            statistics = response_statistics(self.student, whole)
            yield from (each.surprisal.double().cpu().numpy() for each in statistics)
            return
        hidden = continued(self.student, cache, prompt[-1], sequences)
        # Position 0 is the prompt's last token, so position i predicts the sequence's token i.
        rows = [
            hidden[row, first : len(ids)]
            for row, (ids, first) in enumerate(zip(sequences, scored, strict=True))
        ]
        targets = torch.tensor(
            [token for ids, first in zip(sequences, scored, strict=True) for token in ids[first:]]
        )
        surprisal = token_statistics(torch.cat(rows), targets.to(hidden.device), self.student.head).surprisal
        yield from (part.double().cpu().numpy() for part in surprisal.split([len(row) for row in rows]))


@torch.no_grad()
def prompt_cache(student: Student, prompt: Sequence[int]) -> DynamicCache:
    """Keys and values of the prompt without its last token, whose hidden state predicts the first response
    token.
    """
    cache = DynamicCache(config=student.model.config)
    ids = torch.tensor([prompt[:-1]], device=student.head.weight.device)
    _run_with(student, cache, ids)
    return cache


def continued(student: Student, cache: DynamicCache, last: int, sequences: Sequence[Sequence[int]]) -> Tensor:
    """[sequences, longest, d] Hidden states of the prompt's last token followed by each sequence, padded on
    the right.
    """
    own = copy.deepcopy(cache)
    own.batch_repeat_interleave(len(sequences))
    # The last token of a sequence predicts nothing that is scored.
    ids = right_padded([[last, *sequence[:-1]] for sequence in sequences])
    return _run_with(student, own, ids.to(student.head.weight.device))


def _run_with(student: Student, cache: DynamicCache, ids: Tensor) -> Tensor:
    output: Any = student.model.base_model(input_ids=ids, past_key_values=cache, use_cache=True)
    hidden: Tensor = output.last_hidden_state
    return hidden


@torch.no_grad()
def can_continue(student: Student) -> bool:
    """Whether blocks that continue from the prompt's keys get the same hidden states as after the full
    prompt.
    """
    device, vocabulary = student.head.weight.device, student.head.vocabulary
    prompt = [i % vocabulary for i in range(9)]
    sequences = [[(7 * i + j) % vocabulary for i in range(size)] for j, size in enumerate((6, 11, 1))]
    try:
        hidden = continued(student, prompt_cache(student, prompt), prompt[-1], sequences)
    except (AttributeError, LarkError, RuntimeError, TypeError, ValueError) as error:
        log.warning("Every block is run after the full prompt, which is slower: %s", first_line(error))
        return False
    off = 0.0
    for row, sequence in enumerate(sequences):
        alone = last_hidden_state(student.model, torch.tensor([[*prompt, *sequence[:-1]]], device=device))[0]
        ours, theirs = hidden[row, : len(sequence)].float(), alone[len(prompt) - 1 :].float()
        off = max(off, float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-6)))
    tolerance = 1e-4 if student.head.weight.dtype in (torch.float32, torch.float64) else 5e-2
    if not off <= tolerance:
        log.warning(
            "Every block is run after the full prompt, which is slower: continuing from its keys is off by %.1e",
            off,
        )
        return False
    return True
