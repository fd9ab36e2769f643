"""The host's memory that an offloaded optimizer needs. Pure functions; the planner's arithmetic."""

from math import ceil

from lark.models.shapes import Shape
from lark.training.memory import trained_parameters

PAGED = 4 + 8
"""Bytes per parameter of an offloaded optimizer in ordinary host memory: fp32 master weight, two moments."""
GROUP = 10**9
"""Parameters that ZeRO-3 updates at a time (DeepSpeed's `sub_group_size`)."""


def offloaded_bytes(shape: Shape, lora: int, world: int) -> float:
    """Host memory that an offloaded optimizer needs in all processes together.

    ZeRO-3 has the fp32 gradients twice, in pinned memory: those that are summed over micro-steps, and those
    that a step reads.
    """
    trained = trained_parameters(shape, lora)
    part = ceil(trained / world)
    groups = ceil(part / GROUP)
    pinned = _pinned_bytes(4 * part) + groups * _pinned_bytes(4 * min(part, GROUP))
    return world * (PAGED * part + pinned)


def _pinned_bytes(size: int) -> int:
    """Size of a pinned buffer, which PyTorch rounds up to a power of two (CachingHostAllocator)."""
    return 1 << (size - 1).bit_length()
