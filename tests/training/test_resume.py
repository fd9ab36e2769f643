"""kill -9 in the middle of an epoch, run again: the weights are those of a run that nobody disturbed. Nothing is left out."""

import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lark import launch
from lark.errors import LarkError
from lark.training.checkpoints import COMPLETE, Layout, newest_checkpoint, remove_incomplete, seal
from lark.training.worker import DONE, prepare, train
from lark.worker import Job
from tests.training.tiny import CrashAt, direct_loss, make_job, write_student, write_training_set

STEPS = 20
RECIPE = [
    "training.epochs=2", "training.global_batch=4", "training.checkpoints=6", "training.learning_rate=0.01",
    "training.snapshots=3", "training.held_out.path=selection", "training.held_out.every=8",
]  # fmt: skip


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A student with dropout: without its random state a run cannot go on as it would have."""
    folder = tmp_path_factory.mktemp("resume")
    return write_student(folder / "student", dropout=0.1), write_training_set(folder / "selection", count=40)


def start(job: Job) -> subprocess.Popen[str]:
    """The worker, as the pipeline starts it."""
    text = {"task": job.task, "folder": str(job.folder), "inputs": {k: str(v) for k, v in job.inputs.items()}, "extra": {}}
    (job.folder / launch.JOB).write_text(json.dumps({**text, "config": asdict(job.config), "machine": asdict(job.machine)}))
    return subprocess.Popen(
        launch.command(job.folder, job.machine), cwd=launch.ROOT, env=launch.environment(job.machine), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def finish(job: Job) -> str:
    process = start(job)
    said, _ = process.communicate()
    assert process.returncode == 0, said[-5000:]
    return said


def kill_after_the_first_checkpoint(job: Job) -> None:
    process = start(job)
    deadline = time.time() + 300
    while not any(job.folder.glob(f"checkpoints/*/{COMPLETE}")) and process.poll() is None and time.time() < deadline:
        time.sleep(0.005)
    assert process.poll() is None, process.communicate()[0][-5000:]
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def leave_an_incomplete_checkpoint(folder: Path) -> None:
    """As a kill during its writing does: newer than the last complete one, without an end."""
    newest = newest_checkpoint(folder, layout_of(folder))
    assert newest is not None
    shutil.copytree(newest, folder / f"checkpoint-{STEPS - 1}")
    (folder / f"checkpoint-{STEPS - 1}" / COMPLETE).unlink()
    (folder / f"checkpoint-{STEPS - 1}" / "model.safetensors").write_bytes(b"half")


def layout_of(folder: Path) -> Layout:
    return Layout(**json.loads(next(folder.glob(f"checkpoint-*/{COMPLETE}")).read_text()))


def curve(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").open()]


@pytest.mark.parametrize("world", [1, 2])
def test_a_killed_run_ends_with_the_weights_of_an_undisturbed_one(
    world: int, inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    """(Under DeepSpeed: tests/training/test_gradients.py, whose processes are there already.)"""
    undisturbed, killed = (make_job(*inputs, tmp_path / name, *RECIPE, world=world) for name in ("undisturbed", "killed"))
    if world == 1:
        train(undisturbed)
    else:
        finish(undisturbed)
    kill_after_the_first_checkpoint(killed)
    steps_before = len(curve(killed.folder))
    assert 3 <= steps_before < STEPS and not (killed.folder / DONE).exists()
    leave_an_incomplete_checkpoint(killed.folder / "checkpoints")
    said = finish(killed)
    assert "resuming from checkpoint-" in said and "was not written to its end" in said

    ours, theirs = (load_file(job.folder / "model.safetensors") for job in (killed, undisturbed))
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) <= 1e-6
    for job in (killed, undisturbed):
        assert [line["step"] for line in curve(job.folder)] == list(range(STEPS + 1))
        assert not (job.folder / "checkpoints").exists()
        check_curve_and_snapshots(job, *inputs)
    for a, b in zip(curve(killed.folder), curve(undisturbed.folder), strict=True):
        for key in ("loss", "grad_norm", "learning_rate", "held_out_loss"):
            assert a.get(key, 0.0) == pytest.approx(b.get(key, 0.0), rel=1e-5)


def check_curve_and_snapshots(job: Job, student: Path, selection: Path) -> None:
    lines = curve(job.folder)
    assert [line["step"] for line in lines if "held_out_loss" in line] == [0, 8, 16, STEPS]
    assert lines[0]["held_out_loss"] == pytest.approx(direct_loss(student, selection), rel=1e-5)
    assert lines[-1]["held_out_loss"] == pytest.approx(direct_loss(job.folder, selection), rel=1e-5)
    assert lines[-1]["held_out_loss"] < lines[0]["held_out_loss"]
    assert (lines[10]["epoch"], lines[20]["epoch"]) == (1.0, 2.0)
    assert all(line["tokens_per_second"] > 0 for line in lines[1:])
    snapshots = sorted(job.folder.glob("snapshots/*"))
    assert [path.name for path in snapshots] == ["step-000000", "step-000010", "step-000020"]
    first, last = (load_file(snapshots[k] / "model.safetensors") for k in (0, 2))
    assert all(torch.equal(value, load_file(student / "model.safetensors")[name]) for name, value in first.items())
    assert all(torch.equal(value, load_file(job.folder / "model.safetensors")[name]) for name, value in last.items())


def test_a_lora_run_that_crashed_goes_on_and_merges_what_it_trained(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    settings = [*RECIPE, "training.lora.rank=4", "training.lora.dropout=0.1", "training.checkpoints=10"]
    whole, crashed = (make_job(*inputs, tmp_path / name, *settings) for name in ("whole", "crashed"))
    train(whole)
    run = prepare(crashed)
    run.trainer.add_callback(CrashAt(7))
    with pytest.raises(KeyboardInterrupt):
        run.trainer.train()
    names = {path.name for path in crashed.folder.glob("checkpoints/checkpoint-6/*")}
    assert "adapter_model.safetensors" in names and "model.safetensors" not in names
    train(crashed)
    ours, theirs, student = (load_file(path / "model.safetensors") for path in (crashed.folder, whole.folder, inputs[0]))
    assert set(ours) == set(theirs) == set(student)
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) <= 1e-6
    check_curve_and_snapshots(crashed, *inputs)


def test_a_finished_run_has_nothing_left_to_do(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    """Killed after the export, before the pipeline has noted it: not a step is trained again."""
    (tmp_path / DONE).write_text(json.dumps({"steps": 3}))
    assert train(make_job(*inputs, tmp_path, *RECIPE)) == {"steps": 3}


def checkpoint(folder: Path, step: int, layout: Layout | None) -> None:
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    if layout is not None:
        seal(path, layout)


def test_only_complete_checkpoints_count(tmp_path: Path) -> None:
    plain = Layout(0, 1)
    assert newest_checkpoint(tmp_path, plain) is None
    for step, layout in [(9, plain), (10, plain), (11, None)]:
        checkpoint(tmp_path, step, layout)
    newest = newest_checkpoint(tmp_path, Layout(0, 4))  # without DeepSpeed any number of processes can go on
    assert newest is not None and newest.name == "checkpoint-10"
    remove_incomplete(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-9", "checkpoint-10"}


@pytest.mark.parametrize("now", [Layout(0, 8), Layout(3, 8), Layout(2, 4)])
def test_what_deepspeed_sharded_is_not_continued_by_another_sharding(now: Layout, tmp_path: Path) -> None:
    checkpoint(tmp_path, 5, Layout(2, 8))
    with pytest.raises(LarkError, match=r"written by 8 processes with hardware.zero=2.*force=\[train\]"):
        newest_checkpoint(tmp_path, now)
    assert newest_checkpoint(tmp_path, Layout(2, 8)) == tmp_path / "checkpoint-5"
