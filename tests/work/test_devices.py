"""GPU selection, tested without a GPU: stand-ins for the driver, nvidia-smi and flash-attn record what is
queried, and when.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lark import processors
from lark.errors import LarkError
from lark.generation import engine as engines
from lark.models.load import load_chat
from lark.models.students import DEMO
from lark.pipeline.machine_check import check_machine
from lark.pipeline.operations.evaluate import GENERATE
from lark.pipeline.operations.score import JUDGE, SCORE
from lark.pipeline.operations.train import TRAIN
from lark.pipeline.pipeline import Pipeline
from lark.pipeline.plan import make_plan, wanted
from lark.planner import throughput
from lark.planner.estimates import estimate
from lark.planner.report import refusal
from lark.store.store import Checksums
from lark.training.zero import zero_stage
from lark.work import devices
from lark.work import machine as hardware
from lark.work.launch import JOB, environment, write_job
from lark.work.machine import Machine, resolve
from lark.work.operation import Operation, Step
from tests.conftest import ROOT, composed, job_of

SMI = """#!/bin/sh
case "$*" in
  -L) for i in $(seq 0 $((GPUS - 1))); do echo "GPU $i: NVIDIA A100-SXM4-80GB (UUID: GPU-$i)"; done;;
  *memory.total*) for i in $(seq 1 $GPUS); do echo 81920; done;;
  *driver_version*) for i in $(seq 1 $GPUS); do echo 580.95.05; done;;
