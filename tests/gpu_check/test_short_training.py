"""Checks of training, on CPU: what they measure is the training that ran."""

from mmap import mmap
from pathlib import Path

import pytest

from lark.errors import LarkError
from lark.gpu_check import short_training
from lark.gpu_check.check import CheckPlace
from lark.gpu_check.expectations import expect_planned_memory, losses_within
from lark.gpu_check.peak_memory import Peak
from lark.gpu_check.student import Sample
from lark.work.machine import GIB


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpu_check")


def test_memory_is_at_least_the_optimizers_and_at_most_the_planners(folder: Path) -> None:
    measured = short_training.memory(CheckPlace("cpu", 1, folder / "memory"))
    state_gib = 16 * Sample("small", 4).shape.parameters / GIB
    peak = measured.figures["peak_gib"]
    assert 0.8 * state_gib < peak <= 1.1 * measured.figures["planned_gib"]
    (rate,) = measured.rates
    seconds = measured.figures["step_seconds"][1:]
    tokens = 3 * short_training.PACK["cpu"]
    assert rate["tokens_per_second"] == pytest.approx(tokens / (sum(seconds) / len(seconds)), rel=0.01)


def test_only_the_poisoned_step_of_an_offloaded_run_is_skipped(folder: Path) -> None:
    assert short_training.offload(CheckPlace("cpu", 1, folder / "offload")).text.startswith(
        "1 poisoned step skipped, 3 steps taken"
    )


def test_waiting_is_the_share_of_time_that_is_lost_to_the_slowest() -> None:
    assert short_training.waiting_share([[1.0, 2.0], [1.0, 2.0]]) == pytest.approx(0.0)
    # In each micro-step, one of two processes works for 1 s and the other for 3 s.
    assert short_training.waiting_share([[1.0, 3.0], [3.0, 1.0]]) == pytest.approx(1 / 3)
    assert short_training.waiting_share([[4.0], [0.0], [0.0], [0.0]]) == pytest.approx(3 / 4)


def test_lengths_are_those_of_the_planners_pool() -> None:
    lengths = short_training.unequal(32_768, 20_000)
    assert 5_700 < sorted(lengths)[10_000] < 6_300 and max(lengths) == 32_768
    assert max(short_training.unequal(512, 20_000)) == 512


def test_memory_beyond_the_planners_estimate_fails() -> None:
    expect_planned_memory(10.9, 10.0)
    with pytest.raises(LarkError, match=r"11.10 GiB, more than 1.1 times the planner's 10.00"):
        expect_planned_memory(11.1, 10.0)


def test_other_losses_fail() -> None:
    assert losses_within([2.0, 1.0], [2.0, 1.001], 1e-2).startswith("losses 1.0e-03")
    for losses in ([2.0, 1.1], [2.0, float("nan")], [2.0]):
        with pytest.raises(LarkError):
            losses_within(losses, [2.0, 1.0], 1e-2)


def test_the_peak_on_cpu_is_of_memory_that_was_returned() -> None:
    peak = Peak("cpu")
    block = mmap(-1, 200 * 2**20)  # not from the allocator, which may have kept as much from other tests
    block[:: 2**12] = b"x" * len(block[:: 2**12])  # memory is only used when it is written to
    block.close()
    assert 0.9 * 200 / 1024 < peak.gib() < 2 * 200 / 1024
