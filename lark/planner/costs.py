"""The cost of a student, from its shape alone: floating-point operations and bytes. Pure functions; the
planner's arithmetic.

A product of an [a, b] and a [b, c] matrix counts as 2abc. Attention is causal, so half of each n × n square
is computed.
"""

from dataclasses import dataclass, replace

import numpy as np

from lark.models.shapes import Shape
from lark.training.constants import BUCKET, LOSS_CHUNK

GIB = 2**30
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

    def training(self, recompute: bool, frozen: bool) -> float:
        """FLOPs of forward and backward. A backward pass costs two forwards: the gradients of activations
        and of weights.

        `recompute`: gradient checkpointing runs the backbone once more. `frozen`: with LoRA, weights have
        no gradients.
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


@dataclass(frozen=True)
class TrainingSetup:
    """Settings that determine the memory of training on one device."""

    world: int
    zero: int
    """ZeRO stage: 0 replicates everything, 2 shards optimizer and gradients, 3 the weights too."""
    tokens: int
    """Tokens in one forward pass."""
    checkpointing: bool
    bf16: bool
    lora: int = 0
    """Rank of the adapters; 0 trains every weight."""
    half: bool = False
    """Whether weights are loaded in 16 bits (lark/training/zero.py:half_weights)."""
    cuda: bool = False
    offload: bool = False
    """Whether what ZeRO-3 shards of the optimizer and the gradients is in the host's memory."""
    bits: int | None = None
    """Bits of the layers' frozen matrices; None: as the other weights."""
    scores: float = 0.0
    """Bytes of attention scores of a token (`score_bytes`)."""


def state_bytes(shape: Shape, setup: TrainingSetup) -> float:
    """Memory of weights, gradients, AdamW's two moments and DeepSpeed's buckets, which does not depend on
    the batch.
    """
    trained = trained_parameters(shape, setup.lora)
    element = 2 if setup.half else 4
    frozen = _frozen_bytes(shape, setup, element) if setup.lora else float(element * shape.vision)
    if setup.zero == 0:
        # fp32 weight, gradient, two moments; PEFT keeps adapters in fp32 with weights of any precision
        return 16.0 * trained + frozen
    sharded = 0.0 if setup.offload else SHARDED * trained / setup.world
    weights = element * trained + frozen
    if setup.zero == 3:
        weights /= setup.world
    return sharded + _bucket_bytes(shape, setup, trained) + weights


def trained_parameters(shape: Shape, lora: int) -> int:
    """Parameters that have gradients: all that text reaches, or adapters of this rank."""
    return lora_parameters(shape, lora) if lora else shape.parameters - shape.vision


NF4_CONSTANTS = (8 + 32 / 256) / 64
"""Bits per weight for the scales of 4-bit blocks: 8 per block of 64, and 32 per 256 blocks (QLoRA, Sec. 3).
"""


def _frozen_bytes(shape: Shape, setup: TrainingSetup, element: int) -> float:
    """Memory of weights that are not trained."""
    if setup.bits is None:
        return float(element * shape.parameters)
    quantized = shape.backbone_matrices
    return quantized * (setup.bits + NF4_CONSTANTS) / 8 + element * (shape.parameters - quantized)


SHARDED = 4 + 8 + 4
"""Bytes per parameter that ZeRO shards: fp32 master weight, two moments, gradient."""


def _bucket_bytes(shape: Shape, setup: TrainingSetup, trained: int) -> float:
    """DeepSpeed's buffers. GPU memory is allocated in full; on CPU only what is used counts.

    ZeRO-2: a bucket of gradients in the weights' precision, and its fp32 copy that is reduced. ZeRO-3: a
    bucket of gradients in fp32, its copy that is reduced, and weights that are gathered. One process has
    nothing to gather.
    """
    element = 2 if setup.half else 4
    used = min(BUCKET, trained)
    allocated = BUCKET if setup.cuda else used
    if setup.zero == 3:
        at_once = max(BUCKET, shape.head, shape.whole_layer)  # a module is gathered whole
        gathered = min(at_once, shape.parameters) if setup.world > 1 else 0
        return 4.0 * (allocated + used) + element * gathered
    reduced = 4.0 * used if setup.half else 0.0
    return element * allocated + reduced


