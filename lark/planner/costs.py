"""The cost of a student, from its shape alone: floating-point operations and bytes. Pure functions; the
planner's arithmetic.

A product of an [a, b] and a [b, c] matrix counts as 2abc. Attention is causal, so half of each n × n square
is computed.
"""

from dataclasses import dataclass, replace

import numpy as np

from lark.models.shapes import Shape
from lark.training.memory import TrainingSetup, lora_parameters, trained_parameters

Floats = np.ndarray


@dataclass(frozen=True)
class Flops:
    """FLOPs of a forward pass. The head is separate because it sees response positions only and is never
    recomputed.
    """

    backbone: float
    head: float

    @property
    def forward(self) -> float:
        return self.backbone + self.head

    def training(self, recompute: float, frozen: bool) -> float:
        """FLOPs of forward and backward. A backward pass costs two forwards: the gradients of activations
        and of weights.

        `recompute`: the share of the backbone that gradient checkpointing runs once more. `frozen`: with
        LoRA, weights have no gradients.
        """
        backward = 1.0 if frozen else 2.0
        return self.backbone * (1 + backward + recompute) + self.head * (1 + backward)


def forward_flops(shape: Shape, lengths: Floats, projected: Floats, share: float = 1.0) -> Flops:
    """FLOPs of all sequences together: `lengths` tokens each, of which `projected` go through the head
    (paper, App. D.1).

    `share`: of the tokens, those that the layers' matrices are run on. Sequences that begin alike can share
    tokens.
    """
    n = np.asarray(lengths, dtype=np.float64)
    matrices = 2.0 * shape.backbone_matrices * n.sum() * share
    attention = 2.0 * shape.layers * shape.attention_width * np.square(n).sum()
    head = 2.0 * shape.head * np.asarray(projected, dtype=np.float64).sum()
    return Flops(float(matrices + attention), float(head))


def local_flops(shape: Shape, lengths: Floats, projected: Floats, context: int) -> Flops:
    """FLOPs of Local Naturalness: every token goes through the backbone in `context` + 1 blocks, which are
    so short that the cost of attention is negligible, and once through the head (lark/scoring/local.py).
    """
    tokens = float(np.asarray(lengths, dtype=np.float64).sum())
    blocks = (context + 1) * 2.0 * shape.backbone_matrices * tokens
    return replace(forward_flops(shape, lengths, projected), backbone=blocks)


@dataclass(frozen=True)
class SketchShape:
    """Sizes of the sketches of gradients (lark/config/method.py); a side that is not sketched has its own
    size.
    """

    size: int
    words: int
    states: int

    @classmethod
    def of(cls, shape: Shape, size: int | None, words: int | None, states: int | None) -> "SketchShape":
        return cls(size or shape.intermediate, words or shape.vocabulary, states or shape.hidden)

    def numbers(self, shape: Shape) -> float:
        """Numbers in one sketched gradient."""
        sides = [(shape.hidden, shape.attention_width), (shape.hidden, shape.intermediate)]
        layers = sum(min(self.size, a) * min(self.size, b) for a, b in sides)
        return shape.layers * layers + min(self.words, shape.vocabulary) * min(self.states, shape.hidden)

    def flops(self, shape: Shape, tokens: float) -> float:
        """FLOPs to fold both sides of each gradient, and to multiply them: for two matrices per layer, and
        the head.
        """
        layer = shape.attention_width + shape.intermediate + 2 * shape.hidden + 2 * self.size**2
        head = shape.vocabulary + shape.hidden + self.words * self.states
        return 2.0 * tokens * (shape.layers * layer + head)


def gram_flops(shape: Shape, lengths: Floats, projected: Floats, sketch: SketchShape) -> float:
    """FLOPs of the forward-only sketches: one more product with the head, and the sketches."""
    forward = forward_flops(shape, lengths, projected)
    return forward.forward + forward.head + sketch.flops(shape, float(np.sum(lengths)))


def exact_flops(
    shape: Shape, lengths: Floats, projected: Floats, sketch: SketchShape, recompute: bool
) -> float:
    """FLOPs of the sketches with a backward pass: gradients of activations, and none of weights."""
    forward = forward_flops(shape, lengths, projected)
    return forward.training(recompute, frozen=True) + sketch.flops(shape, float(np.sum(lengths)))


def kv_bytes_per_token(shape: Shape, element: int) -> int:
    """Bytes of the keys and values of one position in all layers."""
    return 2 * shape.layers * shape.kv_width * element


RESUMABLE = 3
"""Checkpoints to resume from that are on disk at once: the last two (lark/training/trainer.py) and the one
being written.
"""


def kept_bytes(shape: Shape, element: int, snapshots: int) -> float:
    """Disk space of a finished training: the student and its snapshots."""
    return float(element * shape.parameters * (1 + snapshots))


def resume_bytes(shape: Shape, setup: TrainingSetup) -> float:
    """Additional disk space until a training is finished: weights and AdamW's two moments; with DeepSpeed,
    also fp32 master weights. From these, ZeRO-3 restores the weights that are trained.
    """
    if setup.lora:
        return RESUMABLE * 12.0 * lora_parameters(shape, setup.lora)
    trained = trained_parameters(shape, setup.lora)
    if not setup.zero:
        return RESUMABLE * (4.0 * shape.parameters + 8.0 * trained)
    weights = 2 if setup.half else 4
    saved = shape.vision if setup.zero == 3 else shape.parameters
    return RESUMABLE * (weights * saved + 12.0 * trained)
