"""kill -9 in the middle of an epoch, run again: the weights are those of an uninterrupted run. Nothing is
left out.
"""

import json
import logging
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from lark.errors import LarkError
from lark.models.chat import ChatFormat
from lark.pipeline.operations.train import TRAIN
from lark.training import curves as curves_module
from lark.training import trainer as trainer_module
from lark.training.checkpoints import (
    COMPLETE,
    HELD_OUT_LOSSES,
    LOSSES,
    STATE,
    Sharding,
    damage,
    newest_checkpoint,
    remove_unusable,
    seal,
    stamps,
)
from lark.training.encoded_set import Example, read_examples
from lark.training.export import Exporter
from lark.training.worker import CURVE, DONE, finished, prepare, train
from lark.work import launch
from lark.work.operation import Job
from tests.training.tiny import CrashAt, direct_loss, make_job, write_student, write_training_set

STEPS = 20
RECIPE = [
    "training.epochs=2", "training.global_batch=4", "training.checkpoints=6", "training.learning_rate=0.01",
    "training.snapshots=3", "training.held_out.path=selection", "training.held_out.every=8",
]  # fmt: skip


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A student with dropout: without its random state, a run cannot continue as it would have."""
    folder = tmp_path_factory.mktemp("resume")
    return write_student(folder / "student", dropout=0.1), write_training_set(folder / "selection", count=40)


def start(job: Job) -> subprocess.Popen[str]:
    """The worker, as the pipeline starts it."""
    assert isinstance(TRAIN.run, str)
    launch.write_job(job, TRAIN.run)
    return subprocess.Popen(
        launch.command(job.folder, job.machine),
        cwd=launch.ROOT,
        env=launch.environment(job.machine, gpus=job.gpus),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def finish(job: Job) -> str:
    process = start(job)
    said, _ = process.communicate()
    assert process.returncode == 0, said[-5000:]
    return said


def kill_after_the_first_checkpoint(job: Job) -> None:
    process = start(job)
    deadline = time.time() + 300
    while (
        not any(job.folder.glob(f"checkpoints/*/{COMPLETE}"))
        and process.poll() is None
        and time.time() < deadline
    ):
        time.sleep(0.005)
    assert process.poll() is None, process.communicate()[0][-5000:]
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def leave_unusable_checkpoints(folder: Path) -> None:
    """Two checkpoints newer than the last intact one: an incomplete one, as after a kill while writing, and
    a damaged one.
    """
    newest = next(path for path in folder.glob("checkpoint-*") if damage(path) is None)
    incomplete, damaged = (shutil.copytree(newest, folder / f"checkpoint-{STEPS - k}") for k in (1, 2))
    (incomplete / COMPLETE).unlink()
    (incomplete / "model.safetensors").write_bytes(b"half")
    truncate(damaged / "optimizer.pt")


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def curve(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / CURVE).open()]


@pytest.mark.parametrize("world", [1, 2])
def test_a_killed_run_ends_with_the_weights_of_an_undisturbed_one(
    world: int, inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    """(Under DeepSpeed: tests/training/test_gradients.py, which already starts such processes.)"""
    undisturbed, killed = (
        make_job(*inputs, tmp_path / name, *RECIPE, world=world) for name in ("undisturbed", "killed")
    )
    if world == 1:
        train(undisturbed)
    else:
        finish(undisturbed)
    kill_after_the_first_checkpoint(killed)
    steps_before = len(curve(killed.folder))
    assert 4 <= steps_before < STEPS and not (killed.folder / DONE).exists()
    leave_unusable_checkpoints(killed.folder / "checkpoints")
    said = finish(killed)
    assert "resuming from checkpoint-" in said and f"checkpoint-{STEPS - 1} is incomplete: ignored" in said
    assert f"checkpoint-{STEPS - 2} is damaged (optimizer.pt has " in said

    ours, theirs = (load_file(job.folder / "model.safetensors") for job in (killed, undisturbed))
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) <= 1e-6
    for job in (killed, undisturbed):
        assert [line["step"] for line in curve(job.folder)] == list(range(STEPS + 1))
        assert not (job.folder / "checkpoints").exists()
        check_curve_and_snapshots(job, *inputs)
    for a, b in zip(curve(killed.folder), curve(undisturbed.folder), strict=True):
        for key in ("loss", "grad_norm", "learning_rate", "held_out_loss"):
            assert a.get(key, 0.0) == pytest.approx(b.get(key, 0.0), rel=1e-5)


def rows(selection: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (selection / "train.jsonl").read_text().splitlines()]


def encoded(student: Path, selection: Path) -> list[Example]:
    chat = ChatFormat(AutoTokenizer.from_pretrained(student))
    return read_examples(selection / "train.jsonl", chat, 200)


@torch.no_grad()
def direct_accuracy(student: Path, selection: Path) -> float:
    """The share of response tokens that are the argmax of the plain model's logits."""
    model = AutoModelForCausalLM.from_pretrained(student, dtype=torch.float32)
    hits = []
    for example in encoded(student, selection):
        ids = torch.tensor(example.encoded.ids)
        likeliest = model(input_ids=ids[None]).logits[0].argmax(1)
        start = example.encoded.prompt_length
        hits += (likeliest[start - 1 : -1] == ids[start:]).tolist()
    return sum(hits) / len(hits)