RESUMABLE = 3
"""Checkpoints to resume from that are on disk at once: the last two (lark/training/trainer.py) and the one
being written.
"""


def kept_bytes(shape: Shape, element: int, snapshots: int) -> float:
    """Disk space of a finished training: the student and its snapshots."""
    return float(element * shape.parameters * (1 + snapshots))


def resume_bytes(shape: Shape, setup: TrainingSetup) -> float:
    """Additional disk space until a training is finished: weights and AdamW's two moments; with DeepSpeed,
    the weights twice and fp32 master weights.
    """
    if setup.lora:
        return RESUMABLE * 12.0 * lora_parameters(shape, setup.lora)
    weights = 2 if setup.half else 4
    per_parameter = 2.0 * weights + 12 if setup.zero else 12.0
    return RESUMABLE * per_parameter * shape.parameters


def lora_parameters(shape: Shape, rank: int) -> int:
    """Parameters of the adapters: two thin matrices for each matrix of each layer. Experts have none, because
    PEFT does not adapt their 3-D parameters.
    """
    d, a, k, m = shape.hidden, shape.attention_width, shape.kv_width, shape.intermediate
    mlp = (d + m) * 3 if shape.experts is None else 0
    return shape.layers * rank * ((d + a) * 2 + (d + k) * 2 + mlp)


def activation_bytes(shape: Shape, setup: TrainingSetup) -> float:
    """Memory of the activations for the backward pass: of all layers; with checkpointing, of one and the
    inputs of all.
    """
    element = 2 if setup.bf16 else 4
    layer = _layer_elements(shape) * element
    stored = shape.layers * layer
    if setup.checkpointing:
        stored = layer + shape.layers * shape.hidden * element
    # The head's gradient is in fp32, and also in bf16 if the weights are.
    gradient = 6 if setup.half else 4
    head = 0.0 if setup.lora else gradient * shape.head
    scores = setup.scores * (1 if setup.checkpointing else shape.layers)
    # 2 * layer: the gradients of the current layer
    return setup.tokens * (stored + 2 * layer + scores) + _logits_bytes(shape, setup) + head


def _logits_bytes(shape: Shape, setup: TrainingSetup) -> float:
    """Memory of one chunk of the loss: logits in fp32, which become residuals, and their bf16 copy for the
    products.
    """
    chunk = min(setup.tokens, LOSS_CHUNK["cuda" if setup.cuda else "cpu"])
    return max(float(HEAD_BYTES), chunk * shape.vocabulary * (4.0 + 2 * setup.bf16))


def forward_bytes(shape: Shape, tokens: int, element: int, scores: float = 0.0) -> float:
    """Memory of a forward pass without gradients: the widest layer's intermediate results. `scores`: bytes of
    attention scores of a token.
    """
    return tokens * (_layer_elements(shape) * element / 2 + scores) + HEAD_BYTES


def score_bytes(shape: Shape, attention: str, length: int) -> float:
    """Bytes of one token's attention scores in one layer, in a sequence of this length: those of all heads
    and their softmax in fp32. Only eager attention keeps them.
    """
    is_eager = attention == "eager" or (attention == "auto" and shape.needs_eager)
    return 6.0 * shape.heads * length if is_eager else 0.0


HEAD_BYTES = 2**28
"""The head works on chunks (lark/scoring/statistics.py): under 256 MiB at any length."""


def _layer_elements(shape: Shape) -> int:
    """Elements that one token needs in one layer: norms, Q, K, V, attention's output, and SwiGLU's gate, up
    and product. For each active expert also its input and its output, as computed, weighted and in order.
    """
    routed = 0 if shape.experts is None else 4 * shape.experts.active * shape.hidden
    attention = 2 * shape.attention_width + 2 * shape.kv_width
    return 6 * shape.hidden + attention + 4 * shape.intermediate + routed
