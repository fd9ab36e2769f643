"""Exact full-parameter gradients of trajectories: their Gram matrix, and the gradient of a whole weighted
corpus.

K gradients of a student with P parameters are K × P numbers: 10 GB for 18 trajectories of a 135 M student,
1 TB for 33 of a 7 B one. Only their K × K inner products are needed, and those are sums over parameters. So
parameters are processed in blocks, small enough that K gradients of one block fit a bound. For each block
the K trajectories are passed through the student again, and backpropagation stops at the block. Memory
holds the student, the activations of one trajectory, K gradients of one block (the bound), and one gradient
of the tensors that the block touches. With a scratch file, the K gradients are on disk and the bound
applies to the disk: if it has room for all of them, one pass over the trajectories is enough. Gradients
have the precision of the given student (`analysis.dtype`); inner products are accumulated in fp64.

Tied heads. The paper splits θ into W_out and a rest that does not contain it (App. B.2). If the head is the
embedding matrix, its gradient is the sum of two uses. They are kept apart here: `head` and `rest` are the
inner products of the uses, `cross` those of one use with the other. Their sum is the Gram matrix of the
parameters that training updates (`gram`); `untied` is that of the paper's proofs, in which the two uses are
separate parameters. Both are the same for an untied student.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lark.models.chat import Encoded
from lark.models.head import last_hidden_state, logit_rule, predicting
from lark.models.padding import right_padded
from lark.models.recompute import recompute_activations
from lark.scoring.forward import batches
from lark.scoring.learnability import Floats
from lark.training.loss import NO_TARGET, response_targets, weighted_loss

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HEAD = "head"
"""Name of the head's weight, separate from the embedding even if they are tied."""
HEAD_BIAS = "head bias"
COLUMNS = 1 << 20
"""Numbers of each gradient that are widened to fp64 at a time."""


@dataclass(frozen=True)
class Gram:
    """Inner products [K, K] of the gradients of K trajectories, by part of the student."""

    rest: Floats
    """Over everything but the head; of the embedding, its use as a lookup."""
    head: Floats
    """Over W_out in its use for logits."""
    cross: Floats
    """<head of i, embedding of j> if the two are tied; zero otherwise."""

    @property
    def gram(self) -> Floats:
        """G of the student's actual parameters, which training updates."""
        return np.asarray(self.rest + self.head + self.cross + self.cross.T)

    @property
    def untied(self) -> Floats:
        """G with the head and the embedding as separate parameters, as in the paper's proofs."""
        return np.asarray(self.rest + self.head)


@dataclass(frozen=True)
class Piece:
    """Entries start..stop of one tensor, or of both the embedding and the head if they are tied."""

    names: tuple[str, ...]
    start: int
    stop: int

    @property
    def width(self) -> int:
        """Numbers per gradient."""
        return len(self.names) * (self.stop - self.start)


