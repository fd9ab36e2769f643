"""Muon: momentum whose matrix is orthogonalised before it is applied (Jordan et al., 2024).

torch's own implementation uses bfloat16, which a CPU without AVX-512 multiplies ten times slower than
float32.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

MOMENTUM = 0.95
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic iteration, from the authors."""


class Muon(torch.optim.Optimizer):
    """For matrices only. Updates have the size of AdamW's, so that both can share one learning rate."""

    def __init__(self, matrices: Iterable[Tensor], lr: float, weight_decay: float) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            # Matrices of one shape are orthogonalised together, in one batched product.
            by_shape: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
            for matrix in group["params"]:
                by_shape[matrix.shape].append(matrix)
            for (rows, columns), matrices in by_shape.items():
                directions = orthogonal(torch.stack([self._momentum(matrix) for matrix in matrices]))
                size = 0.2 * max(rows, columns) ** 0.5
                for matrix, direction in zip(matrices, directions, strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"])
                    matrix.add_(direction, alpha=-group["lr"] * size)

    def _momentum(self, matrix: Tensor) -> Tensor:
        """Nesterov momentum."""
        assert matrix.grad is not None
        average = self.state[matrix].setdefault("average", torch.zeros_like(matrix))
        average.lerp_(matrix.grad, 1 - MOMENTUM)
        return matrix.grad.lerp(average, MOMENTUM)


def orthogonal(matrices: Tensor, iterations: int = 5) -> Tensor:
    """Approximately U V^T for each matrix U S V^T in [n, rows, columns]: singular values end up around 1."""
    wide = matrices if matrices.shape[-2] <= matrices.shape[-1] else matrices.mT
    # The iteration converges only for singular values up to 1.
    wide = wide / (wide.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    first, third, fifth = NEWTON_SCHULZ
    for _ in range(iterations):
        square = wide @ wide.mT
        wide = first * wide + (third * square + fifth * square @ square) @ wide
    return wide if wide.shape == matrices.shape else wide.mT
