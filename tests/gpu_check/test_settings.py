"""On GPUs, the checks run the code that runs use. Asserted without one: on the exact settings of their
commands, by asking the functions that choose attention, precision and memory.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, PreTrainedConfig

from lark.config import Config
from lark.errors import LarkError
from lark.gpu_check import arithmetic, settings, short_training, speed, stages, student
from lark.gpu_check.check import CheckPlace
from lark.gpu_check.expectations import expect_one_skipped, expect_packs, expect_runs_code
from lark.gpu_check.planned import planner_for
from lark.gpu_check.student import Sample, narrow, whole, wide
from lark.models.attention import attention
from lark.models.shapes import DEMO, shape_of
from lark.models.varlen import VARLEN
from lark.pipeline.operations.score import SCORE
from lark.pipeline.operations.train import TRAIN
from lark.planner.costs import kv_bytes_per_token
from lark.training.worker import _student
from lark.work.machine import Machine
from lark.work.operation import Step

GPUS_GIB = (24, 40, 80)
RUNS: dict[str, Callable[[CheckPlace], Any]] = {
    "packs": stages.packs,
    "scoring": stages.scoring,
    "resume": stages.resume,
    "vllm": stages.vllm,
    "tensor-parallel": stages.tensor_parallel,
}
TRAININGS: dict[str, Callable[[CheckPlace], Any]] = {
    "memory": short_training.memory,
    "offload": short_training.offload,
    "qlora": short_training.qlora,
    "sequence-parallel": short_training.sequence_parallel,
    "waiting": short_training.waiting,
}


class RecordedError(Exception):
    """In place of a process that needs a GPU."""


def gpu(folder: Path, processes: int = 2) -> CheckPlace:
    return CheckPlace("cuda", processes, folder)


def commands(
    check: Callable[[CheckPlace], Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> list[Config]:
    """The configurations of the runs that a check starts."""
    recorded = []

    def record(place: CheckPlace, outputs: Path, overrides: list[str], processes: int) -> str:
        recorded.append(settings.composed(stages._command(place, outputs, overrides, processes)[2:]))
        return ""

    def stop(*_: Any) -> None:
        raise RecordedError

    monkeypatch.setattr(stages, "_run", record)
    monkeypatch.setattr(stages, "_started", stop)
    monkeypatch.setattr(stages, "is_cpu_build", lambda: False)
    with pytest.raises((LarkError, RecordedError)):  # there are no results to compare
        check(gpu(folder))
    return recorded


@pytest.mark.parametrize("name", RUNS)
def test_runs_on_gpus_are_in_bfloat16_with_varlen(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = AutoConfig.from_pretrained(DEMO)
    first, *others = commands(RUNS[name], tmp_path, monkeypatch)
    assert first.student.dtype == "bfloat16" and first.hardware.device == "cuda"
    assert attention(first.student, "cuda:0", model) == VARLEN
    assert first.scoring.liger
    compared_in_float32 = {"packs", "vllm", "tensor-parallel"}
    for other in others:
        is_exact = name in compared_in_float32
        assert other.student.dtype == ("float32" if is_exact else "bfloat16")
        assert (attention(other.student, "cuda:0", model) == VARLEN) != is_exact


def test_resuming_trains_in_bfloat16_with_liger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = commands(stages.resume, tmp_path, monkeypatch)
    assert run.training.bf16 and run.training.liger
    assert _student(run, "cuda:0").attention == VARLEN


@pytest.mark.parametrize("name", ["vllm", "tensor-parallel"])
def test_vllm_is_given_what_flash_attention_supports(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FlashAttention takes half precision only; in float32 vLLM chooses Triton's attention."""
    backend = pytest.importorskip("vllm.v1.attention.backends.flash_attn").FlashAttentionBackend
    run, _ = commands(RUNS[name], tmp_path, monkeypatch)
    shape = shape_of(run.student)
    assert shape is not None and run.engine.name == "vllm"
    assert getattr(torch, run.student.dtype) in backend.supported_dtypes
    assert torch.float32 not in backend.supported_dtypes
    assert backend.supports_head_size(shape.head_size)


@pytest.fixture(params=GPUS_GIB)
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """GPUs with this memory."""
    gib = float(request.param)
    for module in (student, speed):
        monkeypatch.setattr(module, "memory_gib", lambda device: gib)
    return gib


def on_disk(sample: Sample, folder: Path) -> tuple[Path, PreTrainedConfig]:
    """A student's folder without its weights."""
    values = dict(sample.config)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    config.save_pretrained(folder / sample.name)
    return folder / sample.name, config


def requests(
    check: Callable[[CheckPlace], Any], place: CheckPlace, monkeypatch: pytest.MonkeyPatch
) -> list[short_training.ShortTraining]:
    """The trainings that a check asks for."""
    recorded = []

    def record(place: CheckPlace, request: short_training.ShortTraining, name: str = "run") -> Any:
        recorded.append(request)
        if len(recorded) == 2 or check not in (short_training.qlora, short_training.sequence_parallel):
            raise RecordedError
        return None, [{}]

    monkeypatch.setattr(short_training, "trained", record)
    with pytest.raises(RecordedError):
        check(place)
    return recorded


