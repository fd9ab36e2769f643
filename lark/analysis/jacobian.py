"""Λ and ||W_out||: how strongly the hidden states react to the backbone, and the logits to the hidden states (paper, App. B.2).

λ_max(J_H J_Hᵀ) of a trajectory's hidden states [T·d] by the parameters of the backbone is found by power iteration: a
vector-Jacobian product (backward), then a Jacobian-vector product (forward mode). Each step's value ||J_Hᵀu||² for a unit u
is a Rayleigh quotient, hence never above λ_max: the result is a *lower* estimate, and `change` says how far it still moved.
The start is random and not the gradient's own direction, from which the backbone bound would hold by construction.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, jvp, vjp
from torch.nn.attention import SDPBackend, sdpa_kernel

from lark.analysis.gradients import Anchor
from lark.chat import Encoded

TOLERANCE = 0.01
"""Power iteration ends when a step raises the value by less than this share."""


@dataclass(frozen=True)
class Eigenvalue:
    """The largest eigenvalue, from below."""

    value: float
    iterations: int
    change: float
    """By which share the last iteration raised it; above TOLERANCE where the iterations ran out."""


def jacobian_norm2(anchor: Anchor, encoded: Encoded, iterations: int, seed: int) -> Eigenvalue:
    """λ_max(J_H J_Hᵀ), Assumption "Local Jacobian conditioning". The embedding as it is looked up belongs to the backbone."""
    backbone = anchor.model.base_model
    parameters = {name: p.detach() for name, p in backbone.named_parameters()}
    ids = torch.tensor(encoded.ids, device=anchor.head.device)[None]

    def states(values: dict[str, Tensor]) -> Tensor:
        output = functional_call(backbone, values, kwargs={"input_ids": ids, "use_cache": False})
        hidden: Tensor = output.last_hidden_state[0, encoded.prompt_length - 1 : -1]
        return hidden

    generator = torch.Generator().manual_seed(seed)
    with sdpa_kernel(SDPBackend.MATH):  # the only one with forward-mode derivatives
        hidden, pull = vjp(states, parameters)  # type: ignore[misc]
        u = torch.randn(hidden.shape, generator=generator).to(hidden)
        value, change, done = 0.0, 0.0, 1
        while True:
            u /= u.norm()
            (w,) = pull(u)
            before, value = value, sum(float(part.double().square().sum()) for part in w.values())
            change = value / before - 1 if before else float("inf")
            if change < TOLERANCE or done == iterations:
                break
            _, u = jvp(states, (parameters,), (w,))  # type: ignore[misc]
            done += 1
    return Eigenvalue(value, done, change)


def head_norm(anchor: Anchor) -> float:
    """||W_out||_op, exactly: the root of the largest eigenvalue of WᵀW [d, d], in fp64."""
    square = torch.zeros(anchor.head.shape[1], anchor.head.shape[1], dtype=torch.float64, device=anchor.head.device)
    for rows in anchor.head.detach().split(8192):
        wide = rows.double()
        square += wide.T @ wide
    return float(torch.linalg.eigvalsh(square)[-1].sqrt())