esac
"""


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine whose driver shows $GPUS A100s (8, unless a test sets another number)."""
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(SMI)
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{smi.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("GPUS", "8")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    processors.visible_gpus.cache_clear()
    yield monkeypatch  # type: ignore[misc]
    processors.visible_gpus.cache_clear()


def seen(processes: int, gpus_each: int, machine: Machine) -> list[str]:
    """CUDA_VISIBLE_DEVICES of each worker when its code is imported."""
    env = environment(machine, processes, gpus_each)
    ranks = [{**env, "LOCAL_RANK": str(rank)} for rank in range(processes)]
    return [devices.narrow(each, gpus_each) if gpus_each else each["CUDA_VISIBLE_DEVICES"] for each in ranks]


@pytest.mark.parametrize(
    ("present", "processes", "gpus_each", "expected"),
    [
        ("1", 1, 1, ["0"]),
        ("2", 2, 1, ["0", "1"]),
        ("2", 1, 2, ["0,1"]),
        ("8", 8, 1, list("01234567")),
        ("8", 4, 2, ["0,1", "2,3", "4,5", "6,7"]),
        ("8", 1, 1, ["0"]),  # hardware=a100x1: the others are somebody else's
        ("8", 1, 0, ["0"]),  # and its training does not meet nn.DataParallel
        ("8", 2, 0, ["0,1", "0,1"]),
    ],
)
def test_each_worker_sees_its_own_gpus(
    present: str, processes: int, gpus_each: int, expected: list[str], gpus: pytest.MonkeyPatch
) -> None:
    gpus.setenv("GPUS", present)
    machine = Machine("cuda", processes * max(1, gpus_each), 1, 1)
    assert seen(processes, gpus_each, machine) == expected


def test_gpus_that_the_user_hid_stay_hidden(gpus: pytest.MonkeyPatch) -> None:
    gpus.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert seen(4, 1, Machine("cuda", 4, 1, 1)) == ["4", "5", "6", "7"]
    assert seen(2, 2, Machine("cuda", 4, 1, 1)) == ["4,5", "6,7"]
    gpus.setenv("CUDA_VISIBLE_DEVICES", "GPU-3,GPU-1,-1,GPU-2")
    assert processors.gpu_ids() == ["GPU-3", "GPU-1"]


MIXED = """#!/bin/sh
[ "$1" = -L ] && {
    echo "GPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-a)"
    echo "GPU 1: NVIDIA GeForce GT 1030 (UUID: GPU-b)"
    exit
}
case "$*" in *"-i MIG"*) echo "No devices were found"; exit 6;; esac
case "$*" in *"-i 1"|*"-i GPU-b") ;; *) echo 24564;; esac
case "$*" in *"-i 0"|*"-i GPU-a") ;; *) echo 2048;; esac
"""


@pytest.mark.parametrize(
    ("visible", "gib"),
    [("0", 24564), ("GPU-a", 24564), ("1", 2048), ("0,1", 2048), (None, 2048), ("MIG-c", 2048)],
)
def test_only_the_gpus_that_are_used_are_planned_for(
    visible: str | None, gib: int, tmp_path: Path, gpus: pytest.MonkeyPatch
) -> None:
    """A second, smaller GPU may only drive the screen."""
    (tmp_path / "bin" / "nvidia-smi").write_text(MIXED)
    if visible is not None:
        gpus.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert hardware.memory_gib("cuda") == gib / 1024


def test_a_gpu_that_reports_no_memory_of_its_own_is_planned_as_an_a100(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardware, "query_gpus", lambda what: ["[N/A]"])
    assert hardware.memory_gib("cuda") == 80


def step_gpus(operation: Operation, *overrides: str) -> tuple[int, int | None]:
    """GPUs per process of a step, and its processes, as the pipeline starts them."""
    pipeline = Pipeline.__new__(Pipeline)
    pipeline.config = composed("student=qwen7b", "hardware=a100x8", "dry_run=true", *overrides)
    pipeline.machine = resolve(pipeline.config.hardware, here=False)
    return operation.gpus(pipeline.config), pipeline._processes(Step(operation, ()))


def test_engines_share_a_model_among_their_own_gpus_and_training_sees_its_neighbours() -> None:
    assert step_gpus(GENERATE) == (1, None)
    assert step_gpus(GENERATE, "engine.tensor_parallel=2") == (2, 4)
    assert step_gpus(JUDGE, "method=llm_judge") == (2, 4)
    assert step_gpus(JUDGE, "method=llm_judge", "engine=hf") == (1, None)
    assert step_gpus(TRAIN) == (0, None)
    assert step_gpus(SCORE) == (1, None)


PROBE = """
import json, os, sys
import torch, torch._dynamo  # before it is patched to report CUDA
asked = []
torch.cuda._is_compiled = lambda: True
torch.cuda._device_count_nvml = lambda: len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))
def driver(*_):
    asked.append(os.environ["CUDA_VISIBLE_DEVICES"])
    return 8
torch._C._cuda_getDeviceCount = driver
available = torch.cuda.is_available
def is_available():
    asked_of_nvml.append(os.environ["CUDA_VISIBLE_DEVICES"])
    return available()
asked_of_nvml = []
torch.cuda.is_available = is_available
from lark.work import worker
from pathlib import Path
worker.main(Path(sys.argv[1]))
loaded = [m for m in sys.modules if m.startswith("lark.")]
print(json.dumps({"driver": asked, "nvml": asked_of_nvml, "loaded": loaded}))
"""


@pytest.mark.parametrize("operation", [GENERATE, JUDGE])
def test_importing_an_engines_worker_never_initialises_cuda(
    operation: Operation, tmp_path: Path, gpus: pytest.MonkeyPatch
) -> None:
    """With flash-attn installed, transformers queries CUDA's devices when it is imported. After that, the
    driver does not read CUDA_VISIBLE_DEVICES again: all engines would start on GPU 0.
    """
    flash = tmp_path / "site" / "flash_attn"
    flash.mkdir(parents=True)
    (flash / "__init__.py").write_text("__version__ = '2.8.3'\n")
    info = tmp_path / "site" / "flash_attn-2.8.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flash-attn\nVersion: 2.8.3\n")
    (info / "top_level.txt").write_text("flash_attn\n")
    (info / "RECORD").write_text("flash_attn/__init__.py,,\n")
    machine = Machine("cuda", 8, 1, 1)
    write_job(job_of(composed("tracking=none"), tmp_path, machine=machine), str(operation.run))
    env = {**environment(machine, 8, 1), "LOCAL_RANK": "3", "RANK": "3", "WORLD_SIZE": "8"}
    env["PYTHONPATH"] = os.pathsep.join([env["PYTHONPATH"], str(tmp_path / "site")])
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(tmp_path / JOB)],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert str(operation.run).split(":")[0] in found["loaded"]
    assert found["nvml"], "transformers no longer queries the devices: the stand-in shows nothing"
    assert found["driver"] == []
    assert set(found["nvml"]) == {"3"}


def test_a_worker_makes_its_gpu_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton launches on the current device, regardless of where its tensors are."""
    chosen: list[str] = []
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("LOCAL_RANK", "5")
    config = composed()
    for gpus_each in (1, 0):
        job = job_of(config, Path(), machine=Machine("cuda", 8, 1, 1), rank=13, world=16, gpus=gpus_each)
        assert devices.start_torch(job) == chosen[-1]
    assert chosen == ["cuda:0", "cuda:5"]
    assert devices.start_torch(job_of(config, Path())) == "cpu"


def test_gpus_that_pytorch_cannot_use_are_named_with_the_versions(gpus: pytest.MonkeyPatch) -> None:
    """PyTorch is built without CUDA, and the stand-in's driver has GPUs."""
    gpus.setattr(torch.version, "cuda", None)
    job = job_of(composed(), Path(), machine=resolve(composed().hardware), world=8)
    with pytest.raises(
        LarkError,
        match=rf"PyTorch {re.escape(torch.__version__)} was built with no CUDA; the driver is 580\.95\.05",
    ):
        devices.start_torch(job)


