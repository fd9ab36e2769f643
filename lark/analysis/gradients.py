"""Exact full-parameter gradients of trajectories, and their Gram matrix.

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
from lark.models.recompute import recompute_activations
from lark.scoring.learnability import Floats
from lark.training.loss import weighted_loss

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HEAD_WEIGHT = "head"
"""Name of the head's weight, separate from the embedding even if they are tied."""
HEAD_BIAS = "head bias"
FP64_COLUMNS = 1 << 20
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
    """A student whose gradients are computed: its tensors by name, with the head as a tensor of its own."""

    def __init__(self, model: "PreTrainedModel", checkpointing: bool = False) -> None:
        """`checkpointing` recomputes activations in the backward pass: slower, with one layer's memory."""
        self.model = model
        self.rule = logit_rule(model)
        layer = model.get_output_embeddings()
        self.tensors: dict[str, Tensor] = dict(model.base_model.named_parameters())
        self.tied: str | None = next((name for name, p in self.tensors.items() if p is layer.weight), None)
        # A separate leaf on the same memory: its gradient is that of the head's use alone.
        self.tensors[HEAD_WEIGHT] = layer.weight.detach()
        self.bias = getattr(layer, "bias", None)
        if self.bias is not None:
            self.tensors[HEAD_BIAS] = self.bias
        if checkpointing:
            recompute_activations(model)

    @property
    def head(self) -> Tensor:
        return self.tensors[HEAD_WEIGHT]

    @property
    def backbone(self) -> list[str]:
        """Names of everything but the head; of the embedding, its use as a lookup."""
        return [name for name in self.tensors if name not in (HEAD_WEIGHT, HEAD_BIAS)]

    def blocks(self, K: int, memory: int) -> list[list[Piece]]:
        """The tensors in order of depth, cut so that K gradients of a block take at most `memory` bytes (at
        least one entry).
        """
        capacity = max(1, memory // (K * self.head.element_size()))
        # A tied pair stays together: `cross` needs both gradients of the same entries.
        pair = (self.tied, HEAD_WEIGHT) if self.tied else ()
        groups: list[tuple[str, ...]] = [pair] if pair else []
        groups += [(name,) for name in self.tensors if name not in pair]
        blocks: list[list[Piece]] = [[]]
        free = capacity
        for names in groups:
            size = self.tensors[names[0]].numel()
            start = 0
            while start < size:
                if free < len(names) and blocks[-1]:
                    blocks.append([])
                    free = capacity
                stop = min(size, start + max(1, free // len(names)))
                piece = Piece(names, start, stop)
                blocks[-1].append(piece)
                free -= piece.width
                start = stop
        return blocks

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
        segment = torch.zeros_like(targets)
        weight = torch.ones(1)
        length = torch.tensor([len(targets)])
        loss, *_ = weighted_loss(
            hidden, self.head, targets, segment, weight, length, 1, self.bias, rule=self.rule
        )
        return loss


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
    gram = Gram(np.zeros((K, K)), np.zeros((K, K)), np.zeros((K, K)))
    for block in anchor.blocks(K, memory):
        # A tensor may be cut into several pieces of one block; its gradient is computed once.
        names = list(dict.fromkeys(name for piece in block for name in piece.names))
        tensors = [anchor.tensors[name] for name in names]
        anchor.want(set(names))
        # Filled row by row: the K gradients of the block are never in memory twice.
        rows = _buffer(anchor.head, K, sum(piece.width for piece in block), scratch)
        for row, encoded in zip(rows, trajectories, strict=True):
            loss = anchor.loss(*anchor.hidden(encoded))
            gradients = torch.autograd.grad(loss, tensors, allow_unused=True)
            _keep(row, block, dict(zip(names, gradients, strict=True)))
            done()
        _add_products(gram, block, rows)
        del rows, row  # before the next block's are allocated: two of them exceed the bound
    anchor.want(set())
    return gram


def _add_products(gram: Gram, block: list[Piece], rows: Tensor) -> None:
    """Add the inner products of K gradients of a block to those of the blocks before it, in place."""
    offset = 0
    for piece in block:
        size = piece.stop - piece.start
        first = rows[:, offset : offset + size]
        offset += piece.width
        if len(piece.names) == 1:
            part = gram.head if piece.names[0] in (HEAD_WEIGHT, HEAD_BIAS) else gram.rest
            part += _inner(first, first)
        else:
            second = rows[:, offset - size : offset]
            gram.rest[:] += _inner(first, first)
            gram.head[:] += _inner(second, second)
            gram.cross[:] += _inner(second, first)


def passes(anchor: Anchor, K: int, memory: int) -> int:
    """Number of forward and backward passes of `gram_matrix`."""
    return K * len(anchor.blocks(K, memory))


def _keep(row: Tensor, block: list[Piece], gradients: dict[str, Tensor | None]) -> None:
    """Write the block's entries of a trajectory's gradient into its row; 0 for tensors it does not use."""
    offset = 0
    for piece in block:
        size = piece.stop - piece.start
        for name in piece.names:
            gradient = gradients[name]
            entries = row[offset : offset + size]
            if gradient is None:
                entries.zero_()
            else:
                entries.copy_(gradient.reshape(-1)[piece.start : piece.stop])
            offset += size


def _buffer(like: Tensor, K: int, width: int, scratch: Path | None) -> Tensor:
    """[K, width], on disk if `scratch` is given: its pages are cache, which the system can reclaim."""
    if scratch is None:
        return like.new_empty(K, width)
    mapping = torch.from_file(str(scratch), shared=True, size=K * width, dtype=like.dtype)
    scratch.unlink()  # the mapping keeps it until it is released, however this process ends
    return mapping.view(K, width)


def _inner(a: Tensor, b: Tensor) -> Floats:
    """a bᵀ for a, b [K, n], in fp64."""
    total = torch.zeros(len(a), len(b), dtype=torch.float64, device=a.device)
    for start in range(0, a.shape[1], FP64_COLUMNS):
        columns = slice(start, start + FP64_COLUMNS)
        total += a[:, columns].double() @ b[:, columns].double().T
    return np.asarray(total.cpu().numpy())


def squared_norm(tensor: Tensor) -> float:
    """||x||² in fp64, without an fp64 copy of x."""
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64).square())
