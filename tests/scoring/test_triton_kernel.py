"""The CUDA kernel against the PyTorch reduction: on a GPU where there is one, otherwise in Triton's
interpreter.

The interpreter has to be chosen before Triton is first imported, so the comparisons run in a separate
process.
"""

import os

import pytest
import torch

from lark.models.head import Head, LogitRule
from lark.scoring.statistics import tiled_details, token_statistics
from lark.scoring.tiles import Tiling, absorb_tile
from tests.conftest import interpreted

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HERE = INTERPRETED or DEVICE == "cuda"

needs_kernel = pytest.mark.skipif(not HERE, reason="run by test_the_kernel_agrees_in_the_interpreter")


@pytest.mark.skipif(HERE, reason="the comparisons below run in this process")
def test_the_kernel_agrees_in_the_interpreter() -> None:
    summary = interpreted(__file__)
    assert "14 passed, 1 skipped" in summary, summary


@needs_kernel
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("columns", [1, 2, 7, 129, 1000])
def test_a_tile_is_absorbed_like_in_pytorch(rows: int, columns: int) -> None:
    from lark.scoring.triton_kernel import absorb_tile as absorb_with_triton

    torch.manual_seed(columns)
    whole = (10 * torch.randn(rows, columns + 3, device=DEVICE)).round()
    whole[:, 0] = -torch.inf
    logits = whole[:, :columns]  # rows need not be contiguous with each other
    targets = torch.randint(-3, columns + 3, (rows,), device=DEVICE)
    gold = logits[:, -1].clone()
    state = torch.rand(6, rows, device=DEVICE).double()
    expected = state.clone()
    absorb_with_triton(logits, targets, gold, state)
    absorb_tile(logits.clone(), targets, gold, expected)
    torch.testing.assert_close(state, expected, rtol=1e-5, atol=1e-30)


@needs_kernel
@pytest.mark.parametrize(("T", "V", "d"), [(1, 1, 3), (3, 50, 8), (11, 103, 5)])
def test_statistics_agree_with_pytorch(T: int, V: int, d: int) -> None:
    from lark.scoring.triton_kernel import absorb_tile as absorb_with_triton

    torch.manual_seed(0)
    hidden = torch.randn(T, d, device=DEVICE)
    targets = torch.randint(0, V, (T,), device=DEVICE)
    bias = torch.randn(V, device=DEVICE)
    bias[V // 2 + 1 :: 7] = -torch.inf
    head = Head(torch.randn(V, d, device=DEVICE), bias, LogitRule(1.5, 20.0 if V == 50 else None))
    by_kernel = tiled_details(hidden, targets, head, 5, Tiling(4, 32, absorb_with_triton))
    by_pytorch = tiled_details(hidden, targets, head, 5, Tiling(4, 32, absorb_tile))
    for name, column in vars(by_kernel).items():
        torch.testing.assert_close(column, getattr(by_pytorch, name), rtol=1e-5, atol=1e-30)


@needs_kernel
def test_the_backend_can_be_named() -> None:
    torch.manual_seed(0)
    hidden, targets, head = torch.randn(3, 4), torch.tensor([0, 4999, 7]), Head(torch.randn(5000, 4))
    arguments = hidden.to(DEVICE), targets.to(DEVICE), Head(head.weight.to(DEVICE))
    by_kernel, by_pytorch = token_statistics(*arguments, "triton"), token_statistics(*arguments, "eager")
    for name, column in vars(by_kernel).items():
        torch.testing.assert_close(column, getattr(by_pytorch, name), rtol=1e-5, atol=1e-30)
