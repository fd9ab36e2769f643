"""Find nearly identical candidates of a question with MinHash sketches, in one pass.

A text is the set of its windows of 32 bytes. Every window is hashed (windows.py); the hashes are dealt into
64 bins, and the sketch keeps the smallest of each bin (one-permutation MinHash): a few hundred bytes per
trajectory. The share of equal bins estimates the Jaccard similarity of two texts.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lark.pool.cleaning import EXAMPLES
from lark.pool.trajectory import Trajectory
from lark.pool.windows import EMPTY

NEAR = 0.8
"""Estimated similarity from which two candidates count as near-duplicates."""
COMPARED = 1000
"""Candidates of a question that are compared with each other."""


def similar_pairs(sketches: Sequence[np.ndarray]) -> list[tuple[int, int]]:
    """Pairs of texts whose estimated Jaccard similarity is at least NEAR."""
    table = np.stack(sketches)
    pairs = []
    for first in range(len(table) - 1):
        others = table[first + 1 :]
        # A bin that is empty in both texts says nothing about their similarity.
        either = (table[first] != EMPTY) | (others != EMPTY)
        same = ((table[first] == others) & either).sum(axis=1)
        near = np.flatnonzero(same >= NEAR * either.sum(axis=1))
        pairs += [(first, first + 1 + int(place)) for place in near]
    return pairs


@dataclass
class NearDuplicates:
    """Collects sketches by question."""

    names: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """The candidates of each question, in order."""
    sketches: defaultdict[str, list[np.ndarray]] = field(default_factory=lambda: defaultdict(list))
    """Their sketches, in the same order."""

    def add(self, trajectory: Trajectory) -> None:
        self.names[trajectory.question_id].append(trajectory.candidate_id)
        self.sketches[trajectory.question_id].append(trajectory.sketch)

    def merge(self, other: "NearDuplicates") -> None:
        """Add the candidates of a later part of the pool."""
        for question, names in other.names.items():
            self.names[question] += names
            self.sketches[question] += other.sketches[question]

    def to_dict(self) -> dict[str, object]:
        """Trajectories that are nearly the same as an earlier candidate of their question; empty if there
        are none.
        """
        count = 0
        questions = 0
        examples: list[str] = []
        for question, names in self.names.items():
            # Every pair is compared, so the time grows with the square of the candidates.
            pairs = similar_pairs(self.sketches[question][:COMPARED])
            later = {second for _, second in pairs}
            count += len(later)
            questions += bool(later)
            for first, second in pairs[: EXAMPLES - len(examples)]:
                examples.append(f"{question}: {names[first]} and {names[second]}")
        if count == 0:
            return {}
        return {"trajectories": count, "questions": questions, "examples": examples}