def check_losses(
    folder: Path, lines: list[dict[str, Any]], weights: dict[str, float], selection: Path
) -> None:
    """Each epoch has one loss per trajectory; their weighted mean in a step is the step's loss."""
    steps = [json.loads(line) for line in (folder / LOSSES).read_text().splitlines()]
    tokens = {example.name: example.encoded.n_response for example in encoded(folder, selection)}
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    for epoch in (1, 2):
        trained = [step["trajectories"] for step in steps if step["epoch"] == epoch]
        names = [row["trajectory"] for rows in trained for row in rows]
        assert sorted(names) == sorted(weights)
    for step, line in zip(steps, lines[1:], strict=True):
        losses = [weights[row["trajectory"]] * row["loss"] for row in step["trajectories"]]
        assert sum(losses) / len(losses) == pytest.approx(line["loss"], rel=1e-3)
        hits = [row["token_accuracy"] * tokens[row["trajectory"]] for row in step["trajectories"]]
        assert all(hit == pytest.approx(round(hit)) for hit in hits)
        of = sum(tokens[row["trajectory"]] for row in step["trajectories"])
        assert sum(hits) / of == pytest.approx(line["token_accuracy"])
    assert 0 <= lines[1]["token_accuracy"] < lines[-1]["token_accuracy"] < 1
    assert lines[-1]["held_out_token_accuracy"] == pytest.approx(direct_accuracy(folder, selection))


def check_curve_and_snapshots(job: Job, student: Path, selection: Path) -> None:
    lines = curve(job.folder)
    assert [line["step"] for line in lines if "held_out_loss" in line] == [0, 8, 16, STEPS]
    assert lines[0]["held_out_loss"] == pytest.approx(direct_loss(student, selection), rel=1e-5)
    assert lines[-1]["held_out_loss"] == pytest.approx(direct_loss(job.folder, selection), rel=1e-5)
    assert lines[-1]["held_out_loss"] < lines[0]["held_out_loss"]
    each = {
        row["trajectory"]: row["loss"]
        for row in map(json.loads, (job.folder / HELD_OUT_LOSSES).read_text().splitlines())
    }
    weights = {f"{row['question_id']}/{row['candidate_id']}": row["weight"] for row in rows(selection)}
    mean = sum(weights[name] * loss for name, loss in each.items()) / len(weights)
    assert set(each) == set(weights) and mean == pytest.approx(lines[-1]["held_out_loss"])
    check_losses(job.folder, lines, weights, selection)
    assert (lines[10]["epoch"], lines[20]["epoch"]) == (1.0, 2.0)
    assert all(line["tokens_per_second"] > 0 for line in lines[1:])
    snapshots = sorted(job.folder.glob("snapshots/*"))
    assert [path.name for path in snapshots] == ["step-000000", "step-000010", "step-000020"]
    first, last = (load_file(snapshots[k] / "model.safetensors") for k in (0, 2))
    assert all(
        torch.equal(value, load_file(student / "model.safetensors")[name]) for name, value in first.items()
    )
    assert all(
        torch.equal(value, load_file(job.folder / "model.safetensors")[name]) for name, value in last.items()
    )


def test_a_lora_run_that_crashed_resumes_and_merges_what_it_trained(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
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
    ours, theirs, student = (
        load_file(path / "model.safetensors") for path in (crashed.folder, whole.folder, inputs[0])
    )
    assert set(ours) == set(theirs) == set(student)
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) <= 1e-6
    check_curve_and_snapshots(crashed, *inputs)


