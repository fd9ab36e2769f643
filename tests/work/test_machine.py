"""Unsuitable hardware is reported before anything loads."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lark import processors
from lark.config import EngineSettings, Student
from lark.errors import LarkError
from lark.generation.engine import ENGINES, EngineKind, check_engine
from lark.models import students
from lark.pool.read import read
from lark.work import machine as hardware
from lark.work.machine import memory_gib
from tests.conftest import ALONE, ROOT, checked, composed


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "visible_gpus", lambda: 0)


def test_flash_attention_on_a_cpu() -> None:
    with pytest.raises(
        LarkError, match=r"student\.attention=flash_attention_2 needs a GPU: use student\.attention=auto"
    ):
        checked("student.attention=flash_attention_2")


def test_eight_gpus_where_there_are_none() -> None:
    with pytest.raises(LarkError, match="asks for 8 GPUs on this machine, which has none"):
        checked("hardware=a100x8")


def test_eight_gpus_can_be_planned_for_where_there_are_none(caplog: pytest.LogCaptureFixture) -> None:
    machine = checked("hardware=a100x8", "dry_run=true")
    assert (machine.device, machine.world) == ("cuda", 8)
    assert "the plan is for hardware=a100x8 on another machine" in caplog.text


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["engine=vllm", "engine.tensor_parallel=3"], "does not divide the 8 GPUs"),
        (["training.global_batch=60"], "cannot be divided among 8"),
        (["training.global_batch=4"], "8 processes, but only"),
        (["student.attention=flash_attention_2", "training.bf16=false"], "has no float32"),
    ],
)
def test_a_plan_for_gpus_elsewhere_refuses_what_they_would(asked: list[str], said: str) -> None:
    with pytest.raises(LarkError, match=said):
        checked("hardware=a100x8", "dry_run=true", *asked)


@pytest.mark.parametrize(
    ("present", "visible", "usable"),
    [(0, "0,1", 0), (2, "0,1,2,3", 2), (8, "3,5", 2), (2, "all", 2), (2, "", 0)],
)
def test_a_variable_makes_no_gpus(
    present: int, visible: str, usable: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the real one
    monkeypatch.setattr(processors, "_present_gpus", lambda: present)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert processors.visible_gpus.__wrapped__() == usable


def test_a_scratch_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LarkError, match=r"hardware\.gradient_scratch=.*there is no such folder"):
        checked("analysis.name=gradients", f"hardware.gradient_scratch={tmp_path / 'none'}")


def test_a_python_without_the_packages_reports_how_to_install_them() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "run.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "make setup" in done.stderr and "Traceback" not in done.stderr


GPU = ["hardware.device=cuda", "training.bf16=true"]


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        ({}, "flash-attn is not installed"),
        ({"flash-attn-4": "4.0.0"}, "flash-attn is not installed"),  # it has the module's name, flash_attn
        ({"flash-attn": "1.0.9"}, r"flash-attn 1\.0\.9 is not version 2"),
    ],
)
def test_flash_attention_that_is_not_version_2(
    installed: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise students.importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(hardware, "visible_gpus", lambda: 1)
    monkeypatch.setattr(students.importlib.metadata, "version", version)
    with pytest.raises(
        LarkError, match=rf"{said}: pip install flash-attn==2[\w.]+ --no-build-isolation, or .*=auto"
    ):
        checked("student.attention=flash_attention_2", *GPU)
    installed["flash-attn"] = "2.8.3.post2"
    checked("student.attention=flash_attention_2", *GPU)


def test_a_kernel_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = "student.attention=kernels-community/flash-attn2@v1:flash_attn_func"
    with pytest.raises(
        LarkError, match=r"flash-attn2@v1:flash_attn_func needs a GPU: use student\.attention=auto"
    ):
        checked(kernel)
    monkeypatch.setattr(hardware, "visible_gpus", lambda: 1)
    monkeypatch.setattr(hardware.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        LarkError, match=r"is a kernel from the Hugging Face hub, but the package kernels is not installed"
    ):
        checked(kernel, *GPU)
    monkeypatch.setattr(hardware.importlib.util, "find_spec", lambda name: object())
    checked(kernel, *GPU)
    with pytest.raises(LarkError, match=r"has no float32, which training\.bf16=false needs"):
        checked(kernel, "hardware.device=cuda", "training.bf16=false")


@pytest.mark.parametrize(
    "name", ["flash", "owner/", "/name", "a/b/c", "a/b:c:d", "a b/c", "owner/name@", "owner/name:f-1"]
)
def test_a_name_that_is_no_attention(name: str) -> None:
    with pytest.raises(
        LarkError, match=r"choose one of auto, varlen, sdpa, .*owner/name\[@revision\]\[:function\]"
    ):
        Student(name="s", path="p", attention=name)


def test_an_engine_that_is_not_installed() -> None:
    with pytest.raises(
        LarkError,
        match=r"engine=sglang, but it is not installed: conda env create -f environment-sglang\.yml",
    ):
        checked("engine=sglang")


def test_a_new_engine_that_is_not_installed_is_installed_by_its_own_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only vLLM has a package of its own for machines without a GPU."""
    monkeypatch.setitem(ENGINES, "mine", EngineKind("my.engine:Engine", "my_engine"))
    with pytest.raises(
        LarkError, match=r"engine=mine, but it is not installed: pip install my_engine, or use engine=hf\.$"
    ):
        check_engine(EngineSettings(name="mine"), ALONE, {})


@pytest.mark.parametrize(
    ("asked", "package"),
    [
        (["engine=vllm"], "vllm"),
        (["hardware.zero=2", "hardware.processes=2"], "deepspeed"),
        (["training.lora.rank=4"], "peft"),
        (["stages=[evaluate]"], "math-verify"),
        (["stages=[score]", "student=smollm2", "engine=hf"], "gguf"),
    ],
)
def test_what_is_not_installed_is_named_with_the_version_of_the_environment(
    asked: list[str], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware.importlib.util, "find_spec", lambda name: None)
    listed = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"][-1]["pip"]
    (version,) = (line for line in listed if line.startswith(f"{package}=="))
    with pytest.raises(LarkError) as error:
        checked(*asked)
    assert f"pip install {version}" in str(error.value)


def test_a_pool_without_a_user_turn(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "assistant", "content": "4"}]}) + "\n")
    with pytest.raises(
        LarkError, match=r"pool\.jsonl, line 1: `messages` must be .*one user turn.*it has assistant"
    ):
        list(read(composed("pool=files", f"pool.path={path}").pool))


def test_memory_is_asked_of_the_machine() -> None:
    assert 0.5 < memory_gib("cpu") < 100_000
