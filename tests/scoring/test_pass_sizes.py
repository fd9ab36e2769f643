"""Scoring batches are as large as the memory of a GPU allows."""

from pathlib import Path

import pytest

from lark.config import Config
from lark.pipeline.operations.score_costs import _batch_tokens
from lark.planner.estimates import planner_of
from lark.planner.lengths import shortest
from lark.planner.throughput import Throughput
from lark.scoring import pass_sizes
from lark.work.machine import Machine
from tests.conftest import composed, job_of


def planned(config: Config, device: str, memory_gib: float) -> int:
    planner = planner_of(config, Throughput(Machine(device, 1, 1, 1), 1.0, memory_gib, 1.0), shortest())
    assert planner is not None
    return _batch_tokens(planner)


@pytest.mark.parametrize(
    ("student", "memory_gib", "tokens"),
    [
        ("qwen7b", 80.0, 65536),
        ("qwen7b", 40.0, 65536),
        ("qwen7b", 24.0, 32768),
        ("qwen7b", 16.0, 16384),  # which does not fit either: the planner refuses it
        ("qwen1.5b", 24.0, 65536),
    ],
)
def test_a_batch_has_as_many_tokens_as_fit_in_the_plan_and_in_the_run(
    student: str, memory_gib: float, tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = composed(f"student='{student}'", "hardware=auto")
    assert planned(config, "cuda", memory_gib) == tokens
    monkeypatch.setattr(pass_sizes, "gpu_gib", lambda job: memory_gib)
    job = job_of(config, tmp_path, weights=config.student.path, machine=Machine("cuda", 1, 1, 1))
    assert pass_sizes.job_tokens(job, config.student) == tokens


def test_a_cpu_has_batches_of_the_same_size_wherever_it_is_and_a_setting_counts_more(tmp_path: Path) -> None:
    config = composed("student=qwen7b", "hardware=cpu")
    assert planned(config, "cpu", 1000.0) == pass_sizes.job_tokens(job_of(config, tmp_path), config.student)
    assert planned(config, "cpu", 1000.0) == 16384
    configured = composed("student=qwen7b", "hardware=a100x8", "hardware.score_tokens=5000")
    assert planned(configured, "cuda", 80.0) == 5000
