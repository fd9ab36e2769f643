"""Memory of training on one device, and how many layers it leaves room for without recomputation. Pure
functions; the planner's arithmetic.
"""

from dataclasses import dataclass, replace
from math import ceil

from lark.config import Config
from lark.models.pass_memory import HEAD_BYTES, layer_elements, score_bytes
from lark.models.shapes import Shape
from lark.training.constants import BUCKET, LOSS_CHUNK
from lark.training.zero import half_weights, zero_stage
from lark.work.machine import GIB, Machine, room_gib


@dataclass(frozen=True)
class TrainingSetup:
    """Settings that determine the memory of training on one device."""

    world: int
    zero: int
    """ZeRO stage: 0 replicates everything, 2 shards optimizer and gradients, 3 the weights too."""
    tokens: int
    """Tokens in one forward pass."""
    checkpointing: bool
    """Whether the backward pass computes the activations of layers again, instead of keeping them."""
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
    kept: int = 0
    """With checkpointing: the number of layers, the last ones, whose activations are kept nevertheless."""

    def recomputed(self, shape: Shape) -> int:
        """Number of layers whose activations are computed again."""
        return shape.layers - self.kept if self.checkpointing else 0


def training_setup(
    config: Config, shape: Shape, machine: Machine, longest: int, memory_gib: float
) -> TrainingSetup:
    """Settings that determine the memory of training on one device with `memory_gib`. `longest`: tokens of
    the longest trajectory.
    """
    training = config.training
    hardware = config.hardware
    parts = hardware.sequence_parallel
    zero = zero_stage(config, machine.device, machine.world)
    # A pack holds no more than the trajectories of a step that fall to its process.
    trajectories = ceil(training.global_batch * parts / machine.world)
    capacity = max(hardware.train_tokens, config.student.max_length)
    tokens = ceil(min(capacity, trajectories * longest) / parts)
    setup = TrainingSetup(
        machine.world,
        zero,
        tokens,
        training.gradient_checkpointing,
        training.mixed,
        training.lora.rank,
        half_weights(config, zero),
        machine.device == "cuda",
        hardware.offload != "none",
        training.lora.bits,
        score_bytes(shape, config.student.attention, tokens),
    )
    return replace(setup, kept=_kept_layers(shape, setup, hardware.recomputed_layers, memory_gib))


def _kept_layers(shape: Shape, setup: TrainingSetup, recomputed: int | None, memory_gib: float) -> int:
    """Layers whose activations are kept with checkpointing: all but `recomputed`, or as many as have room on
    a GPU, and one in any case. The memory of a CPU is not filled.
    """
    if recomputed is not None:
        return max(0, shape.layers - recomputed)
    if not (setup.cuda and setup.checkpointing):
        return 0
    # The last layer needs no room: with checkpointing, the backward pass computes its activations first.
    last = activation_bytes(shape, replace(setup, kept=1))
    another = activation_bytes(shape, replace(setup, kept=2)) - last
    room = room_gib(memory_gib) * GIB - state_bytes(shape, setup) - last
    return min(shape.layers, 1 + max(0, int(room / another)))


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


def lora_parameters(shape: Shape, rank: int) -> int:
    """Parameters of the adapters: two thin matrices for each matrix of each layer. Experts have none, because
    PEFT does not adapt their 3-D parameters.
    """
    d, a, k, m = shape.hidden, shape.attention_width, shape.kv_width, shape.intermediate
    mlp = (d + m) * 3 if shape.experts is None else 0
    return shape.layers * rank * ((d + a) * 2 + (d + k) * 2 + mlp)


def activation_bytes(shape: Shape, setup: TrainingSetup) -> float:
    """Memory of the activations for the backward pass: of all layers; with checkpointing, of those that are
    kept, and the inputs of the others.

    The activations of the last layers are freed before those of another one are computed again: together
    they need as much as one layer, or as those that are kept.
    """
    element = 2 if setup.bf16 else 4
    layer = layer_elements(shape) * element
    kept = setup.kept if setup.checkpointing else shape.layers
    whole = max(1, kept)
    stored = whole * layer + (shape.layers - kept) * shape.hidden * element
    # The head's gradient is in fp32, and also in bf16 if the weights are.
    gradient = 6 if setup.half else 4
    head = 0.0 if setup.lora else gradient * shape.head
    # 2 * layer: the gradients of the current layer
    return setup.tokens * (stored + 2 * layer + whole * setup.scores) + _logits_bytes(shape, setup) + head


def _logits_bytes(shape: Shape, setup: TrainingSetup) -> float:
    """Memory of one chunk of the loss: logits in fp32, which become residuals, and their bf16 copy for the
    products.
    """
    chunk = min(setup.tokens, LOSS_CHUNK["cuda" if setup.cuda else "cpu"])
    return max(float(HEAD_BYTES), chunk * shape.vocabulary * (4.0 + 2 * setup.bf16))
