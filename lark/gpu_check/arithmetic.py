"""Checks of one process: kernels compared with float64, on the same inputs."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lark.gpu_check import expectations
from lark.gpu_check.check import CheckPlace, within
from lark.models.head import Head
from lark.models.varlen import Segments, packed_attention, why_not_kernel
from lark.scoring.statistics import detailed_statistics, token_statistics
from lark.training.loss import weighted_loss
from lark.work.devices import use_device

REPETITIONS = 10
VOCABULARY = 152_064
"""Of Qwen2.5-7B."""


def gpus(place: CheckPlace) -> str:
    """A matrix product on every GPU, compared with the CPU's."""
    use_device("cuda:0")
    count = torch.cuda.device_count()
    expectations.expect_gpus(count, place.processes)
    torch.manual_seed(0)
    matrix = torch.randn(512, 512)
    exact = matrix.double() @ matrix.double()
    errors = []
    for number in range(count):
        moved = matrix.to(f"cuda:{number}")
        errors.append(relative((moved @ moved).cpu(), exact))
    return within("product", max(errors), 1e-2)  # TF32 has 10 bits


def kernel(place: CheckPlace) -> str:
    """The Triton kernel for the statistics of tokens. On the CPU in Triton's interpreter."""
    device, dtype = _start(place)
    tokens, words, width = (512, VOCABULARY, 512) if place.cuda else (16, 3_000, 32)
    hidden = 4 * torch.randn(tokens, width, device=device).to(dtype) * width**-0.25
    weight = 4 * torch.randn(words, width, device=device).to(dtype) * width**-0.25
    targets = torch.randint(words, (tokens,), device=device)
    head = Head(weight)
    statistics = detailed_statistics(hidden, targets, head, 5, "triton")

    logits = hidden.double() @ weight.double().T
    p = logits.softmax(1)
    log_p = logits.log_softmax(1)
    gold = targets[:, None]
    surprisal = -log_p.gather(1, gold)[:, 0]
    residual = p.square().sum(1) - 2 * p.gather(1, gold)[:, 0] + 1
    entropy = -(p * log_p).sum(1)
    rank = 1 + (logits > logits.gather(1, gold)).sum(1)
    measured = [
        within("surprisal", largest(statistics.surprisal, surprisal), 1e-4),
        within("residual", largest(statistics.residual, residual), 1e-4),
        within("entropy", largest(statistics.entropy, entropy), 1e-4),
        within("alternatives", largest(statistics.alternative_p, p.topk(5)[0]), 1e-4),
        within("rank / vocabulary", float((statistics.rank - rank).abs().max()) / words, 1e-3),
    ]
    if place.cuda:
        slow = seconds(lambda: token_statistics(hidden, targets, head, "eager"))
        fast = seconds(lambda: token_statistics(hidden, targets, head, "triton"))
        measured.insert(0, f"{slow / fast:.1f}x the speed of PyTorch")
    return ", ".join(measured)


