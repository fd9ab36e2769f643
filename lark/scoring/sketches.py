"""Random sketches of gradients: linear maps S with E[SᵀS] = I, so that <Sx, Sy> is an unbiased estimate of
<x, y>.

The gradient of a matrix is a sum of outer products Σ_t δ_t ⊗ a_t. Sketched on both sides it is the small
matrix Σ_t Sδ_t ⊗ Ra_t, which is computed without ever forming the large one. Signs come from a hash of the
seed and the matrix's name, so a sketch depends neither on the batch nor on the process that computes it.
"""

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Sizes:
    """Numbers that a sketch keeps of each side of a matrix's gradient. None: all of them, which is exact."""

    rows: int | None
    columns: int | None


def signs(seed: int, name: str, *shape: int) -> Tensor:
    """Random signs ±1, fp32. The bits are a hash, not a generator's: the same on every machine, in every
    version.
    """
    size = math.prod(shape)
    digest = hashlib.shake_256(f"{seed}\x1f{name}".encode()).digest(-(-size // 8))
    bits = np.unpackbits(np.frombuffer(digest, dtype=np.uint8), count=size)
    return torch.from_numpy(bits.astype(np.float32)).mul_(2).sub_(1).view(shape)


@dataclass(frozen=True)
class Fold:
    """S that adds up every `kept`-th entry with random signs (a count sketch), for a fraction of the cost
    of a matrix product.
    """

    sign: Tensor | None
    """[size], or None: the identity."""
    kept: int

    @classmethod
    def of(cls, seed: int, name: str, size: int, kept: int | None, device: torch.device) -> "Fold":
        """`kept` of None, or as large as the vectors: nothing is left out."""
        if kept is None or kept >= size:
            return cls(None, size)
        return cls(signs(seed, name, size).to(device), kept)

    def part(self, values: Tensor, start: int) -> Tensor:
        """[R, kept] S applied to vectors that are zero outside of the entries from `start` on, which are
        `values` [R, C].
        """
        stop = start + values.shape[1]
        if self.sign is None:
            return functional.pad(values.float(), (start, self.kept - stop))
        signed, edges = values * self.sign[start:stop], (start % self.kept, -stop % self.kept)
        signed = functional.pad(signed, edges) if any(edges) else signed
        return signed.view(len(values), -1, self.kept).sum(1, dtype=torch.float32)

    def __call__(self, vectors: Tensor) -> Tensor:
        """[…, kept] S applied to vectors […, size], in fp32."""
        return self.part(vectors.flatten(0, -2), 0).view(*vectors.shape[:-1], self.kept)

    def add_unit(self, target: Tensor, words: Tensor, scale: Tensor) -> None:
        """Add S(scale_r · e_word) to row r of `target` [R, kept], in place."""
        sign = 1.0 if self.sign is None else self.sign[words]
        target.scatter_add_(1, (words % self.kept)[:, None], (scale * sign).to(target.dtype)[:, None])
