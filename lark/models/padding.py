"""Sequences of different lengths as one tensor, padded on the right, where causality keeps padding away from real tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor


def right_padded(sequences: Sequence[Sequence[int]], fill: int = 0) -> Tensor:
    """[B, longest] the sequences one below the other, filled up on the right."""
    padded = torch.full((len(sequences), max(map(len, sequences))), fill, dtype=torch.long)
    for row, sequence in enumerate(sequences):
        padded[row, : len(sequence)] = torch.tensor(sequence)
    return padded
