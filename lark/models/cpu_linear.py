"""Linear layers on CPU whose weights have the layout of oneDNN's kernels.

PyTorch multiplies float32 matrices with MKL, which reorders the weight in every call. oneDNN, which is part
of PyTorch too, multiplies by a weight that was reordered once. On a Zen 4 core the layers of SmolLM2 are
1.1 times as fast (106 to 111 GFLOP/s instead of 90 to 100). The operators are those that `torch.compile`
uses for frozen weights. They have no gradients of their own: a layer with `gradients` also holds its
transposed weight in that layout, for the gradient at its input.
"""

import logging
import platform
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

from lark.errors import first_line

log = logging.getLogger(__name__)
LAYOUT_ROWS = 1024
"""Tokens for which oneDNN chooses the layout. Other numbers are almost as fast; with 1 it would choose one
for generation.
"""


class PackedLinear(nn.Module):
    """A linear layer with frozen weights. It holds them in oneDNN's layout only: once, or for `gradients`
    twice.
    """

    def __init__(self, layer: nn.Linear, gradients: bool = False) -> None:
        super().__init__()
        self.in_features = layer.in_features
        self.out_features = layer.out_features
        self.bias = layer.bias
        weight = layer.weight.detach()
        self.packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, LAYOUT_ROWS)
        self.transposed: Tensor | None = None
        if gradients:
            self.transposed = torch.ops.mkldnn._reorder_linear_weight(weight.T.contiguous(), LAYOUT_ROWS)

    @property
    def weight(self) -> Tensor:
        """A copy in the usual layout."""
        return self.packed.to_dense()

    def forward(self, x: Tensor) -> Tensor:
        if self.transposed is None:
            return _multiply(x, self.packed, self.bias)
        output: Tensor = _WithGradient.apply(x, self.packed, self.transposed, self.bias)
        return output


class _WithGradient(torch.autograd.Function):
    """x Wᵀ + b, with a gradient at x alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Tensor, transposed: Tensor, bias: Tensor | None) -> Tensor:
        ctx.transposed = transposed  # a constant, and not a tensor that autograd can save
        return _multiply(x, packed, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _multiply(gradients[0].contiguous(), ctx.transposed, None), None, None, None


def _multiply(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return product


@torch.no_grad()
def pack_linears(model: nn.Module, gradients: bool = False) -> int:
    """Replace the float32 linear layers in `model` and return their number: 0 where oneDNN cannot be used.
    `gradients`: layers propagate gradients to their inputs.
    """
    packed = 0
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if not _can_be_packed(layer):
                continue
            # One layer is tried for all: the operators exist in a build of PyTorch or they do not.
            if not packed and not _works(layer):
                return 0
            setattr(parent, name, PackedLinear(layer, gradients))
            packed += 1
    return packed


def _can_be_packed(layer: nn.Module) -> TypeGuard[nn.Linear]:
    # Not subclasses: they may compute something else.
    if type(layer) is not nn.Linear:
        return False
    return layer.weight.dtype == torch.float32 and layer.weight.device.type == "cpu"


def _works(layer: nn.Linear) -> bool:
    """True if the operators exist in this build, and agree with PyTorch's own on one layer."""
    if platform.machine().lower() not in ("x86_64", "amd64") or not torch.backends.mkldnn.is_available():
        return False
    x = torch.randn(3, layer.in_features, generator=torch.Generator().manual_seed(0))
    try:
        output = PackedLinear(layer)(x)
    except (AttributeError, NotImplementedError, RuntimeError) as error:
        log.info("Linear layers keep PyTorch's layout, which is a little slower: %s", first_line(error))
        return False
    expected = functional.linear(x, layer.weight, layer.bias)
    return bool((output - expected).abs().max() <= 1e-5 * expected.abs().max())