def loss(place: CheckPlace) -> str:
    """`weighted_loss` and its gradients. On a GPU with products of bf16 that have an fp32 output."""
    device, _ = _start(place)
    tokens, words, width, chunk = (1024, VOCABULARY, 512, 512) if place.cuda else (96, 700, 32, 32)
    hidden = torch.randn(tokens, width, device=device).mul_(width**-0.25).bfloat16()
    weight = torch.randn(words, width, device=device).mul_(width**-0.25).bfloat16()
    targets = torch.randint(words, (tokens,), device=device)
    segment = torch.arange(4, device=device).repeat_interleave(tokens // 4)
    weights = torch.tensor([0.2, 1.7, 0.9, 3.1], device=device)
    lengths = torch.full((4,), tokens // 4, device=device)

    def ours(h: Tensor, w: Tensor) -> Tensor:
        return weighted_loss(h, w, targets, segment, weights, lengths, 4, chunk=chunk)[0]

    def direct(h: Tensor, w: Tensor) -> Tensor:
        logits = (h @ w.T).to(torch.promote_types(h.dtype, torch.float32))
        nll = functional.cross_entropy(logits, targets, reduction="none")
        return (nll * (weights / lengths / 4)[segment]).sum()

    value, of_states, of_head = differentiated(ours, hidden, weight)
    exact, exact_states, exact_head = differentiated(direct, hidden.double(), weight.double())
    measured = [
        within("loss", relative(value, exact), 1e-5),
        within("gradient of states", relative(of_states, exact_states), 1e-2),
        within("gradient of head", relative(of_head, exact_head), 1e-2),
    ]
    if place.cuda:
        slow = seconds(lambda: differentiated(direct, hidden, weight))
        fast = seconds(lambda: differentiated(ours, hidden, weight))
        measured.insert(0, f"{slow / fast:.1f}x the speed of cross_entropy")
    return ", ".join(measured)


def attention(place: CheckPlace) -> str:
    """Attention within each trajectory of a pack. On a GPU with the variable-length kernel."""
    device, _ = _start(place)
    sizes = [700, 1, 1300, 47] if place.cuda else [30, 1, 47, 5]
    total = sum(sizes)
    heads, kv_heads, width = 8, 2, 64
    query = torch.randn(1, heads, total, width, device=device, dtype=torch.bfloat16)
    key = torch.randn(1, kv_heads, total, width, device=device, dtype=torch.bfloat16)
    value = torch.randn(1, kv_heads, total, width, device=device, dtype=torch.bfloat16)
    direction = torch.randn(1, total, heads, width, device=device)
    if place.cuda:
        expectations.expect_kernel(why_not_kernel(query, value, query.dtype, 0.0))
    packs = Segments.of(sizes).to(device)
    owner = torch.arange(len(sizes), device=device).repeat_interleave(torch.tensor(sizes, device=device))
    visible = (owner[:, None] == owner[None]).tril()

    def packed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        arguments: dict[str, Any] = {"cu_seq_lens_q": packs.boundaries, "max_length_q": packs.longest}
        return packed_attention(_Layer(), q, k, v, None, scaling=width**-0.5, **arguments)[0]

    def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k = k.repeat_interleave(heads // kv_heads, dim=1)
        v = v.repeat_interleave(heads // kv_heads, dim=1)
        scores = (q @ k.transpose(2, 3) * width**-0.5).masked_fill(~visible, -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2)

    def scalar(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *x: (function(*x) * direction).sum()

    inputs = [query, key, value]
    exact_inputs = [x.double() for x in inputs]
    output = relative(packed(*inputs), masked(*exact_inputs))
    gradients = differentiated(scalar(packed), *inputs)[1:]
    exact = differentiated(scalar(masked), *exact_inputs)[1:]
    measured = [
        within("output", output, 1e-2),
        within("gradients", max(map(relative, gradients, exact)), 2e-2),
    ]
    if place.cuda:
        slow = seconds(lambda: differentiated(scalar(masked), *inputs))
        fast = seconds(lambda: differentiated(scalar(packed), *inputs))
        measured.insert(0, f"{slow / fast:.1f}x the speed of a mask")
    return ", ".join(measured)


class _Layer(nn.Module):
    is_causal = True


def _start(place: CheckPlace) -> tuple[torch.device, torch.dtype]:
    """The device, and the precision of weights there."""
    device = "cuda:0" if place.cuda else "cpu"
    dtype = torch.bfloat16 if place.cuda else torch.float32
    use_device(device)
    torch.manual_seed(0)
    return torch.device(device), dtype


def differentiated(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """The value of a function and its gradients."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    value = function(*leaves)
    return [value.detach(), *torch.autograd.grad(value, leaves)]


def relative(ours: Tensor, exact: Tensor) -> float:
    """‖ours - exact‖ / ‖exact‖."""
    return float((ours.double() - exact).norm() / exact.norm())


def largest(ours: Tensor, exact: Tensor) -> float:
    """Largest difference, in units of the exact value where that is larger than 1."""
    exact = exact.double()
    return float(((ours.double() - exact).abs() / exact.abs().clamp_min(1)).max())


def seconds(function: Callable[[], object]) -> float:
    """Time of one call on the GPU, after a first call that compiles."""
    function()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(REPETITIONS):
        function()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / REPETITIONS