@pytest.mark.parametrize("name", TRAININGS)
def test_trainings_on_gpus_use_the_code_of_runs_and_fit(
    name: str, memory: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = gpu(tmp_path)
    for request in requests(TRAININGS[name], place, monkeypatch):
        folder, model = on_disk(request.sample, tmp_path)
        config = settings.composed([*request.overrides(place, folder), f"hardware.memory_gib={memory}"])
        assert model.vocab_size == 152_064
        assert config.training.bf16 and config.training.liger and config.training.packing
        assert attention(_student(config, "cuda:0"), "cuda:0", model) == VARLEN
        TRAIN.check(config, Machine("cuda", request.processes, 1, 8, elsewhere=True))  # type: ignore[misc]
        estimate = TRAIN.cost(planner_for(config, request.lengths), Step(TRAIN, ()))  # type: ignore[misc]
        assert estimate is not None and estimate.fits, (estimate.memory_gib, memory)
        assert len(request.lengths) % request.batch == 0


def test_the_checks_of_training_have_what_they_are_named_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(student, "memory_gib", lambda device: 80.0)
    place = gpu(tmp_path, 8)
    (full,) = requests(short_training.memory, place, monkeypatch)
    assert full.tokens == max(full.lengths) == 32_768 and full.sample.shape.hidden == 3584
    (poisoned,) = requests(short_training.offload, place, monkeypatch)
    assert poisoned.poisoned and "hardware.offload=optimizer" in poisoned.settings
    plain, quantized = requests(short_training.qlora, place, monkeypatch)
    assert set(quantized.settings) - set(plain.settings) == {"training.lora.bits=4"}
    alone, shared = requests(short_training.sequence_parallel, place, monkeypatch)
    assert set(shared.settings) - set(alone.settings) == {"hardware.sequence_parallel=2"}
    assert shared.tokens == 32_768 and shared.processes == 2
    (several,) = requests(short_training.waiting, place, monkeypatch)
    assert several.processes == 8 and "hardware.zero=2" in several.settings
    assert len(several.lengths) == 3 * several.batch == 3 * 64


def test_scoring_and_generation_use_a_complete_student_that_fits(memory: float, tmp_path: Path) -> None:
    place = gpu(tmp_path)
    sample = whole(place)
    folder, model = on_disk(sample, tmp_path)
    assert (sample.layers, model.vocab_size) == (28, 152_064)
    config = settings.composed(
        [*speed.scoring_settings(place, str(folder), 32_768), f"hardware.memory_gib={memory}"]
    )
    assert config.student.dtype == "bfloat16" and config.scoring.liger
    assert attention(config.student, "cuda:0", model) == VARLEN
    estimate = SCORE.cost(planner_for(config, [32_768]), Step(SCORE, ()))  # type: ignore[misc]
    assert estimate is not None and estimate.fits


def test_vllms_cache_holds_about_half_of_the_answers(memory: float, tmp_path: Path) -> None:
    """Otherwise it never preempts one, and there would be nothing to count."""
    place = gpu(tmp_path)
    sample = whole(place)
    share = speed.memory_share(place, sample.shape)
    config = settings.composed(speed.generation_settings(place, str(on_disk(sample, tmp_path)[0]), share))
    assert config.engine.name == "vllm" and config.student.dtype == "bfloat16"
    count, tokens = speed.ANSWERS["cuda"]
    needed = count * (tokens + speed.PROMPT) * kv_bytes_per_token(sample.shape, 2)
    weights = 2 * sample.shape.parameters
    for vllm_uses_gib in (1.0, speed.MARGIN_GIB):  # beside weights and cache
        cache = (share * memory - vllm_uses_gib) * 2**30 - weights
        assert 0.4 * needed < cache < needed


def test_the_arithmetic_has_the_vocabulary_of_a_real_student() -> None:
    assert arithmetic.VOCABULARY == Sample("qwen7b", 28).shape.vocabulary == 152_064
    assert Sample("qwen1.5b", 28).shape.vocabulary == 152_064


def test_samples_are_the_papers_students_cut_to_fewer_layers(memory: float, tmp_path: Path) -> None:
    for sample in (whole(gpu(tmp_path)), wide(gpu(tmp_path)), narrow(gpu(tmp_path))):
        assert sample.shape.head_size == 128
        assert replace(sample.shape, layers=1) == Sample(sample.architecture, 1).shape


@pytest.mark.parametrize(
    "line",
    [
        "Scoring on padded batches instead of packs: logits differ",
        "PyTorch's variable-length attention is not used: the precision is float32",
        "Scoring with PyTorch's own kernels: Liger's do not run here (no C compiler)",
        "Liger has no kernels for the family llama: training with PyTorch's own",
    ],
)
def test_a_run_that_falls_back_fails_the_check(line: str) -> None:
    expect_runs_code("score: started\n100%")
    with pytest.raises(LarkError, match="fell back to slower code"):
        expect_runs_code(f"score: started\n{line}\n100%")


def test_padded_scoring_fails_the_check() -> None:
    expect_packs(True, VARLEN, VARLEN)
    for packs, implementation in ((False, VARLEN), (True, "sdpa_segments")):
        with pytest.raises(LarkError, match="not varlen on packs"):
            expect_packs(packs, implementation, VARLEN)


def test_a_poisoned_run_that_skips_more_fails_the_check() -> None:
    expect_one_skipped({"2": ["q05/c"]}, "q05/c", [1.0, 0.0, 1.0])
    for skipped in ({}, {"2": ["q05/c"], "3": ["q01/c"]}, {"2": ["q01/c"]}):
        with pytest.raises(LarkError, match="steps were skipped"):
            expect_one_skipped(skipped, "q05/c", [1.0, 0.0, 1.0])
