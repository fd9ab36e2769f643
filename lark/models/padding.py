"""Sequences of different lengths as one tensor. Padding is on the right, where causality hides it from real
tokens.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def right_padded(sequences: Sequence[Sequence[int]], fill: int = 0) -> Tensor:
    """Stack sequences into [B, longest], padded on the right with `fill`."""
    rows = [torch.tensor(sequence, dtype=torch.long) for sequence in sequences]
    return pad_sequence(rows, batch_first=True, padding_value=fill)
