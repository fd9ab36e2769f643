"""A training set as tokens with weights, ready to train on."""

import logging
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from lark.models.chat import ChatFormat, Encoded
from lark.training.checks import check_response, check_some_weighted, check_token_count
from lark.training.training_set import TrajectoryKey, read_rows, read_token_weights, shown

log = logging.getLogger(__name__)

TEXTS_AT_ONCE = 512
"""Trajectories whose text is in memory; it is freed once it is tokenised."""


@dataclass(frozen=True)
class Example:
    """A selected trajectory, ready to train on."""

    key: TrajectoryKey
    encoded: Encoded
    weight: float
    """w = B_n q."""
    token_weights: tuple[float, ...] | None = None
    """One per response token; None: all are 1."""

    @property
    def question_id(self) -> str:
        return self.key[0]

    @property
    def name(self) -> str:
        return shown(self.key)


def read_examples(path: Path, chat: ChatFormat, max_length: int) -> list[Example]:
    """The training set, in an order that does not depend on the pool's."""
    examples: list[Example] = []
    rows = read_rows(path)
    while batch := list(islice(rows, TEXTS_AT_ONCE)):
        encodings = chat.encode_dialogues([row.dialogue for row in batch], max_length)
        for row, encoded in zip(batch, encodings, strict=True):
            check_response(encoded.n_response, path, row.name, max_length)
            example = Example(row.key, encoded, row.weight)
            if row.token_weights is not None:
                example = _weighted(example, row.token_weights, path)
            examples.append(example)
    return sorted(examples, key=lambda example: example.key)


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


def _weighted(example: Example, weights: tuple[float, ...], path: Path) -> Example:
    """The example with one weight per response token. student.max_length also cuts the weights."""
    tokens = example.encoded.n_response
    check_token_count(len(weights), tokens, example.encoded.truncated, path, example.name)
    return replace(example, token_weights=weights[:tokens])
