"""What the planner says of machines that are not here: stand-ins for nvidia-smi show their GPUs."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from experiments.harness.planning import describe
from experiments.harness.sweep import compose_sweep
from lark import processors
from lark.pipeline.operations import train as operations
from lark.planner import throughput
from lark.planner.estimates import Estimate, estimate
from lark.planner.lengths import assumed
from tests.conftest import composed
from tests.models.test_shapes import MIXTURES
from tests.planner.steps import steps_of
from tests.planner.test_estimates import key_of, typed

SMI = """#!/bin/sh
case "$*" in
  -L) for i in $(seq $GPUS); do echo "GPU $i: $GPU (UUID: GPU-$i)"; done;;
  *memory.total*) for i in $(seq $GPUS); do echo $MIB; done;;
  *gpu=name*) for i in $(seq $GPUS); do echo "$GPU"; done;;
esac
"""
MACHINES = {
    "1 x 24 GB": (1, 24_564, "NVIDIA GeForce RTX 4090"),
    "1 x 80 GB": (1, 81_559, "NVIDIA H100 80GB HBM3"),
    "2 x 40 GB": (2, 40_960, "NVIDIA A100-SXM4-40GB"),
    "8 x A100": (8, 81_920, "NVIDIA A100-SXM4-80GB"),
    "8 x H100": (8, 81_559, "NVIDIA H100 80GB HBM3"),
}
HOST_GIB = 1024.0
STUDENTS = ("qwen1.5b", "qwen7b", "Qwen3-30B-A3B")
OFFLOAD = "hardware.offload=optimizer"
TRAINING = {
    ("1 x 24 GB", "qwen1.5b"): OFFLOAD,
    ("1 x 24 GB", "qwen7b"): (
        "training.lora.rank=16 training.learning_rate=0.0001 student.max_length=16384 training.lora.bits=4"
    ),
    ("1 x 24 GB", "Qwen3-30B-A3B"): "",  # nor would 4 bits fit: the experts keep 16
    ("1 x 80 GB", "qwen7b"): OFFLOAD,
    ("1 x 80 GB", "Qwen3-30B-A3B"): f"student.max_length=16384 {OFFLOAD}",
    ("2 x 40 GB", "qwen7b"): f"hardware.sequence_parallel=2 {OFFLOAD}",
    ("2 x 40 GB", "Qwen3-30B-A3B"): f"student.max_length=4096 hardware.sequence_parallel=2 {OFFLOAD}",
    ("8 x A100", "Qwen3-30B-A3B"): OFFLOAD,
    ("8 x H100", "Qwen3-30B-A3B"): OFFLOAD,
}
"""What makes training fit; students that are not listed fit as they are, and "" fits with nothing."""


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A machine whose driver shows these GPUs, and whose host has enough memory for any optimizer."""
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(SMI)
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{smi.parent}{os.pathsep}{os.environ['PATH']}")
    for name, value in zip(("GPUS", "MIB", "GPU"), MACHINES[request.param], strict=True):
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(operations, "memory_gib", lambda device: HOST_GIB)
    caches = (processors.visible_gpus, throughput.this_gpu)
    for cache in caches:
        cache.cache_clear()
    yield request.param
    for cache in caches:
        cache.cache_clear()


def planned(student: str, folder: Path, settings: dict[str, object] | None = None) -> dict[str, Estimate]:
    """The steps of `dry_run=true` with nothing set but the student, and with these settings."""
    chosen = [f"student='{student}'"]
    if student in MIXTURES:
        (folder / "config.json").write_text(json.dumps(MIXTURES[student][0]))
        chosen = ["student=own", f"student.path={folder}", "student.max_length=32768"]
    config = typed(composed(*chosen, "hardware=auto", "dry_run=true"), settings or {})
    lengths = assumed(5000, config.student.max_length)
    return {key_of(e.step): e for e in estimate(config, steps_of(config), lengths)}


@pytest.mark.parametrize("student", STUDENTS)
def test_each_remedy_that_is_named_for_a_machine_fits_it(machine: str, student: str, tmp_path: Path) -> None:
    steps = planned(student, tmp_path)
    train = steps["train"]
    remedy = TRAINING.get((machine, student))
    assert train.fits == (remedy is None)
    assert train.remedy is None or train.remedy.startswith(remedy or "more GPUs or a device with more memory")
    for name, step in steps.items():
        named = dict(re.findall(r"([a-z_.]+)=([\w.]+)", step.remedy or ""))
        if named:
            values = {key: yaml.safe_load(value) for key, value in named.items()}
            assert planned(student, tmp_path, values)[name].fits, step.remedy


@pytest.mark.parametrize("machine", ["1 x 24 GB", "1 x 80 GB"], indirect=True)
def test_table1_with_qwen3_is_planned_for_one_gpu(machine: str, tmp_path: Path) -> None:
    """The small student fits as it is; the other one needs its optimizer elsewhere on 24 GB."""
    few = ["method=random,lark", "budget=3", "tracking=none", f"outputs={tmp_path}"]
    sweep = compose_sweep("table1", ["scale=qwen3", *few])
    text = describe(sweep)
    assert "table1 at scale qwen3: 4 trials, 4 trainings, 2 base evaluations" in text
    hours = re.search(r"Estimated: ([\d,.]+) device-hours in all", text)
    assert hours is not None
    assert 1 < float(hours[1].replace(",", "")) < 200
    remedies = {}
    for trial in sweep.trials:
        config = trial.config
        assert (config.pool.format, config.pool.questions, config.training.name) == ("rsr", 500, "verify")
        lengths = assumed(500, config.student.max_length)
        for step in estimate(config, trial.plan, lengths):
            remedies[config.student.name, key_of(step.step)] = step.remedy
    needed = {name: remedy.split(" ")[0] for name, remedy in remedies.items() if remedy}
    assert needed == ({("qwen3_1.7b", "train"): OFFLOAD} if machine == "1 x 24 GB" else {})
