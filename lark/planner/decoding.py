"""The speed and the memory of generation: an engine writes as many answers at once as its cache has room for.
Pure functions.
"""

from dataclasses import dataclass

from lark.config import EngineSettings
from lark.generation.engine import ENGINES, WATERMARK
from lark.models.pass_memory import forward_bytes
from lark.models.shapes import Shape
from lark.planner.costs import kv_bytes_per_token
from lark.planner.throughput import A100, LOAD_BYTES, START_SECONDS, Throughput
from lark.work.machine import GIB, RESERVED_GIB

STEP_TOKENS = 8192
"""Prompt tokens that vLLM reads in one step on a GPU. It reserves memory for their activations."""
CONCURRENT, MANY_CONCURRENT = 256, 1024
"""Sequences that vLLM decodes at most at once; the second on GPUs of 70 GiB or more that are faster than an
A100.
"""
AGE = 0.8
"""Tokens in the cache of an answer that is being written, relative to the mean length of answers. Half of its
own length on average, but long answers are written for longer: E[L²] / 2E[L], log-normal with a σ of 0.7.
"""


@dataclass(frozen=True)
class Decoder:
    """An engine with a model, and the hardware that it runs on. Of several GPUs that share a model, one."""

    engine: EngineSettings
    gpus: int
    """GPUs that share a model."""
    shape: Shape
    element: int
    """Bytes of a weight, and of a number in the cache."""
    hardware: Throughput
    longest: int
    """Tokens of the longest sequence."""

    @property
    def weights(self) -> float:
        """Bytes of weights."""
        return self.shape.parameters * self.element / self.gpus

    @property
    def kv(self) -> float:
        """Bytes of a token in the cache."""
        return kv_bytes_per_token(self.shape, self.element) / self.gpus

    @property
    def needed_bytes(self) -> float:
        """Memory with which it starts: its cache must have room for at least one sequence of full length.
        vLLM leaves a part of a GPU to others.
        """
        cache = self.kv * self.longest
        if not self._continuous:
            return self.weights + cache
        if not self._on_gpu:
            return self.weights + max(cache, self.engine.kv_cache_gib * GIB)
        return (self.weights + self._workspace + cache) / self.engine.memory_share

    def together(self, answers: float, prompt: float, length: float) -> float:
        """Answers that one engine writes at once, if they have these mean lengths. `answers`: those of all
        engines.
        """
        most = min(self.engine.batch, answers / self._engines)
        if self._continuous:
            room = self._cache_bytes / self._cached(prompt, length)
            most = min(self._most, answers / self._engines, room)
        return max(1.0, most)

    def seconds(self, answers: float, prompt: float, length: float, flops: float) -> float:
        """Time to write answers of this mean length with all engines.

        A decoding step reads all weights, while it computes, and then every sequence's cache.
        """
        together = self.together(answers, prompt, length)
        steps = answers / self._engines * length / together
        reading = self.weights / self.hardware.decoding_bandwidth
        products = flops / self.hardware.rate("decoding", self.shape, half=self.element == 2) / steps
        cached = together * self._cached(prompt, length)
        step = self.hardware.decoding_step(self.engine, self.shape.layers, self.weights + cached)
        start = START_SECONDS[self.hardware.machine.device] + ENGINES[self.engine.name].start_seconds
        return start + self.weights / LOAD_BYTES + steps * (step + max(products - reading, 0.0))

    @property
    def _engines(self) -> int:
        return max(1, self.hardware.machine.world // self.gpus)

    def _cached(self, prompt: float, length: float) -> float:
        """Bytes in the cache of an answer that is being written."""
        return self.kv * (prompt + AGE * length)

    @property
    def _continuous(self) -> bool:
        """Whether it fills a cache of fixed size (vLLM, SGLang)."""
        return ENGINES[self.engine.name].continuous

    @property
    def _on_gpu(self) -> bool:
        return self.hardware.machine.device == "cuda"

    @property
    def _workspace(self) -> float:
        """Bytes of activations."""
        return forward_bytes(self.shape, STEP_TOKENS, self.element) / self.gpus

    @property
    def _cache_bytes(self) -> float:
        """Size of the cache that answers may fill."""
        if not self._on_gpu:
            return self.engine.kv_cache_gib * GIB
        share = self.hardware.memory_gib * self.engine.memory_share - RESERVED_GIB["cuda"]
        return (1 - WATERMARK) * (share * GIB - self.weights - self._workspace)

    @property
    def _most(self) -> int:
        is_large = self.hardware.memory_gib >= 70 and self.hardware.tflops > A100.tflops
        return MANY_CONCURRENT if is_large else CONCURRENT
