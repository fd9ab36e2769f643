"""Λ and ||W_out||: how strongly hidden states react to the backbone, and logits to them (paper, App. B.2).

λ_max(J_H J_Hᵀ), with J_H the Jacobian of a trajectory's hidden states [T·d] by the backbone's parameters,
is found by power iteration: a vector-Jacobian product (backward), then a Jacobian-vector product (forward
mode). Each step's value ||J_Hᵀu||² for a unit u is a Rayleigh quotient, hence never above λ_max: the result
is a *lower* estimate, and `change` is its last increase. The start is random, not the gradient's own
direction, from which the backbone bound would hold by construction.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, jvp

from lark.analysis.blockwise import forward_mode
from lark.analysis.checks import check_attention, refuse_forward_mode
from lark.analysis.gradients import Anchor, squared_norm
from lark.errors import first_line
from lark.models.chat import Encoded
from lark.models.head import predicting

TOLERANCE = 0.01
"""Power iteration ends when a step raises the value by less than this share."""
SAME_STATES = {torch.bfloat16: 0.1, torch.float32: 1e-3, torch.float64: 1e-3}
"""Largest relative difference, due to rounding, of hidden states with another attention."""
HEAD_ROWS = 8192
"""Rows of the head that are widened to fp64 at a time."""


@dataclass(frozen=True)
class Eigenvalue:
    """A lower estimate of the largest eigenvalue."""

    value: float
    iterations: int
    change: float
    """Relative increase in the last iteration; above TOLERANCE if the iterations ran out."""


def jacobian_norm2(anchor: Anchor, encoded: Encoded, iterations: int, seed: int) -> Eigenvalue:
    """λ_max(J_H J_Hᵀ), Assumption "Local Jacobian conditioning". The backbone includes the embedding."""
    names = anchor.backbone
    anchor.want(set(names))
    hidden, _ = anchor.hidden(encoded)
    u = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(seed)).to(hidden)
    parameters = [anchor.tensors[name] for name in names]
    value = 0.0
    for done in range(1, iterations + 1):
        u = u / u.norm()
        pulled = torch.autograd.grad(
            hidden, parameters, u, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        before = value
        value = sum(map(squared_norm, pulled))
        change = value / before - 1 if before else float("inf")
        if change < TOLERANCE or done == iterations:
            break
        u = _pushed(anchor, encoded, dict(zip(names, pulled, strict=True)), hidden.detach())
        del pulled  # as large as the student: never hold two of them
    anchor.want(set())
    return Eigenvalue(value, done, change)


def _pushed(anchor: Anchor, encoded: Encoded, direction: dict[str, Tensor], expected: Tensor) -> Tensor:
    """J_H w for a direction w of the backbone's parameters."""
    backbone = anchor.model.base_model
    parameters = {name: anchor.tensors[name].detach() for name in direction}
    ids = torch.tensor(encoded.ids, device=anchor.head.device)[None]

    def states(values: dict[str, Tensor]) -> Tensor:
        output = functional_call(backbone, values, kwargs={"input_ids": ids, "use_cache": False})
        return predicting(output.last_hidden_state[0], encoded)

    kind = anchor.model.config.model_type
    try:
        with forward_mode(anchor.model):
            hidden, pushed = jvp(states, (parameters,), (direction,))  # type: ignore[misc]
    except NotImplementedError as error:
        refuse_forward_mode(kind, first_line(error))
    difference = (hidden - expected).norm()
    check_attention(kind, not difference > SAME_STATES[hidden.dtype] * expected.norm())
    return pushed


def head_norm(anchor: Anchor) -> float:
    """||W_out||_op, exactly: the root of the largest eigenvalue of WᵀW [d, d], in fp64."""
    width = anchor.head.shape[1]
    square = torch.zeros(width, width, dtype=torch.float64, device=anchor.head.device)
    for rows in anchor.head.detach().split(HEAD_ROWS):
        wide = rows.double()
        square += wide.T @ wide
    return float(torch.linalg.eigvalsh(square)[-1].sqrt())
