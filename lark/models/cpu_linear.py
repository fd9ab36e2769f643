"""Products of matrices on CPU by oneDNN.

PyTorch multiplies float32 matrices with MKL, which reorders the weight in every call and on AMD's CPUs uses
no AVX-512. oneDNN, which is part of PyTorch too, uses what the CPU has. Measured on one core with AVX-512
(Zen 5), SmolLM2's layers and 1,024 tokens: 86 to 100 GFLOP/s with MKL, 160 to 205 with oneDNN, and 310 to
395 in bfloat16, where PyTorch uses oneDNN anyway.

A frozen weight is reordered once (`pack_linears`): scoring and generation. One that training changes is
multiplied as it is (`train_through_onednn`). The operators are those that `torch.compile` uses for frozen
weights. They have no gradients of their own: a packed layer with `gradients` also holds its transposed
weight in that layout, for the gradient at its input.
"""

import contextlib
import logging
import platform
from collections.abc import Iterator
from functools import cache
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from lark.errors import first_line

log = logging.getLogger(__name__)
LAYOUT_ROWS = 1024
"""Tokens for which oneDNN chooses the layout. Other numbers are almost as fast; with 1 it would choose one
for generation.
"""
LARGE = 100_000
"""Smallest number of weights for which training and the head leave MKL. The demo's student has fewer in every
layer: they cost little, and its results stay what they were.
"""
GRADIENT_ROWS = 4096
"""Rows of a gradient that are added at once: the product is a temporary."""
PRECISIONS = (torch.float32, torch.bfloat16)


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


class _TrainedForward:
    """The forward pass of a linear layer whose weight is trained in float32."""

    def __init__(self, layer: nn.Linear) -> None:
        self.layer = layer

    def __call__(self, x: Tensor) -> Tensor:
        weight = self.layer.weight
        # Under autocast the product is in bfloat16, which PyTorch leaves to oneDNN.
        is_float32 = x.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
        if not is_float32:
            return functional.linear(x, weight, self.layer.bias)
        output: Tensor = _TrainedProduct.apply(x, weight, self.layer.bias)
        return output


class _TrainedProduct(torch.autograd.Function):
    """x Wᵀ + b, with all three gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _multiply(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        at_input, at_weight, at_bias = ctx.needs_input_grad
        rows = gradient.flatten(0, -2)
        return (
            _multiply(gradient, weight.T, None) if at_input else None,
            _multiply(rows.T, x.flatten(0, -2).T, None) if at_weight else None,
            rows.sum(0) if at_bias else None,
        )


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


def uses_onednn(weight: Tensor) -> bool:
    """Whether `product` is the faster way to multiply by a matrix, or by one that is widened to float32."""
    is_large = weight.dtype in PRECISIONS and weight.numel() >= LARGE
    return is_large and weight.device.type == "cpu" and _has_operators()


def product(a: Tensor, b: Tensor) -> Tensor:
    """a [m, k] @ b [k, n] by oneDNN, without gradients."""
    return _multiply(a, b.T, None)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b by oneDNN, which cannot add in place: in parts, of which one is in memory at a time."""
    for start in range(0, len(total), GRADIENT_ROWS):
        rows = slice(start, start + GRADIENT_ROWS)
        total[rows] += product(a[rows], b)


def train_through_onednn(model: nn.Module) -> int:
    """Let the large layers in `model` multiply by oneDNN and return their number: 0 where it cannot
    be used. They stay what they are: parameters, state and gradients are those of `nn.Linear`.
    """
    layers = []
    for layer in model.modules():
        if _can_be_packed(layer) and uses_onednn(layer.weight):
            layers.append(layer)
    for layer in layers:
        layer.forward = _TrainedForward(layer)  # type: ignore[assignment]
    return len(layers)


@torch.no_grad()
def pack_linears(model: nn.Module, gradients: bool = False, smallest: int = 0) -> int:
    """Replace the linear layers in `model` with at least `smallest` weights, and return their number: 0
    where oneDNN cannot be used. `gradients`: layers propagate gradients to their inputs.
    """
    if not _has_operators():
        return 0
    packed = 0
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if _can_be_packed(layer) and layer.weight.numel() >= smallest:
                setattr(parent, name, PackedLinear(layer, gradients))
                packed += 1
    return packed


@contextlib.contextmanager
def packed_for_now(model: nn.Module) -> Iterator[None]:
    """`pack_linears` for the time of a `with` block. The model needs memory for both forms of its layers."""
    layers = [(parent, name, layer) for parent in model.modules() for name, layer in parent.named_children()]
    try:
        pack_linears(model)
        yield
    finally:
        for parent, name, layer in layers:
            setattr(parent, name, layer)


def _can_be_packed(layer: nn.Module) -> TypeGuard[nn.Linear]:
    # Not subclasses: they may compute something else.
    if type(layer) is not nn.Linear:
        return False
    return layer.weight.dtype in PRECISIONS and layer.weight.device.type == "cpu"


@cache
@torch.no_grad()
def _has_operators() -> bool:
    """True if the operators exist in this build, and agree with PyTorch's own on one layer."""
    if platform.machine().lower() not in ("x86_64", "amd64") or not torch.backends.mkldnn.is_available():
        return False
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(48, 32)
    layer.weight.copy_(torch.randn(32, 48, generator=generator))
    x = torch.randn(3, 48, generator=generator)
    try:
        output = PackedLinear(layer)(x)
    except (AttributeError, NotImplementedError, RuntimeError) as error:
        log.info("Linear layers keep PyTorch's layout, which is slower: %s", first_line(error))
        return False
    expected = functional.linear(x, layer.weight, layer.bias)
    return bool((output - expected).abs().max() <= 1e-5 * expected.abs().max())
