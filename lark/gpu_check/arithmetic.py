"""Checks of one process: kernels compared with float64, on the same inputs."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lark.errors import LarkError
from lark.gpu_check.check import Place, within
from lark.models.head import Head
from lark.models.varlen import Segments, packed_attention, why_not_kernel
from lark.scoring.statistics import detailed_statistics, token_statistics
from lark.training.loss import weighted_loss
from lark.work.devices import unusable, use_device

REPETITIONS = 10


def gpus(place: Place) -> str:
    """A matrix product on every GPU, compared with the CPU's."""
    use_device("cuda:0")
    found = torch.cuda.device_count()
    if found < place.processes:
        raise LarkError(unusable(f"it finds {found} of {place.processes}"))
    torch.manual_seed(0)
    matrix = torch.randn(512, 512)
    exact = matrix.double() @ matrix.double()
    errors = [relative((matrix.to(f"cuda:{i}") @ matrix.to(f"cuda:{i}")).cpu(), exact) for i in range(found)]
    return within("product", max(errors), 1e-2)  # TF32 has 10 bits


def kernel(place: Place) -> str:
    """The Triton kernel for the statistics of tokens. On the CPU in Triton's interpreter."""
    device, dtype = _start(place)
    tokens, words, width = (512, 50_000, 512) if place.cuda else (16, 3_000, 32)
    hidden, weight = (
        4 * torch.randn(n, width, device=device).to(dtype) * width**-0.25 for n in (tokens, words)
    )
    targets = torch.randint(words, (tokens,), device=device)
    head = Head(weight)
    found = detailed_statistics(hidden, targets, head, 5, "triton")
    logits = hidden.double() @ weight.double().T
    gold = logits.gather(1, targets[:, None])
    p = logits.softmax(1)
    residual = p.square().sum(1) - 2 * p.gather(1, targets[:, None])[:, 0] + 1
    rank = 1 + (logits > gold).sum(1)
    said = [
        within(
            "surprisal",
            largest(found.surprisal, -logits.log_softmax(1).gather(1, targets[:, None])[:, 0]),
            1e-4,
        ),
        within("residual", largest(found.residual, residual), 1e-4),
        within("entropy", largest(found.entropy, -(p * logits.log_softmax(1)).sum(1)), 1e-4),
        within("alternatives", largest(found.alternative_p, p.topk(5)[0]), 1e-4),
        within("rank / vocabulary", float((found.rank - rank).abs().max()) / words, 1e-3),
    ]
    if place.cuda:
        slow = seconds(lambda: token_statistics(hidden, targets, head, "eager"))
        fast = seconds(lambda: token_statistics(hidden, targets, head, "triton"))
        said.insert(0, f"{slow / fast:.1f}x the speed of PyTorch")
    return ", ".join(said)


def loss(place: Place) -> str:
    """`weighted_loss` and its gradients. On a GPU this runs products of bf16 with an fp32 output, which
    exist only there.
    """
    device, _ = _start(place)
    tokens, words, width, chunk = (4096, 32_000, 512, 1024) if place.cuda else (96, 700, 32, 32)
    hidden, weight = (
        torch.randn(n, width, device=device).mul_(width**-0.25).bfloat16() for n in (tokens, words)
    )
    targets = torch.randint(words, (tokens,), device=device)
    segment = torch.arange(4, device=device).repeat_interleave(tokens // 4)
    weights, lengths = (
        torch.tensor([0.2, 1.7, 0.9, 3.1], device=device),
        torch.full((4,), tokens // 4, device=device),
    )

    def ours(h: Tensor, w: Tensor) -> Tensor:
        return weighted_loss(h, w, targets, segment, weights, lengths, 4, chunk=chunk)[0]

    def direct(h: Tensor, w: Tensor) -> Tensor:
        nll = functional.cross_entropy(
            (h @ w.T).to(torch.promote_types(h.dtype, torch.float32)), targets, reduction="none"
        )
        return (nll * (weights / lengths / 4)[segment]).sum()

    (value, *found), (truth, *exact) = (
        differentiated(ours, hidden, weight),
        differentiated(direct, hidden.double(), weight.double()),
    )
    said = [
        within("loss", relative(value, truth), 1e-5),
        within("gradient of states", relative(found[0], exact[0]), 1e-2),
        within("gradient of head", relative(found[1], exact[1]), 1e-2),
    ]
    if place.cuda:
        slow, fast = (seconds(lambda f=f: differentiated(f, hidden, weight)) for f in (direct, ours))  # type: ignore[misc]
        said.insert(0, f"{slow / fast:.1f}x the speed of cross_entropy")
    return ", ".join(said)


def attention(place: Place) -> str:
    """Attention within each trajectory of a pack. On a GPU with the variable-length kernel, elsewhere with
    its replacement.
    """
    device, _ = _start(place)
    sizes = [700, 1, 1300, 47] if place.cuda else [30, 1, 47, 5]
    heads, kv_heads, width = 8, 2, 64
    query, key, value = (
        torch.randn(1, n, sum(sizes), width, device=device, dtype=torch.bfloat16)
        for n in (heads, kv_heads, kv_heads)
    )
    direction = torch.randn(1, sum(sizes), heads, width, device=device)
    if place.cuda and (reason := why_not_kernel(query, value, query.dtype, 0.0)):
        raise LarkError(f"PyTorch's variable-length attention is not used: {reason}.")
    packs = Segments.of(sizes).to(device)
    owner = torch.arange(len(sizes), device=device).repeat_interleave(torch.tensor(sizes, device=device))
    seen = (owner[:, None] == owner[None]).tril()

    def packed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        arguments: dict[str, Any] = {"cu_seq_lens_q": packs.boundaries, "max_length_q": packs.longest}
        return packed_attention(_Layer(), q, k, v, None, scaling=width**-0.5, **arguments)[0]

    def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x.repeat_interleave(heads // kv_heads, dim=1) for x in (k, v))
        scores = (q @ k.transpose(2, 3) * width**-0.5).masked_fill(~seen, -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2)

    def scalar(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *x: (function(*x) * direction).sum()

    parts = [query, key, value]
    output = relative(packed(*parts), masked(*(x.double() for x in parts)))
    found = differentiated(scalar(packed), *parts)[1:]
    exact = differentiated(scalar(masked), *(x.double() for x in parts))[1:]
    said = [
        within("output", output, 1e-2),
        within("gradients", max(relative(a, b) for a, b in zip(found, exact, strict=True)), 2e-2),
    ]
    if place.cuda:
        slow, fast = (seconds(lambda f=f: differentiated(scalar(f), *parts)) for f in (masked, packed))  # type: ignore[misc]
        said.insert(0, f"{slow / fast:.1f}x the speed of a mask")
    return ", ".join(said)


class _Layer(nn.Module):
    is_causal = True


def _start(place: Place) -> tuple[torch.device, torch.dtype]:
    """The device, and the precision of weights there."""
    device = "cuda:0" if place.cuda else "cpu"
    use_device(device)
    torch.manual_seed(0)
    return torch.device(device), torch.bfloat16 if place.cuda else torch.float32


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
    return float(((ours.double() - exact.double()).abs() / exact.double().abs().clamp_min(1)).max())


def seconds(function: Callable[[], object]) -> float:
    """Time of one call on the GPU, after a first call that compiles."""
    function()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(REPETITIONS):
        function()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / REPETITIONS
