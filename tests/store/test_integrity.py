"""A file that changed without changing its size or time is found when it is used, and nothing is made from
it.
"""

import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lark.errors import DamagedError, LarkError
from lark.export.__main__ import training_set
from lark.output.run_summary import run_summary
from lark.pipeline import pipeline as pipelines
from lark.pipeline.pipeline import Pipeline
from lark.planner.lengths import lengths_of
from lark.publish.bundle import bundle
from lark.store.integrity import verify
from lark.store.manifest import MANIFEST
from lark.store.store import Artifact, Checksums, Kind, Store, write_text
from tests.conftest import SMALL, composed, work_here

FILES = {
    "pool": "trajectories.parquet",
    "lengths": "lengths.parquet",
    "scores": "scores.parquet",
    "selection": "train.jsonl",
    "checkpoint": "model.safetensors",
    "generations": "generations.jsonl",
    "metrics": "metrics.json",
}


def change(path: Path) -> None:
    """Change one byte, but neither the size nor the time."""
    before, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def test_an_input_that_changed_without_changing_its_time_has_another_checksum(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    path.write_text("content")
    before = Checksums(tmp_path)(path)
    time.sleep(0.02)  # more than the clock of a file system
    change(path)
    assert Checksums(tmp_path)(path) != before


def artifact(store: Store) -> Artifact:
    thing = Artifact(Kind("things"), "thing", {})

    def build(folders: list[Path]) -> list[dict[str, int]]:
        (folders[0] / "snapshots" / "step-1").mkdir(parents=True)
        for name in ("data", "snapshots/step-1/weights"):
            write_text(folders[0] / name, "content")
        return [{}]

    store.ensure([thing], build)
    return thing


def test_a_changed_file_marks_its_artifact_as_damaged_and_it_is_rebuilt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    thing = artifact(store)
    folder = store.path(thing)
    verify(folder)
    change(folder / "data")
    assert store.state(thing) == "finished"
    with pytest.raises(
        DamagedError,
        match=r"data has changed since the artifact was made\. Run the command that made it again",
    ):
        verify(folder)
    assert store.state(thing) == "started"
    artifact(store)
    assert "is damaged (data has changed): rebuilding it" in caplog.text
    verify(folder)
    assert (folder / "data").read_text() == "content"


def test_subfolders_are_verified_only_where_they_are_used(tmp_path: Path) -> None:
    store = Store(tmp_path)
    folder = store.path(artifact(store))
    change(folder / "snapshots" / "step-1" / "weights")
    verify(folder)
    verify(folder, under="snapshots/step-2")
    verify(folder, "data")
    change(folder / "data")
    verify(folder, "config.yaml")
    with pytest.raises(DamagedError, match="snapshots/step-1/weights has changed"):
        verify(folder, under="snapshots/step-1")


@pytest.mark.parametrize("stamp", [None, [], "x", [7, 0, None], {"a": 1}])
def test_a_manifest_without_a_checksum_is_damage(stamp: object, tmp_path: Path) -> None:
    store = Store(tmp_path)
    folder = store.path(artifact(store))
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, "files": {"data": stamp}}))
    with pytest.raises(DamagedError):
        verify(folder)