class Anchor:
    """A student whose gradients are computed: its tensors by name, the head's use separate from the
    embedding's.
    """

    def __init__(self, model: "PreTrainedModel", checkpointing: bool = False) -> None:
        """`checkpointing` recomputes activations in the backward pass: slower, with one layer's memory
        instead of all.
        """
        self.model = model
        self.rule = logit_rule(model)
        layer = model.get_output_embeddings()
        self.tensors: dict[str, Tensor] = dict(model.base_model.named_parameters())
        self.tied: str | None = next((name for name, p in self.tensors.items() if p is layer.weight), None)
        # A separate leaf on the same memory: its gradient is that of the head's use alone.
        self.tensors[HEAD] = layer.weight.detach()
        self.bias = getattr(layer, "bias", None)
        if self.bias is not None:
            self.tensors[HEAD_BIAS] = self.bias
        if checkpointing:
            recompute_activations(model)

    @property
    def head(self) -> Tensor:
        return self.tensors[HEAD]

    @property
    def backbone(self) -> list[str]:
        """Names of everything but the head; of the embedding, its use as a lookup."""
        return [name for name in self.tensors if name not in (HEAD, HEAD_BIAS)]

    def blocks(self, K: int, memory: int) -> list[list[Piece]]:
        """The tensors in order of depth, cut so that K gradients of a block take at most `memory` bytes (at
        least one entry).
        """
        capacity = max(1, memory // (K * self.head.element_size()))
        pair = (self.tied, HEAD) if self.tied else ()
        groups: list[tuple[str, ...]] = [pair] if pair else []
        groups += [(name,) for name in self.tensors if name not in pair]
        found: list[list[Piece]] = [[]]
        free = capacity
        for names in groups:
            start, size = 0, self.tensors[names[0]].numel()
            while start < size:
                if free < len(names) and found[-1]:
                    found.append([])
                    free = capacity
                stop = min(size, start + max(1, free // len(names)))
                found[-1].append(Piece(names, start, stop))
                free -= found[-1][-1].width
                start = stop
        return found

    def want(self, names: set[str]) -> None:
        """Enable gradients for these tensors only."""
        for name, tensor in self.tensors.items():
            tensor.requires_grad_(name in names)

    def hidden(self, encoded: Encoded) -> tuple[Tensor, Tensor]:
        """[T, d] the hidden states that predict the response's tokens, and those tokens [T]."""
        ids = torch.tensor(encoded.ids, device=self.head.device)[None]
        states = predicting(last_hidden_state(self.model, ids)[0], encoded)
        return states, torch.tensor(encoded.response, device=self.head.device)

    def loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """ℓ_k = 1/|a_k| Σ_t -log π(y_t | x, y_<t) (paper, Sec. 3.1), as training computes it."""
        zeros, one = torch.zeros_like(targets), torch.ones(1)
        lengths = torch.tensor([len(targets)])
        return weighted_loss(hidden, self.head, targets, zeros, one, lengths, 1, self.bias, rule=self.rule)[0]


def gram_matrix(
    anchor: Anchor,
    trajectories: Sequence[Encoded],
    memory: int,
    done: Callable[[], object] = lambda: None,
    scratch: Path | None = None,
) -> Gram:
    """The Gram matrix of the trajectories' gradients. `memory`: bytes for gradients, in memory or in the
    file `scratch`, which is overwritten and removed. `done` is called after each pass.
    """
    K = len(trajectories)
    rest, head, cross = (np.zeros((K, K)) for _ in range(3))
    for block in anchor.blocks(K, memory):
        names = list(dict.fromkeys(name for piece in block for name in piece.names))
        anchor.want(set(names))
        gradients = _buffer(anchor.head, K, sum(piece.width for piece in block), scratch)
        for k, encoded in enumerate(trajectories):
            loss = anchor.loss(*anchor.hidden(encoded))
            found = torch.autograd.grad(loss, [anchor.tensors[name] for name in names], allow_unused=True)
            _keep(gradients[k], block, dict(zip(names, found, strict=True)))
            done()
        offset = 0
        for piece in block:
            size = piece.stop - piece.start
            first = gradients[:, offset : offset + size]
            second = gradients[:, offset + size : offset + piece.width]
            if len(piece.names) == 1:
                (head if piece.names[0] in (HEAD, HEAD_BIAS) else rest)[:] += _inner(first, first)
            else:
                rest += _inner(first, first)
                head += _inner(second, second)
                cross += _inner(second, first)
            offset += piece.width
        del gradients, first, second  # before the next block's are allocated: two of them exceed the bound
    anchor.want(set())
    return Gram(rest, head, cross)


def passes(anchor: Anchor, K: int, memory: int) -> int:
    """Number of forward and backward passes of `gram_matrix`."""
    return K * len(anchor.blocks(K, memory))


def _keep(row: Tensor, block: list[Piece], gradients: dict[str, Tensor | None]) -> None:
    """Write the block's entries of one trajectory's gradient into its row; zero where the loss does not
    depend on a tensor.
    """
    offset = 0
    for piece in block:
        for name in piece.names:
            gradient, size = gradients[name], piece.stop - piece.start
            target = row[offset : offset + size]
            if gradient is None:
                target.zero_()
            else:
                target.copy_(gradient.reshape(-1)[piece.start : piece.stop])
            offset += size


def _buffer(like: Tensor, K: int, width: int, scratch: Path | None) -> Tensor:
    """[K, width], on disk if `scratch` is given: its pages count as cache, which the system reclaims when
    necessary.
    """
    if scratch is None:
        return like.new_empty(K, width)
    whole = torch.from_file(str(scratch), shared=True, size=K * width, dtype=like.dtype)
    scratch.unlink()  # the mapping keeps it until it is released, however this process ends
    return whole.view(K, width)


def _inner(a: Tensor, b: Tensor) -> Floats:
    """a bᵀ for a, b [K, n], in fp64."""
    total = torch.zeros(len(a), len(b), dtype=torch.float64, device=a.device)
    for start in range(0, a.shape[1], COLUMNS):
        left, right = (x[:, start : start + COLUMNS].double() for x in (a, b))
        total += left @ right.T
    return np.asarray(total.cpu().numpy())


@dataclass(frozen=True)
class CorpusRate:
    """ρ of a weighted corpus, and its two parts."""

    loss: float
    """L_total = Σ_i q_i ℓ_i."""
    gradient_norm2: float
    """||∇L_total||²."""

    @property
    def rate(self) -> float:
        return self.gradient_norm2 / self.loss


def corpus_rate(
    anchor: Anchor,
    trajectories: Sequence[Encoded],
    weights: Sequence[float],
    batch_tokens: int,
    done: Callable[[int], object] = lambda tokens: None,
) -> CorpusRate:
    """ρ = ||∇L||² / L of L = Σ_i q_i ℓ_i over a whole corpus (paper, App. A.3), in one pass that holds one
    gradient, in fp32.

    `weights` are the q_i; `batch_tokens` bounds the tokens of a padded batch. A tied matrix counts once,
    with both its uses.
    """
    parameters = list(anchor.model.parameters())
    head = anchor.model.get_output_embeddings().weight
    sums: dict[Tensor, Tensor] = {
        p: torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32), requires_grad=False)
        for p in parameters
    }

    def add(
        parameter: Tensor,
    ) -> None:  # at once, so that a gradient exists only while its tensor is processed
        assert parameter.grad is not None
        sums[parameter].add_(parameter.grad)
        parameter.grad = None

    anchor.model.requires_grad_(True)
    hooks = [parameter.register_post_accumulate_grad_hook(add) for parameter in parameters]
    total = 0.0
    for chosen in batches([len(t.ids) for t in trajectories], batch_tokens, padded=True):
        picked = [trajectories[i] for i in chosen]
        ids, targets = _padded(picked)
        hidden = last_hidden_state(anchor.model, ids.to(head.device)).flatten(0, 1)
        segment = torch.arange(len(picked)).repeat_interleave(ids.shape[1])
        loss, _ = weighted_loss(
            hidden, head, targets.flatten().to(head.device), segment.to(head.device),
            torch.tensor([weights[i] for i in chosen], dtype=torch.float64),
            torch.tensor([t.n_response for t in picked]), 1, anchor.bias, rule=anchor.rule,
        )  # fmt: skip
        loss.backward()
        total += float(loss.detach())
        done(sum(len(t.ids) for t in picked))
    for hook in hooks:
        hook.remove()
    anchor.want(set())
    return CorpusRate(total, sum(squared_norm(gradient) for gradient in sums.values()))


def squared_norm(tensor: Tensor) -> float:
    """||x||² in fp64, without an fp64 copy of x."""
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64).square())


def _padded(trajectories: Sequence[Encoded]) -> tuple[Tensor, Tensor]:
    """Token ids and targets [b, t]."""
    targets = [response_targets(trajectory) for trajectory in trajectories]
    return right_padded([trajectory.ids for trajectory in trajectories]), right_padded(targets, NO_TARGET)