def test_a_finished_run_has_nothing_left_to_do(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    """Killed after the export, before the pipeline recorded it: no step is trained again, and no checkpoint
    remains.
    """
    (tmp_path / DONE).write_text(json.dumps({"steps": 3}))
    checkpoint(tmp_path / "checkpoints", 3, Sharding(0, 1))
    assert train(make_job(*inputs, tmp_path, *RECIPE)) == {"steps": 3}
    assert {path.name for path in tmp_path.iterdir()} == {DONE}


@pytest.fixture(scope="module")
def crashed(inputs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that stopped after step 5 of 10, with checkpoints at steps 2 and 4."""
    folder = tmp_path_factory.mktemp("crashed")
    run = prepare(make_job(*inputs, folder, *SHORT))
    run.trainer.add_callback(CrashAt(5))
    with pytest.raises(KeyboardInterrupt):
        run.trainer.train()
    assert {path.name for path in folder.glob("checkpoints/*")} == {"checkpoint-2", "checkpoint-4"}
    return folder


SHORT = [*RECIPE, "training.epochs=1", "training.checkpoints=5", "training.snapshots=0"]
FILES = ["optimizer.pt", "model.safetensors", "trainer_state.json", "rng_state.pth", "scheduler.pt", COMPLETE]


@pytest.mark.parametrize("harm", ["truncated", "flipped", "removed"])
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    file: str, harm: str, crashed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(crashed / "checkpoints", tmp_path / "checkpoints")
    path = folder / "checkpoint-4" / file
    match harm:
        case "truncated":
            truncate(path)
        case "flipped":
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 0x80
            path.write_bytes(content)
        case "removed":
            path.unlink()
    remove_unusable(folder)
    assert newest_checkpoint(folder, Sharding(0, 1)) == folder / "checkpoint-2"
    (said,) = [record.message for record in caplog.records]
    assert said.startswith("checkpoint-4 ") and (
        "is incomplete" in said if (file, harm) == (COMPLETE, "removed") else file in said
    )


def test_if_no_checkpoint_is_intact_training_starts_over(
    crashed: Path, inputs: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """So does the curve: step 0, which was measured before the crash, is in it once."""
    for checkpoint in shutil.copytree(crashed, tmp_path / "again").glob("checkpoints/*"):
        truncate(checkpoint / "trainer_state.json")
    again, undisturbed = (make_job(*inputs, tmp_path / name, *SHORT) for name in ("again", "undisturbed"))
    assert [line["step"] for line in curve(again.folder)] == [0, 1, 2, 3, 4]
    train(again)
    said = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert [line.split(" ")[0] for line in said[:2]] == ["checkpoint-4", "checkpoint-2"]
    assert said[2] == "No checkpoint is intact: training starts over"
    train(undisturbed)
    assert [line["step"] for line in curve(again.folder)] == list(range(11))
    ours, theirs = (load_file(job.folder / "model.safetensors") for job in (again, undisturbed))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def leave(path: Path, content: bytes | None = None) -> None:
    """A file, or an empty folder."""
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)


ODD = {
    "a name without a number": ("checkpoint-best", None),
    "no step at all": ("checkpoint-", None),
    "a negative step": ("checkpoint--3", None),
    "a number in other digits": ("checkpoint-\u0663", None),
    "a file": ("checkpoint-9", b"x"),
    "an empty folder": ("checkpoint-10", None),
    "a huge step": ("checkpoint-" + "9" * 40, None),
}


@pytest.mark.parametrize("odd", ODD)
def test_what_is_only_named_like_a_checkpoint_is_passed_over(
    odd: str, crashed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(crashed / "checkpoints", tmp_path / "checkpoints")
    name, content = ODD[odd]
    leave(folder / name, content)
    remove_unusable(folder)
    assert newest_checkpoint(folder, Sharding(0, 1)) == folder / "checkpoint-4"
    (said,) = [record.message for record in caplog.records]
    assert said in (f"{name} is not a checkpoint: ignored", f"{name} is incomplete: ignored")


SEALS = [
    "",
    "{",
    "[]",
    "null",
    "3",
    "{}",
    '{"files": {}}',
    '{"zero": 0, "world": 1}',
    '{"zero": 0, "world": 1, "files": []}',
    '{"zero": 0, "world": 1, "files": {}}',
    '{"zero": 0, "world": 1, "files": {"a": 3}}',
    '{"zero": "0", "world": 1, "files": {}}',
    '{"zero": 0, "world": 1, "files": {"../../../train.jsonl": [1, null]}}',
    "[" * 100_000,
    "\udcff",
    json.dumps({"zero": 0, "world": 1, "files": {"a" * 300: [1, None]}}),
]


@pytest.mark.parametrize("content", SEALS)
def test_a_seal_of_another_shape_is_damage(content: str, crashed: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(crashed / "checkpoints", tmp_path / "checkpoints")
    (folder / "checkpoint-4" / COMPLETE).write_bytes(content.encode("utf-8", "surrogateescape"))
    remove_unusable(folder)
    assert newest_checkpoint(folder, Sharding(0, 1)) == folder / "checkpoint-2"


def test_a_seal_without_the_state_of_the_training_is_damage(crashed: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(crashed / "checkpoints", tmp_path / "checkpoints")
    seal = folder / "checkpoint-4" / COMPLETE
    values = json.loads(seal.read_text())
    seal.write_text(
        json.dumps({**values, "files": {"model.safetensors": values["files"]["model.safetensors"]}})
    )
    remove_unusable(folder)
    assert newest_checkpoint(folder, Sharding(0, 1)) == folder / "checkpoint-2"


def test_of_a_checkpoint_that_is_a_link_only_the_link_is_removed(crashed: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(crashed / "checkpoints", tmp_path / "checkpoints")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine.txt").write_text("kept")
    (folder / "checkpoint-7").symlink_to(tmp_path / "elsewhere")
    remove_unusable(folder)
    assert newest_checkpoint(folder, Sharding(0, 1)) == folder / "checkpoint-4"
    assert not (folder / "checkpoint-7").is_symlink() and (tmp_path / "elsewhere" / "mine.txt").exists()


def test_a_checkpoint_under_the_name_of_another_step_is_passed_over(crashed: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(crashed / "checkpoints", tmp_path / "checkpoints")
    (folder / "checkpoint-4").rename(folder / "checkpoint-9")
    remove_unusable(folder)
    assert newest_checkpoint(folder, Sharding(0, 1)) == folder / "checkpoint-2"


def test_damaged_state_is_passed_over_and_the_weights_are_those_of_an_undisturbed_run(
    crashed: Path, inputs: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The curve, the record of the finished run and the newest checkpoint are all damaged."""
    shutil.copytree(crashed, tmp_path / "again")
    again, undisturbed = (make_job(*inputs, tmp_path / name, *SHORT) for name in ("again", "undisturbed"))
    lines = (again.folder / CURVE).read_bytes().splitlines(keepends=True)
    lines[1:3] = [b"\xff\x00\n", b"[]\n", b"\n", b'{"step": "2"}\n', lines[0], lines[1][:20] + b"\n"]
    (again.folder / CURVE).write_bytes(b"".join(lines))
    (again.folder / DONE).write_text("{")
    (again.folder / "checkpoints" / "checkpoint-latest").mkdir()
    truncate(again.folder / "checkpoints" / "checkpoint-4" / "optimizer.pt")
    train(again)
    assert (
        "training.json cannot be read" in caplog.text
        and "checkpoint-latest is not a checkpoint: ignored" in caplog.text
    )
    assert "metrics.jsonl, line 2 is damaged: it is left out of the curve." in caplog.text
    train(undisturbed)
    assert [line["step"] for line in curve(again.folder)] == [0, *range(3, 11)]
    ours, theirs = ((job.folder / "model.safetensors").read_bytes() for job in (again, undisturbed))
    assert ours == theirs
    assert (again.folder / DONE).read_bytes() == (undisturbed.folder / DONE).read_bytes()


def test_a_curve_that_is_a_folder_starts_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / CURVE / "x").mkdir(parents=True)
    curves_module.keep_steps(tmp_path / CURVE, 3)
    assert (tmp_path / CURVE).read_text() == "" and "cannot be read" in caplog.text


@pytest.mark.parametrize("harm", ["removed", "truncated", "list", "binary", "counts"])
def test_a_damaged_export_is_not_taken_for_a_finished_one(
    harm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "config.json").write_text("config")
    counts = {"steps": 3, "skipped_steps": 0}
    (tmp_path / DONE).write_text(json.dumps({**counts, "files": stamps(tmp_path)}))
    assert finished(tmp_path) == counts
    match harm:
        case "removed":
            (tmp_path / "config.json").unlink()
        case "truncated":
            (tmp_path / "config.json").write_text("con")
        case "list":
            (tmp_path / DONE).write_text("[]")
        case "binary":
            (tmp_path / DONE).write_bytes(b"\xff")
        case "counts":
            (tmp_path / DONE).write_text('{"steps": "three"}')
    assert finished(tmp_path, report=True) is None
    assert "It is exported again." in caplog.text


def test_the_speed_is_that_of_the_step_alone(
    inputs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a clock that training advances by 2 s per step, and everything between two steps by 100."""
    now = 0.0

    class Work(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            nonlocal now
            now += 2.0

    def slow(original: Any) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal now
            now += 100.0
            return original(*arguments)

        return call

    monkeypatch.setattr(curves_module.time, "perf_counter", lambda: now)
    monkeypatch.setattr(curves_module.HeldOutLoss, "__call__", slow(curves_module.HeldOutLoss.__call__))
    monkeypatch.setattr(Exporter, "snapshot", slow(Exporter.snapshot))
    monkeypatch.setattr(trainer_module, "seal", slow(seal))
    run = prepare(make_job(*inputs, tmp_path, *SHORT, "training.snapshots=11", "training.held_out.every=2"))
    run.trainer.add_callback(Work())
    run.trainer.train()
    lines = curve(tmp_path)
    assert now == 10 * 2 + 100 * (6 + 11 + 5)  # held-out losses, snapshots, checkpoints
    assert [line["tokens_per_second"] for line in lines[1:]] == [
        round(run.trainer.batches.tokens(k) / 2) for k in range(10)
    ]


def checkpoint(folder: Path, step: int, sharding: Sharding | None) -> None:
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / STATE).write_text(json.dumps({"global_step": step}))
    if sharding is not None:
        seal(path, sharding)


@pytest.mark.parametrize("main", [True, False])
def test_every_process_syncs_its_files_before_the_checkpoint_is_sealed(
    main: bool, inputs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the main process had to sync the files of all others, they would wait for it until their time
    limit.
    """
    events: list[str] = []
    fsync = os.fsync

    def recorded(number: int) -> None:
        events.append(Path(f"/proc/self/fd/{number}").readlink().name)
        fsync(number)

    run = prepare(make_job(*inputs, tmp_path, "training.global_batch=40"))
    run.trainer.train()
    written = next((tmp_path / "checkpoints").iterdir())
    (written / COMPLETE).unlink()
    files = {path.name for path in written.iterdir()}
    monkeypatch.setattr(
        trainer_module.Trainer, "_save_checkpoint", lambda *arguments: None
    )  # the files are there
    monkeypatch.setattr(run.trainer, "is_world_process_zero", lambda: main)
    monkeypatch.setattr(run.trainer.accelerator, "wait_for_everyone", lambda: events.append("barrier"))
    monkeypatch.setattr(os, "fsync", recorded)
    run.trainer._save_checkpoint(run.trainer.model, None)
    before, after = events[: events.index("barrier")], events[events.index("barrier") + 1 :]
    assert "optimizer.pt" in files and set(before) == files
    assert files.isdisjoint(after) and (written / COMPLETE).exists() == main


def test_only_complete_checkpoints_count(tmp_path: Path) -> None:
    plain = Sharding(0, 1)
    assert newest_checkpoint(tmp_path, plain) is None
    for step, sharding in [(9, plain), (10, plain), (11, None)]:
        checkpoint(tmp_path, step, sharding)
    newest = newest_checkpoint(
        tmp_path, Sharding(0, 4)
    )  # without DeepSpeed any number of processes can resume
    assert newest is not None and newest.name == "checkpoint-10"
    remove_unusable(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-9", "checkpoint-10"}


@pytest.mark.parametrize("now", [Sharding(0, 8), Sharding(3, 8), Sharding(2, 4)])
def test_a_sharded_checkpoint_is_not_resumed_by_another_sharding(now: Sharding, tmp_path: Path) -> None:
    checkpoint(tmp_path, 5, Sharding(2, 8))
    with pytest.raises(LarkError, match=r"written by 8 processes with hardware.zero=2.*force=\[train\]"):
        newest_checkpoint(tmp_path, now)
    assert newest_checkpoint(tmp_path, Sharding(2, 8)) == tmp_path / "checkpoint-5"
