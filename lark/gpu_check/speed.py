"""Checks of scoring and generation at real widths: the code that runs use, its memory and its speed."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from lark.config import Config
from lark.generation import engine as engines
from lark.generation.engine import Request, Sampling
from lark.generation.vllm import VLLMEngine, is_cpu_build
from lark.gpu_check import expectations, settings
from lark.gpu_check.check import CheckPlace, Measurements
from lark.gpu_check.peak_memory import Peak
from lark.gpu_check.planned import memory_compared, planner_for, rate_of
from lark.gpu_check.student import whole, written
from lark.models.chat import Encoded
from lark.models.load import load_tokenizer
from lark.models.shapes import Shape
from lark.models.varlen import VARLEN
from lark.pipeline.operations.score import SCORE
from lark.planner.costs import forward_flops, kv_bytes_per_token
from lark.planner.estimates import precision_bytes
from lark.scoring.forward import LoadedStudent, batches, response_statistics
from lark.scoring.pass_sizes import batch_tokens
from lark.work.devices import use_device
from lark.work.machine import GIB, memory_gib
from lark.work.operation import Step

LONGEST = {"cuda": 32_768, "cpu": 1_024}
"""Tokens of the longest trajectory that is scored."""
PROMPT = 150
ANSWERS = {"cuda": (256, 2048), "cpu": (8, 64)}
"""Answers that are generated, and the tokens of each."""
MARGIN_GIB = 6.0
"""What vLLM needs on a GPU beside weights and cache, at most: activations and CUDA graphs."""


def scoring_settings(place: CheckPlace, student: str, longest: int) -> list[str]:
    """The settings of a scoring pass, as they could be given to run.py."""
    return [
        "student=own", f"student.path='{student}'", f"student.max_length={longest}",
        f"student.dtype={settings.dtype(place)}", *settings.machine(place, 1),
    ]  # fmt: skip


def scoring(place: CheckPlace) -> Measurements:
    """The forward pass over trajectories of up to 32,768 tokens: kernels, memory and tokens per second."""
    device = _start(place)
    longest = LONGEST[place.device]
    sample = whole(place)
    folder = str(written(place, sample))
    config = settings.composed(scoring_settings(place, folder, longest))
    peak = Peak(device)
    student = LoadedStudent.load(folder, config.student, device, fused=config.scoring.liger)
    if place.cuda:
        expectations.expect_packs(student.packs, student.model.config._attn_implementation, VARLEN)
        expectations.expect_liger(uses_liger(student.model))
    lengths = [longest, *[longest // 2] * 2, *[longest // 8] * 8]
    encoded = random_trajectories(lengths, sample.shape.vocabulary)
    memory = memory_gib("cuda") if place.cuda else 0.0
    tokens = batch_tokens(config.hardware, config.student, sample.shape, memory)
    _score(student, encoded, tokens)  # compiles kernels
    seconds = _score(student, encoded, tokens)
    planner = planner_for(config, lengths)
    compared, figures = memory_compared(place, peak.gib(), SCORE.cost(planner, Step(SCORE, ())))  # type: ignore[misc]
    responses = np.array([e.n_response for e in encoded])
    flops = forward_flops(sample.shape, np.array(lengths), responses).forward
    rate = rate_of("forward", sum(lengths) / seconds, flops / sum(lengths), planner)
    speed = f"{rate['tokens_per_second']:,.0f} tokens/s, {flops / seconds / 1e12:.2f} TFLOP/s"
    kind = "packs" if student.packs else "padded batches"
    implementation = student.model.config._attn_implementation
    text = f"{sample.name}, {kind} of {implementation}: {compared}, {speed}"
    return Measurements(
        text, {**figures, "pass_seconds": seconds, "liger": uses_liger(student.model)}, [rate]
    )


def random_trajectories(lengths: list[int], vocabulary: int) -> list[Encoded]:
    generator = np.random.default_rng(0)
    return [
        Encoded(generator.integers(2, vocabulary, length).tolist(), min(PROMPT, length // 2), False)
        for length in lengths
    ]


def _score(student: LoadedStudent, encoded: list[Encoded], tokens: int) -> float:
    """Seconds to score trajectories in batches of so many tokens, as a scoring pass cuts them."""
    start = time.perf_counter()
    lengths = [len(e.ids) for e in encoded]
    for batch in batches(lengths, tokens, padded=not student.packs):
        for statistics in response_statistics(student, [encoded[i] for i in batch]):
            statistics.surprisal.sum().item()  # waits for the device
    return time.perf_counter() - start


def uses_liger(model: PreTrainedModel) -> bool:
    """Whether a model's norms are Liger's."""
    forwards = [part.forward for part in model.modules() if "RMSNorm" in type(part).__name__]
    return any(forward.__module__.startswith("liger_kernel") for forward in forwards)


def _start(place: CheckPlace) -> str:
    device = "cuda:0" if place.cuda else "cpu"
    use_device(device)
    return device


def generation_settings(place: CheckPlace, student: str, share: float) -> list[str]:
    """The settings of generation. `share`: of a GPU's memory that vLLM may use."""
    memory = [f"engine.memory={share:.3f}"] if place.cuda else []
    length = PROMPT + ANSWERS[place.device][1]
    return [*scoring_settings(place, student, length), "engine=vllm", *memory]


