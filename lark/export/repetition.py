"""Replace weights by repetition, for trainers that have no weights. Pure functions.

A line with weight w is written c times, where c is an integer with expectation `copies` x w: its whole
part, plus one with the probability of its fraction. An objective that averages over lines then has, in
expectation, the weighted objective (docs/train-jsonl.md).
"""

import hashlib
from math import floor

from lark.export.checks import require_copies
from lark.export.examples import ExportExample


def repetitions(example: ExportExample, line: int, copies: int, seed: int) -> int:
    """How often an example is written. Depends on the seed and the trajectory, not on the other lines."""
    require_copies(example.where, example.weight, copies)
    expected = copies * example.weight
    name = "\x1f".join([str(seed), *(example.ids.values() or [str(line)])])
    # A hash, not a generator: adding or removing other lines leaves the draw of this one as it is.
    draw = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) / 2**64
    return floor(expected) + (draw < expected - floor(expected))
