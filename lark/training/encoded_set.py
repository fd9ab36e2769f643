"""A training set as tokens with weights, ready to train on."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from lark.models.chat import EQUAL, ChatFormat, Encoded, Factors
from lark.training.checks import check_response
from lark.training.training_set import TrajectoryKey, read_rows, read_token_weights, shown
from lark.training.weight_checks import (
    check_any_left,
    check_some_weighted,
    check_token_count,
    check_whole_response,
)

log = logging.getLogger(__name__)

TEXTS_AT_ONCE = 512
"""Trajectories whose text is in memory; it is freed once it is tokenised."""
NOTHING_LEFT = (
    "%d of %d trajectories are left out of training: training.thinking_weight and training.answer_weight mask"
    " every token of theirs that student.max_length leaves."
)


@dataclass(frozen=True)
class Example:
    """A selected trajectory, ready to train on."""

    key: TrajectoryKey
    encoded: Encoded
    weight: float
    """w = B_n q."""
    token_weights: tuple[float, ...] | None = None
    """One per response token; None: all are 1."""
    utility: float = 0.0
    """The method's score, negated where lower is better. 0 unless training.order=by_score reads it."""

    @property
    def question_id(self) -> str:
        return self.key[0]

    @property
    def name(self) -> str:
        return shown(self.key)


def read_examples(path: Path, chat: ChatFormat, max_length: int, factors: Factors = EQUAL) -> list[Example]:
    """The training set, in an order that does not depend on the pool's. Trajectories of which the factors
    leave no token to train on are left out.
    """
    examples: list[Example] = []
    masked = 0
    rows = read_rows(path)
    while batch := list(islice(rows, TEXTS_AT_ONCE)):
        encodings = chat.encode_dialogues([row.dialogue for row in batch], max_length, factors=factors)
        for row, encoded in zip(batch, encodings, strict=True):
            if encoded.n_response < 1 and 0 in (factors.thinking, factors.answer):
                masked += 1
                continue
            check_response(encoded.n_response, path, row.name, max_length)
            example = Example(row.key, encoded, row.weight, encoded.token_weights)
            if row.token_weights is not None:
                check_whole_response(factors == EQUAL, path, row.name)
                example = _weighted(example, row.token_weights, path)
            examples.append(example)
    check_any_left(len(examples), path)
    if masked:
        log.warning(NOTHING_LEFT, masked, masked + len(examples))
    return sorted(examples, key=lambda example: example.key)


def token_shares(example: Example) -> list[float]:
    """w f_t / |a| of each token of the sequence, 0 for tokens without loss. Their sum with the tokens'
    surprisals is w ℓ (decision 3).
    """
    encoded = example.encoded
    weights = iter([1.0] * encoded.n_response if example.token_weights is None else example.token_weights)
    shares = [0.0] * len(encoded.ids)
    for start, stop in encoded.turns:
        for position in range(start, stop):
            shares[position] = example.weight * next(weights) / encoded.n_response
    return shares


def with_token_weights(examples: list[Example], path: Path) -> list[Example]:
    """The examples with the weights of their tokens in a file. Those that are not in it keep theirs."""
    weights = read_token_weights(path)
    weighted = sum(example.key in weights for example in examples)
    check_some_weighted(weighted, len(weights), path, examples[0].name)
    log.info("weights of tokens: %d of %d trajectories (training.token_weights)", weighted, len(examples))
    return [
        _weighted(example, weights[example.key], path) if example.key in weights else example
        for example in examples
    ]


def with_utilities(examples: list[Example], utilities: Mapping[TrajectoryKey, float]) -> list[Example]:
    return [replace(example, utility=utilities[example.key]) for example in examples]


def _weighted(example: Example, weights: tuple[float, ...], path: Path) -> Example:
    """The example with one weight per response token, times the weight of its turn. student.max_length also
    cuts the weights.
    """
    tokens = example.encoded.n_response
    check_token_count(len(weights), tokens, example.encoded.truncated, path, example.name)
    weights = weights[:tokens]
    if example.token_weights is not None:
        pairs = zip(example.token_weights, weights, strict=True)
        weights = tuple(turn * token for turn, token in pairs)
    return replace(example, token_weights=weights)
