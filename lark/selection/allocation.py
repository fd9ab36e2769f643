"""Divide a budget across questions (budget.total, budget.tokens). Pure functions, no I/O.

All candidates form one queue, and the budget takes the queue's longest prefix that fits (docs/budgets.md):

1. The best candidate of each question, the questions in the order of a hash of their ids.
2. The other candidates by their standardised score (s - mean) / std within their question. Equal ones are
   ordered by rank, then by the question's hash.

A larger budget takes a longer prefix, so its selection contains every smaller one. Standardised scores
never increase with the rank, so each question gets its best candidates, as with a budget per question.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lark.scoring.by_question import Floats, Integers


@dataclass(frozen=True)
class Across:
    """A budget across all questions."""

    limit: int
    """The most that all selected trajectories may cost together."""
    cost: Integers | None = None
    """[R] Cost of each row: its response tokens. None: 1 each, so that the limit is a number of
    trajectories.
    """


def allocate(
    standard: Floats,
    codes: Integers,
    rank: Integers,
    place: Integers,
    cost: Integers,
    limit: int,
    most: int | None,
) -> Integers:
    """[N] How many of its best candidates each question gets.

    standard [R]: scores, standardised within each question. codes [R]: the row's question. rank [R]: 1 is
    the best of its question. place [N]: the question's place in the first round. most: the maximum per
    question.
    """
    first = rank == 1
    queue = np.lexsort((place[codes], rank, np.where(first, 0.0, -standard), ~first))
    if most is not None:
        queue = queue[rank[queue] <= most]
    taken = np.cumsum(cost[queue]) <= limit
    return np.bincount(codes[queue][taken], minlength=len(place))


def places(labels: Iterable[object]) -> Integers:
    """[N] The place of each question in an order that depends on its id only: not on the scores, nor on
    other questions.

    If the budget is smaller than the number of questions, it covers a sample of them, and every method gets
    the same sample.
    """
    digests = [hashlib.blake2b(str(label).encode(), digest_size=16).hexdigest() for label in labels]
    place = np.empty(len(digests), dtype=np.int64)
    place[np.argsort(np.array(digests, dtype=str), kind="stable")] = np.arange(len(digests))
    return place
