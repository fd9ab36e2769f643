"""Replace weights by repetition, for trainers that have no weights. Pure functions.

A line with weight w is written c times, where c is an integer with expectation `copies` x w: its whole
part, plus one with the probability of its fraction. An objective that averages over lines then has, in
expectation, the weighted objective (docs/train-jsonl.md).
"""

import hashlib
from math import floor

from lark.errors import LarkError
from lark.export.examples import Example

MOST = 1e12
"""Copies of a line. More would fill any disk."""


def too_many(example: Example, copies: int) -> LarkError:
    return LarkError(
        f"{example.where}: the weight {example.weight:g} with --copies {copies} means more than {MOST:g}"
        " copies of this line. Use smaller weights (their mean is 1 in a selection), or a smaller --copies."
    )


def repetitions(example: Example, line: int, copies: int, seed: int) -> int:
    """How often an example is written. Depends on the seed and the trajectory, not on the other lines."""
    expected = copies * example.weight
    if expected > MOST:
        raise too_many(example, copies)
    name = "\x1f".join([str(seed), *(example.ids.values() or [str(line)])])
    draw = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) / 2**64
    return floor(expected) + (draw < expected - floor(expected))