def test_the_hf_engine_names_gpus_that_pytorch_cannot_use(gpus: pytest.MonkeyPatch) -> None:
    gpus.setattr(torch.version, "cuda", None)
    config = composed("engine=hf")
    with pytest.raises(
        LarkError, match=r"PyTorch cannot use the GPUs of this machine .* was built with no CUDA"
    ):
        engines.start(
            config.engine, config.student, str(DEMO), load_chat(str(DEMO), config.student).tokenizer, "cuda:0"
        )


def test_a100_and_h100_run_the_same_rope(gpus: pytest.MonkeyPatch) -> None:
    """Liger has another implementation for sm_90. The one that is chosen must exist, and must run on sm_80
    too.
    """
    from liger_kernel.backends.registry import get_registered

    gpus.delenv("LIGER_KERNEL_IMPL_ROPE", raising=False)
    chosen = get_registered("rope", environment(Machine("cuda", 8, 1, 1))["LIGER_KERNEL_IMPL_ROPE"])
    assert chosen is not None and (chosen.capability.min_cc or (0, 0)) <= (8, 0)
    assert "LIGER_KERNEL_IMPL_ROPE" not in environment(Machine("cpu", 1, 1, 1))
    gpus.setenv("LIGER_KERNEL_IMPL_ROPE", "nvidia-cutedsl")  # the user's own choice is kept
    assert environment(Machine("cuda", 8, 1, 1))["LIGER_KERNEL_IMPL_ROPE"] == "nvidia-cutedsl"


@pytest.mark.parametrize("student", ["qwen7b", "qwen1.5b", "llama3b"])
def test_the_papers_students_train_on_the_gpus_of_this_machine(
    student: str, gpus: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`python run.py method=lark budget=3 student=qwen7b` on 8 x A100, with no other settings."""
    config = composed(f"student={student}", "method=lark", "budget.size=3")
    machine = check_machine(config)
    assert (machine.device, machine.world) == ("cuda", 8)
    assert zero_stage(config, machine.device, machine.world) == 2
    estimates = estimate(
        config, wanted(make_plan(config, Checksums(tmp_path), elsewhere=True), config.stages)
    )
    assert {e.name for e in estimates} >= {"lengths", "score", "train", "generate"}
    assert refusal(estimates) is None


def test_zero_is_left_out_where_it_has_nothing_to_do() -> None:
    config = composed("student=qwen7b")
    assert zero_stage(config, "cuda", 1) == 0
    assert zero_stage(config, "cpu", 2) == 0
    assert zero_stage(composed("student=qwen7b", "training.bf16=false"), "cuda", 8) == 0
    assert zero_stage(composed("student=qwen7b", "hardware.zero=3"), "cuda", 8) == 3
    assert zero_stage(composed("student=qwen7b", "hardware.zero=0"), "cuda", 8) == 0


@pytest.mark.parametrize("preset", ["a100x1", "h100x1", "a100x8"])
def test_an_offloaded_optimizer_is_always_that_of_zero_3(preset: str) -> None:
    """Also on one GPU, and where a preset has the paper's stage 2."""
    config = composed("student=qwen7b", f"hardware={preset}", "hardware.offload=optimizer")
    assert zero_stage(config, "cuda", config.hardware.processes) == 3


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["NVIDIA H100 80GB HBM3"], ("H100", 989)),
        (["NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"], ("A100-SXM4-40GB", 312)),
        (["NVIDIA GeForce RTX 4090", "NVIDIA H100 PCIe"], ("RTX 4090", 165)),  # the slowest
        (["NVIDIA L40S"], ("L40S", 362)),
        (["Some GPU of tomorrow"], ("", 312)),
    ],
)
def test_a_gpu_is_recognised_by_its_name(
    names: list[str], found: tuple[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throughput, "query_gpus", lambda what: names)
    name, gpu = throughput.this_gpu.__wrapped__()
    assert (name, gpu.tflops) == found


@pytest.mark.parametrize(
    ("option", "gib"), [("h100x8", 80), ("h100x1", 80), ("a100x8_40gb", 40), ("l40sx8", 48), ("rtx4090", 24)]
)
def test_presets_plan_a_student_that_fits_them(option: str, gib: int, tmp_path: Path) -> None:
    lora = ["training.lora.rank=16", "student.max_length=8192"] if option == "rtx4090" else []
    config = composed("student=qwen1.5b", f"hardware={option}", "dry_run=true", *lora)
    assert config.hardware.memory_gib == gib
    estimates = estimate(
        config, wanted(make_plan(config, Checksums(tmp_path), elsewhere=True), config.stages)
    )
    assert refusal(estimates) is None
