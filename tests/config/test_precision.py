"""`auto` is the precision that this machine computes fast, and has the fingerprints of that precision."""

from pathlib import Path

import pytest

from lark import processors
from lark.errors import LarkError
from lark.pipeline.plan import make_plan
from lark.store.store import Checksums
from tests.conftest import composed

WITH = "processor : 0\nflags\t\t: fpu avx2 avx512f avx512_bf16\n"
AMX = "processor : 0\nflags\t\t: fpu amx_bf16 amx_tile\n"
WITHOUT = "processor : 0\nflags\t\t: fpu avx2 avx512f\n"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine without GPUs, whose CPU multiplies bfloat16 fast unless a test sets another one."""
    monkeypatch.setattr(processors, "visible_gpus", lambda: 0)
    monkeypatch.setattr(processors, "cpu_multiplies_bfloat16", lambda: True)
    return monkeypatch


@pytest.mark.parametrize(("text", "expected"), [(WITH, True), (AMX, True), (WITHOUT, False), ("", False)])
def test_the_kernel_lists_the_instructions(
    text: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processors, "CPU_INFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text(text)
    assert processors.cpu_multiplies_bfloat16.__wrapped__() is expected


def test_a_system_without_the_list_has_no_instructions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processors, "CPU_INFO", tmp_path / "cpuinfo")
    assert processors.cpu_multiplies_bfloat16.__wrapped__() is False


@pytest.mark.parametrize(
    ("gpus", "fast", "device", "expected"),
    [
        (0, True, "auto", "bfloat16"),
        (0, False, "auto", "float32"),
        (2, False, "auto", "bfloat16"),
        (2, False, "cpu", "float32"),
        (0, False, "cuda", "bfloat16"),
    ],
)
def test_auto_is_what_the_device_computes_fast(
    gpus: int, fast: bool, device: str, expected: str, machine: pytest.MonkeyPatch
) -> None:
    machine.setattr(processors, "visible_gpus", lambda: gpus)
    machine.setattr(processors, "cpu_multiplies_bfloat16", lambda: fast)
    config = composed("student=smollm2", f"hardware.device={device}", "method.judge.dtype=auto")
    assert (config.student.dtype, config.method.judge.dtype) == (expected, expected)
    assert config.training.bf16 is (expected == "bfloat16")


@pytest.mark.parametrize("fast", [False, True])
def test_auto_has_the_fingerprints_of_the_explicit_precision(
    fast: bool, machine: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine.setattr(processors, "cpu_multiplies_bfloat16", lambda: fast)
    explicit = ["student.dtype=bfloat16", "training.bf16=true"] if fast else ["student.dtype=float32"]

    def folders(*settings: str) -> list[Path]:
        config = composed("student=smollm2", f"outputs={tmp_path}", *settings)
        plan = make_plan(config, Checksums(config.outputs_path))
        return [artifact.folder for step in plan for artifact in step.artifacts]

    other = folders("student.dtype=float32" if fast else "student.dtype=bfloat16")
    assert folders() == folders(*explicit) != other


@pytest.mark.parametrize("fast", [False, True])
def test_the_demo_is_in_float32_on_every_cpu(fast: bool, machine: pytest.MonkeyPatch) -> None:
    machine.setattr(processors, "cpu_multiplies_bfloat16", lambda: fast)
    config = composed()
    assert (config.student.dtype, config.training.bf16) == ("float32", False)


def test_another_precision_is_refused() -> None:
    with pytest.raises(LarkError, match=r"student\.dtype=half: choose one of auto, float32, bfloat16"):
        composed("student.dtype=half")
