"""Sizes of batches and of forward passes, for the scorer and the planner. Imports no model code."""

from dataclasses import replace

from lark.config import Hardware, Student
from lark.models.pass_memory import forward_bytes, score_bytes
from lark.models.shapes import Shape, shape_of
from lark.work.devices import gpu_gib
from lark.work.machine import GIB, room_gib
from lark.work.operation import Job

BATCH_TOKENS = (65536, 32768, 16384)
"""Tokens of a scoring batch that are tried, the most first. More are no faster."""

CPU_TOKENS = 2048
"""Tokens of one forward pass on CPU. With SmolLM2, 1,024 to 4,096 are equally fast. 512 is 5% slower,
because every pass has a fixed cost; 16,384 is 10% slower, because activations of this size leave the cache
and their memory is allocated in every layer.
"""
CPU_PADDING = 32
"""Tokens of padding that cost as much as one more forward pass on CPU: about 26 with SmolLM2."""


def batch_tokens(hardware: Hardware, student: Student, shape: Shape | None, memory_gib: float) -> int:
    """Tokens of a scoring batch: as configured, or as many as a GPU of this size has room for. 0: a CPU."""
    if hardware.score_tokens:
        return hardware.score_tokens
    if memory_gib and shape is not None:
        element = 4 if student.dtype == "float32" else 2
        for tokens in BATCH_TOKENS:
            scores = score_bytes(shape, student.attention, student.max_length)
            needed = element * shape.parameters + forward_bytes(shape, tokens, element, scores)
            if needed <= room_gib(memory_gib) * GIB:
                return tokens
    return BATCH_TOKENS[-1]


def job_tokens(job: Job, student: Student) -> int:
    """`batch_tokens` in the process that computes them."""
    shape = shape_of(replace(student, path=job.weights))
    return batch_tokens(job.config.hardware, student, shape, gpu_gib(job))