def generation(place: CheckPlace) -> Measurements:
    """Answers of vLLM with half the cache that they need: attention, preemptions and tokens per second."""
    expectations.expect_gpu_build(place.cuda and is_cpu_build())
    device = _start(place)
    sample = whole(place)
    folder = str(written(place, sample))
    count, tokens = ANSWERS[place.device]
    config = settings.composed(generation_settings(place, folder, memory_share(place, sample.shape)))
    tokenizer = load_tokenizer(folder, None, f"student.path={folder}")
    started = engines.start(config.engine, config.student, folder, tokenizer, device)
    assert isinstance(started, VLLMEngine)
    with engines.running(started):
        backends = attention_backends(started)
        if place.cuda:
            expectations.expect_backend(backends)
        prompts = random_trajectories([PROMPT] * count, sample.shape.vocabulary)
        requests = [Request(tuple(e.ids), seed, tokens) for seed, e in enumerate(prompts)]
        sampling = Sampling(0.6, 0.95, -1, 1.1, 1, ())
        engines.answers(started, requests[:2], sampling)  # compiles
        with counting(started) as counts:
            start = time.perf_counter()
            answers = engines.answers(started, requests, sampling)
            seconds = time.perf_counter() - start
    written_tokens = sum(generation.n_tokens for samples in answers for generation in samples)
    rate = _decoding_rate(config, sample.shape, written_tokens, seconds, counts.steps)
    text = (
        f"{sample.name}, {backends}: {written_tokens / seconds:,.0f} tokens/s, {counts.preemptions}"
        f" preemptions of {count} answers, {counts.repeated:,} tokens computed again"
    )
    figures = {**vars(counts), "answering_seconds": seconds, "answers": count, "attention": backends}
    return Measurements(text, figures, [rate])


def memory_share(place: CheckPlace, shape: Shape) -> float:
    """The share of a GPU's memory with which vLLM's cache holds half of the answers."""
    if not place.cuda:
        return 1.0
    count, tokens = ANSWERS[place.device]
    element = precision_bytes(settings.dtype(place))
    cache = count * (PROMPT + tokens) * kv_bytes_per_token(shape, element) / 2
    needed = (shape.parameters * element + cache) / GIB + MARGIN_GIB
    return min(0.9, needed / memory_gib("cuda"))


def attention_backends(engine: VLLMEngine) -> str:
    """The implementations of attention that vLLM has chosen for the model's layers."""
    context = engine.llm.llm_engine.vllm_config.compilation_config.static_forward_context
    chosen = [layer.attn_backend.get_name() for layer in context.values() if hasattr(layer, "attn_backend")]
    return ", ".join(dict.fromkeys(chosen))


@dataclass
class SchedulerCounts:
    """What vLLM's scheduler did."""

    steps: int = 0
    preemptions: int = 0
    repeated: int = 0
    """Tokens of preempted answers, which are computed again unless the cache still has them."""


@contextmanager
def counting(engine: VLLMEngine) -> Iterator[SchedulerCounts]:
    """Count the steps and preemptions of an engine, which runs in this process."""
    counts = SchedulerCounts()
    core = engine.llm.llm_engine.engine_core.engine_core
    scheduler = core.scheduler
    preempt, schedule = scheduler._preempt_request, scheduler.schedule
    scheduler._preempt_request = partial(_preempted, counts, preempt)
    scheduler.schedule = partial(_scheduled, counts, schedule)
    try:
        yield counts
    finally:
        scheduler._preempt_request = preempt
        scheduler.schedule = schedule


def _preempted(counts: SchedulerCounts, preempt: Any, request: Any, *arguments: Any, **options: Any) -> Any:
    counts.preemptions += 1
    counts.repeated += request.num_computed_tokens
    return preempt(request, *arguments, **options)


def _scheduled(counts: SchedulerCounts, schedule: Any, *arguments: Any, **options: Any) -> Any:
    counts.steps += 1
    return schedule(*arguments, **options)


def _decoding_rate(config: Config, shape: Shape, tokens: int, seconds: float, steps: int) -> dict[str, Any]:
    """The rate of one engine (lark/planner/measured.py)."""
    together = tokens / steps
    element = precision_bytes(config.student.dtype)
    cache = kv_bytes_per_token(shape, element) * ceil(config.student.max_length / 2)
    return {
        "kind": "decoding",
        "engine": config.engine.name,
        "tokens_per_second": tokens / seconds,
        "together": together,
        "step_bytes": shape.parameters * element + together * cache,
        "layers": shape.layers,
        "eager": config.engine.is_eager("cuda" if config.hardware.device == "cuda" else "cpu"),
        "student": config.student.path.rpartition("/")[2],
    }
