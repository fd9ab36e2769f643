"""How many answers an engine writes at once, and with it the time and the memory of generation."""

from dataclasses import replace

import numpy as np
import pytest

from lark.models.shapes import shape_of
from lark.planner.decoding import AGE, CONCURRENT, MANY_CONCURRENT, Decoder
from lark.planner.throughput import GPUS, Throughput
from lark.work.machine import GIB, Machine
from tests.conftest import composed

LENGTH, PROMPT = 8000.0, 150.0


def decoder(student: str, gpu: str, memory_gib: float, *settings: str) -> Decoder:
    config = composed(f"student='{student}'", "hardware=a100x8", "engine=vllm", *settings)
    shape = shape_of(config.student)
    assert shape is not None
    machine = Machine("cuda", 8, 1, 1)
    speed = Throughput(machine, GPUS[gpu].tflops, memory_gib, GPUS[gpu].bandwidth)
    return Decoder(config.engine, config.engine.tensor_parallel, shape, 2, speed, 32768)


@pytest.mark.parametrize(
    ("student", "gpu", "memory_gib", "at_once"),
    [
        ("qwen7b", "A100", 80.0, 150),  # 57,344 bytes per token, and about 930,000 tokens
        ("qwen7b", "H100", 80.0, 150),
        ("qwen7b", "RTX 4090", 24.0, 13),
        ("qwen1.5b", "A100", 80.0, CONCURRENT),  # vLLM's own limit
        ("qwen1.5b", "H100", 80.0, 370),
    ],
)
def test_as_many_answers_are_written_at_once_as_the_cache_holds(
    student: str, gpu: str, memory_gib: float, at_once: int
) -> None:
    engine = decoder(student, gpu, memory_gib)
    together = engine.together(100_000, PROMPT, LENGTH)
    assert together == pytest.approx(at_once, rel=0.04)
    assert engine.together(8 * 5, PROMPT, LENGTH) == 5, "no more than there are"
    cache = together * engine.kv * (PROMPT + AGE * LENGTH)
    assert engine.weights + cache < 0.9 * memory_gib * GIB
    assert together < MANY_CONCURRENT


def test_a_shared_model_leaves_more_room_for_answers() -> None:
    alone, shared = (decoder("qwen7b", "A100", 40.0, f"engine.tensor_parallel={n}") for n in (1, 2))
    assert shared.together(10**6, PROMPT, LENGTH) > 2 * alone.together(10**6, PROMPT, LENGTH)
    assert shared.needed_bytes == pytest.approx(alone.needed_bytes / 2)


def test_an_engine_starts_where_one_sequence_of_full_length_fits_into_its_part_of_the_memory() -> None:
    engine = decoder("qwen7b", "A100", 80.0)
    least = engine.needed_bytes / GIB
    assert least * 0.9 > (engine.weights + engine.kv * 32768) / GIB
    smaller = replace(engine, hardware=replace(engine.hardware, memory_gib=least))
    assert smaller.together(10**6, PROMPT, LENGTH) < 5
    assert decoder("qwen7b", "A100", 80.0, "engine.memory=0.5").needed_bytes > engine.needed_bytes


def test_a_smaller_cache_takes_longer_because_weights_are_read_for_fewer_answers() -> None:
    engine = decoder("qwen7b", "A100", 80.0)
    smaller = replace(engine, hardware=replace(engine.hardware, memory_gib=24.0))
    assert smaller.seconds(12_165, PROMPT, LENGTH, 0.0) > 2 * engine.seconds(12_165, PROMPT, LENGTH, 0.0)


def test_answers_of_different_lengths_have_this_part_of_their_mean_length_in_the_cache() -> None:
    """Of those that are being written at a random moment."""
    random = np.random.default_rng(0)
    lengths = random.lognormal(0.0, 0.7, 200_000)
    written = random.choice(lengths, 200_000, p=lengths / lengths.sum()) * random.random(200_000)
    assert written.mean() / lengths.mean() == pytest.approx(AGE, abs=0.03)
