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
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from lark.errors import LarkError, first_line
from lark.models.chat import Encoded
from lark.models.head import last_hidden_state
from lark.models.padding import right_padded
from lark.scoring.forward import LoadedStudent, batches, response_statistics
from lark.scoring.pool_pass import Advance, Content, Rows, as_arrow, id_table, naming
from lark.scoring.sentences import SPLITTERS, token_steps
from lark.scoring.sources import LOCAL_TABLE
from lark.scoring.statistics import token_statistics

log = logging.getLogger(__name__)

SLOWER = "Every block is run after the full prompt, which is slower: %s"


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

    def __init__(self, student: LoadedStudent, m: int, budget: int) -> None:
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
        surprisals = [np.full(encoded.n_response, np.nan) for encoded in group]
        todo = [(index, block) for index, numbers in enumerate(steps) for block in blocks(numbers, self.m)]
        sizes = [block.stop - block.start for _, block in todo]
        shared = self.continues and len(prompt) > 1
        cache = prompt_cache(self.student, prompt) if shared else None
        padded = shared or not self.student.packs
        for batch in batches([len(prompt) + size for size in sizes], self.budget, padded):
            sequences = []
            scored = []
            for index, block in (todo[i] for i in batch):
                response = group[index].ids[len(prompt) :]
                sequences.append(response[block.start : block.stop])
                scored.append(block.scored - block.start)
            values = self._run(prompt, cache, sequences, scored)
            for i, surprisal in zip(batch, values, strict=True):
                index, block = todo[i]
                surprisals[index][block.scored : block.stop] = surprisal
            advance(sum(map(len, sequences)) / sum(sizes))
        return surprisals

    @torch.no_grad()
    def _run(
        self,
        prompt: Sequence[int],
        cache: DynamicCache | None,
        sequences: Sequence[Sequence[int]],
        scored: list[int],
    ) -> Iterator[np.ndarray]:
        """Surprisals of the tokens from `scored` on of each sequence that follows the prompt."""
        pairs = list(zip(sequences, scored, strict=True))
        if cache is None:
            full = [Encoded([*prompt, *ids], len(prompt) + first, truncated=False) for ids, first in pairs]
            for statistics in response_statistics(self.student, full):
                yield statistics.surprisal.double().cpu().numpy()
            return
        hidden = continued(self.student, cache, prompt[-1], sequences)
        # Position 0 is the prompt's last token, so position i predicts the sequence's token i.
        rows = [hidden[row, first : len(ids)] for row, (ids, first) in enumerate(pairs)]
        targets = torch.tensor([token for ids, first in pairs for token in ids[first:]])
        surprisal = token_statistics(torch.cat(rows), targets.to(hidden.device), self.student.head).surprisal
        for part in surprisal.split([len(row) for row in rows]):
            yield part.double().cpu().numpy()


def score_locally(
    scorer: LocalScorer, rows: Rows, encoded: Sequence[Encoded], local_steps: str, advance: Advance
) -> dict[str, Content]:
    """One row per trajectory, in the pool's order. Trajectories that share a prompt are run together."""
    score = np.full(len(rows), np.nan)
    n_steps = np.zeros(len(rows), dtype=np.int64)
    by_prompt: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, e in enumerate(encoded):
        if e.n_response > 0:
            by_prompt[tuple(e.ids[: e.prompt_length])].append(index)
    for indices in by_prompt.values():
        group = [encoded[index] for index in indices]
        steps = [steps_of(e, local_steps) for e in group]
        # The progress bar counts the tokens that `Shards` expects.
        work = sum(e.prompt_length + (scorer.m + 1) * e.n_response for e in group)
        with naming(rows, indices):
            surprisals = scorer.surprisals(group, steps, partial(_advance_share, advance, work))
        for index, surprisal, numbers in zip(indices, surprisals, steps, strict=True):
            score[index] = local_naturalness(surprisal, numbers)
            n_steps[index] = numbers[-1] + 1
    table = id_table(rows, encoded, n_steps=n_steps, local_naturalness=score)
    return {LOCAL_TABLE.name: as_arrow(table)}


def _advance_share(advance: Advance, work: int, share: float) -> None:
    advance(work * share)


@torch.no_grad()
def prompt_cache(student: LoadedStudent, prompt: Sequence[int]) -> DynamicCache:
    """Keys and values of the prompt without its last token, whose hidden state predicts the first response
    token.
    """
    cache = DynamicCache(config=student.model.config)
    ids = torch.tensor([prompt[:-1]], device=student.head.weight.device)
    _run_with(student, cache, ids)
    return cache


def continued(
    student: LoadedStudent, cache: DynamicCache, last: int, sequences: Sequence[Sequence[int]]
) -> Tensor:
    """[sequences, longest, d] Hidden states of the prompt's last token followed by each sequence, padded on
    the right.
    """
    # A pass appends to its cache, and the next batch continues from the prompt again.
    copies = copy.deepcopy(cache)
    copies.batch_repeat_interleave(len(sequences))
    # The last token of a sequence predicts nothing that is scored.
    ids = right_padded([[last, *sequence[:-1]] for sequence in sequences])
    return _run_with(student, copies, ids.to(student.head.weight.device))


def _run_with(student: LoadedStudent, cache: DynamicCache, ids: Tensor) -> Tensor:
    output: Any = student.model.base_model(input_ids=ids, past_key_values=cache, use_cache=True)
    hidden: Tensor = output.last_hidden_state
    return hidden


@torch.no_grad()
def can_continue(student: LoadedStudent) -> bool:
    """True if blocks that continue from the prompt's keys get the same hidden states as after the full
    prompt.
    """
    vocabulary = student.head.vocabulary
    prompt = [i % vocabulary for i in range(9)]
    # Of different lengths, so that padding is tried too.
    sequences = []
    for first, size in enumerate((6, 11, 1)):
        sequences.append([(7 * i + first) % vocabulary for i in range(size)])
    try:
        hidden = continued(student, prompt_cache(student, prompt), prompt[-1], sequences)
    except (AttributeError, LarkError, RuntimeError, TypeError, ValueError) as error:
        log.warning(SLOWER, first_line(error))
        return False
    deviation = 0.0
    for row, sequence in enumerate(sequences):
        ids = torch.tensor([[*prompt, *sequence[:-1]]], device=student.head.weight.device)
        expected = last_hidden_state(student.model, ids)[0, len(prompt) - 1 :].float()
        difference = hidden[row, : len(sequence)].float() - expected
        relative = difference.abs().max() / expected.abs().max().clamp_min(1e-6)
        deviation = max(deviation, float(relative))
    tolerance = 1e-4 if student.head.weight.dtype in (torch.float32, torch.float64) else 5e-2
    if not deviation <= tolerance:  # not `>`, which is false for NaN
        log.warning(SLOWER, f"continuing from its keys is off by {deviation:.1e}")
        return False
    return True
