"""A worker that runs out of memory ends in a sentence with a setting that needs less, and GPU memory is not
fragmented.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lark.errors import LarkError, WorkerMemoryError, first_line, is_out_of_memory, requested_memory
from lark.pipeline import pipeline
from lark.pipeline.operations.train import TRAIN
from lark.pipeline.plan import make_plan
from lark.pipeline.registry import OPERATIONS
from lark.planner import report
from lark.planner.lengths import assumed
from lark.store.store import Checksums
from lark.work import launch, worker
from lark.work.machine import Machine
from lark.work.operation import EXPANDABLE, Job
from tests.conftest import composed, job_of, work_here

LIMIT_KB = 1_600_000
"""Address space of the worker. It needs 1.2 GB before the first step, and several times that for a pack of
80,000 tokens.
"""
ONE_PACK = ["training.global_batch=600", "hardware.train_tokens=1000000", "hardware.threads=1"]


def test_an_allocation_that_fails_in_training_is_reported_with_a_setting_that_needs_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    unlimited = launch.command

    def limited(*arguments: Any, **more: Any) -> list[str]:
        # Each thread that allocates at the same time as others would reserve 64 MB of addresses for itself.
        script = f'ulimit -v {LIMIT_KB}; export MALLOC_ARENA_MAX=1; exec "$@"'
        return ["bash", "-c", script, "_", *unlimited(*arguments, **more)]

    def only_training_in_a_worker(job: Job, target: str, *rest: Any) -> Any:
        if target != TRAIN.run:
            return work_here(job, target, *rest)
        return launch.run_worker(job, target)  # not from a warm process, which would not have the limit

    monkeypatch.setattr(launch, "command", limited)
    monkeypatch.setattr(pipeline, "run_worker", only_training_in_a_worker)
    overrides = [
        "hardware=cpu",
        "tracking=none",
        f"outputs={tmp_path}",
        "stages=[train]",
        "method=random",
        "budget.size=30",
    ]
    config = composed(*overrides, "pool.questions=20", *ONE_PACK)
    with pytest.raises(LarkError) as failure:
        pipeline.Pipeline(config, tmp_path / "run").run()
    said = str(failure.value)
    assert (
        said.startswith("The train worker ran out of memory (it tried to allocate another ")
        and "log.txt" in said
    )
    assert said.endswith("Use training.gradient_checkpointing=true, and run the command again.")
    assert "Traceback" not in capfd.readouterr().err


def cpu_failure() -> Exception:
    with pytest.raises(RuntimeError) as failure:
        torch.empty(2**50)
    return failure.value


def numpy_failure() -> Exception:
    with pytest.raises(MemoryError) as failure:
        np.ones(2**50)
    return failure.value


GPU = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.1 GiB"
    " is free."
)


@pytest.mark.parametrize(
    ("error", "amount"),
    [
        (cpu_failure(), "4,294,967,296 MiB"),
        (numpy_failure(), "8.00 PiB"),
        (torch.OutOfMemoryError(GPU), "2.00 GiB"),
        (RuntimeError("CUDA error: out of memory"), ""),
        (MemoryError(), ""),
    ],
    ids=first_line,
)
def test_running_out_of_memory_is_recognised_on_every_device(error: Exception, amount: str) -> None:
    assert is_out_of_memory(error)
    assert requested_memory(error) == amount


@pytest.mark.parametrize(
    "error", [RuntimeError("shapes do not match"), ValueError("out of memory"), OSError("No space left")]
)
def test_other_errors_are_not_taken_for_it(error: Exception) -> None:
    assert not is_out_of_memory(error)


def test_a_worker_that_the_kernel_killed_ran_out_of_memory_too(tmp_path: Path) -> None:
    assert isinstance(launch._failure("score", tmp_path, -9), WorkerMemoryError)
    assert not isinstance(launch._failure("score", tmp_path, 1), WorkerMemoryError)


def test_the_first_error_counts_because_the_other_processes_fail_from_losing_that_one(tmp_path: Path) -> None:
    worker.report(torch.OutOfMemoryError(GPU), job_of(composed(), tmp_path, rank=3))
    worker.report(RuntimeError("Connection closed by peer"), job_of(composed(), tmp_path, rank=0))
    assert "ran out of memory (it tried to allocate another 2.00 GiB)" in str(
        launch._failure("train", tmp_path, 1)
    )


@pytest.mark.parametrize(
    ("overrides", "advice"),
    [
        # What is saved must not be filled with activations again.
        (["student=qwen7b", "hardware=a100x8"], "Use hardware.zero=3 hardware.recomputed_layers=28, and"),
        (["student='qwen1.5b'", "hardware=a100x8"], "Use hardware.recomputed_layers=28, and"),
        (
            ["student='qwen1.5b'", "hardware=a100x8", "hardware.zero=0", "hardware.recomputed_layers=28"],
            "Use hardware.zero=2, and",
        ),
        (
            ["student='qwen1.5b'", "hardware=a100x1", "hardware.recomputed_layers=28"],
            "Use hardware.offload=optimizer (slower, ",
        ),
        (
            ["student=own", "student.path=nowhere/unknown", "student.max_length=1024"],
            "Use a device with more memory.",
        ),
    ],
)
def test_the_setting_clearly_reduces_the_estimate_although_the_run_was_expected_to_fit(
    overrides: list[str], advice: str, tmp_path: Path
) -> None:
    config = composed(*overrides, "pool=demo", "benchmark=demo")
    machine = Machine("cuda", config.hardware.processes or 1, 1, 1, elsewhere=True)
    (step,) = [
        step for step in make_plan(config, Checksums(tmp_path), elsewhere=True) if step.operation is TRAIN
    ]
    assert advice in report.relief(config, machine, step, assumed(100, config.student.max_length))


def allocator(job: Job) -> dict[str, str | None]:
    return {"allocator": os.environ.get("PYTORCH_ALLOC_CONF")}


@pytest.mark.parametrize(
    ("device", "users", "expected"),
    [
        ("cuda", {}, EXPANDABLE),
        ("cpu", {}, None),
        ("cuda", {"PYTORCH_ALLOC_CONF": "backend:native"}, "backend:native"),
        ("cuda", {"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, None),
    ],
)
def test_segments_grow_on_gpus_unless_the_user_has_chosen(
    device: str, users: dict[str, str], expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "die_with_parent", lambda: None)
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for name, value in users.items():
        monkeypatch.setenv(name, value)
    job = job_of(composed(), tmp_path, machine=Machine(device, 1, 1, 1), gpus=0, allocator=EXPANDABLE)
    path = launch.write_job(job, "tests.work.test_memory:allocator")
    try:
        assert worker.main(path) == 0
    finally:
        os.environ.pop("PYTORCH_ALLOC_CONF", None)
    assert f'"allocator": {launch.json.dumps(expected)}' in (tmp_path / launch.RESULT).read_text()


def test_only_engines_keep_the_default_allocator_because_gpus_that_share_a_model_exchange_memory() -> None:
    with_models = {operation.name for operation in OPERATIONS if operation.allocator}
    assert with_models == {
        "score",
        "unprompted",
        "local",
        "gram",
        "exact",
        "influence",
        "train",
        "gradients",
        "estimates",
        "teacher_gradients",
        "jacobians",
        "kappa",
    }
