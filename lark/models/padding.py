"""Sequences of different lengths as one tensor. Padding is on the right, where causality hides it from real
tokens.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def right_padded(sequences: Sequence[Sequence[int]], fill: int = 0) -> Tensor:
    """Stack sequences into [B, longest], padded on the right with `fill`."""
    padded = torch.full((len(sequences), max(map(len, sequences))), fill, dtype=torch.long)
    for row, sequence in enumerate(sequences):
        padded[row, : len(sequence)] = torch.tensor(sequence)
    return padded