def test_a_folder_that_is_not_an_artifact_cannot_be_verified(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a user's own file")
    verify(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    outputs = tmp_path_factory.mktemp("integrity") / "outputs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipelines, "run_worker", work_here)
        run(outputs)
    return outputs


def run(outputs: Path) -> Pipeline:
    """A whole run in this process."""
    started = Pipeline(composed(*SMALL, f"outputs={outputs}"), outputs)
    started.run(run_summary)
    return started


@pytest.fixture
def outputs(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(pipelines, "run_worker", work_here)
    yield Path(shutil.copytree(finished, tmp_path / "outputs"))  # copytree keeps the files' times


def data(outputs: Path) -> dict[str, bytes]:
    """The data files of all artifacts."""
    return {
        str(p.relative_to(outputs)): p.read_bytes()
        for kind, name in FILES.items()
        for p in outputs.glob(f"{kind}/*/{name}")
    }


def test_whatever_is_damaged_is_rebuilt_before_it_is_used(
    outputs: Path, finished: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Training needs the selection, which needs the scores, which need the lengths and the pool: all are
    wrong.
    """
    caplog.set_level(logging.WARNING)
    for kind in ("pool", "lengths", "scores", "selection", "generations"):
        for path in outputs.glob(f"{kind}/*/{FILES[kind]}"):
            change(path)
    assert data(outputs) != data(finished)
    shutil.rmtree(outputs / "checkpoint")
    for path in outputs.glob("metrics/*base*"):
        shutil.rmtree(path)
    run(outputs)
    found = {
        record.message.split("/")[-2] for record in caplog.records if "It is made again." in record.message
    }
    assert found == {"pool", "lengths", "scores", "selection", "generations"}
    # No step of this run reads the trained student's generations: they are still changed.
    unread = {name for name in data(finished) if name.startswith("generations") and "base" not in name}
    assert unread == {name for name, content in data(finished).items() if data(outputs)[name] != content}


@pytest.mark.parametrize(
    ("kind", "other"), [("lengths", "pool"), ("lengths", "scores"), ("scores", "lengths")]
)
def test_a_table_of_another_artifact_is_not_taken_for_that_of_an_interrupted_run(
    kind: str, other: str, outputs: Path, finished: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that was killed before it wrote a manifest leaves a table without a checksum."""
    folder, source = (next(outputs.glob(f"{name}/*")) for name in (kind, other))
    manifest = json.loads((folder / MANIFEST).read_text())
    write_text(folder / MANIFEST, json.dumps({**manifest, "status": "started", "files": {}, "counts": {}}))
    shutil.copy(source / FILES[other], folder / FILES[kind])
    run(outputs)
    assert data(outputs) == data(finished)
    assert f"{folder / FILES[kind]} is damaged" in caplog.text
    if other != "pool":
        assert f"it belongs to {other}/" in caplog.text


def test_the_table_shows_no_changed_metrics(
    outputs: Path, finished: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for path in outputs.glob(f"metrics/*/{FILES['metrics']}"):
        change(path)
    run(outputs)
    assert data(outputs) == data(finished)
    assert caplog.text.count("metrics.json has changed since the artifact was made. It is made again.") == 2
    assert (outputs / "summary.md").read_text() == (finished / "summary.md").read_text()


def test_a_student_whose_weights_changed_answers_nothing(outputs: Path, finished: Path) -> None:
    change(next(outputs.glob(f"checkpoint/*/{FILES['checkpoint']}")))
    for path in [*outputs.glob("generations/*lark*"), *outputs.glob("metrics/*lark*")]:
        shutil.rmtree(path)
    run(outputs)
    assert data(outputs) == data(finished)


def test_an_artifact_that_is_damaged_again_ends_the_run(
    outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that changes what is written to it would otherwise be tried forever."""

    def always(folder: Path) -> None:
        raise DamagedError(f"{folder}: x has changed.", next(outputs.glob("pool/*")))

    shutil.rmtree(outputs / "lengths")
    monkeypatch.setattr(pipelines, "verify", always)
    with pytest.raises(LarkError, match=r"x has changed\. Run the command that made it again"):
        run(outputs)


def test_the_planner_and_other_readers_use_no_changed_file(outputs: Path) -> None:
    pipeline = Pipeline(composed(*SMALL, f"outputs={outputs}"), outputs)
    assert "measured" in str(pipeline.lengths())
    change(next(outputs.glob(f"lengths/*/{FILES['lengths']}")))
    assert "measured" not in str(lengths_of(pipeline.config, pipeline.plan, pipeline.store))
    (selection,) = outputs.glob("selection/*")
    change(selection / FILES["selection"])
    with pytest.raises(DamagedError, match=r"train\.jsonl has changed"):
        training_set(selection)
    (checkpoint,) = outputs.glob("checkpoint/*")
    change(checkpoint / FILES["checkpoint"])
    with pytest.raises(DamagedError, match=r"model\.safetensors has changed"):
        bundle(checkpoint, "me/mine")
