"""Artifacts are written once: reused, resumed or rebuilt, and never partial under their final name."""

import errno
import json
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from lark.errors import LarkError
from lark.store.disk import disk_errors
from lark.store.store import Artifact, Checksums, Kind, Store, atomic, damage, write_text


def artifact(**depends: Any) -> Artifact:
    return Artifact(Kind("things", 1), "thing", depends or {"a": 1})


def builder(text: str = "content", calls: list[int] | None = None) -> Any:
    def build(folders: list[Path]) -> list[dict[str, int]]:
        if calls is not None:
            calls.append(len(folders))
        for folder in folders:
            write_text(folder / "data.txt", text)
        return [{"items": 1} for _ in folders]

    return build


def test_a_finished_artifact_is_reused(tmp_path: Path) -> None:
    store, calls = Store(tmp_path), []  # type: ignore[var-annotated]
    assert store.ensure([artifact()], builder(calls=calls)) == [artifact()]
    assert store.ensure([artifact()], builder(calls=calls)) == []
    assert calls == [1]
    assert store.manifest(artifact()).counts == {"items": 1}


def test_the_fingerprint_covers_inputs_configuration_and_version() -> None:
    base = Artifact(Kind("s", 1), "n", {"a": 1})
    others = [
        Artifact(Kind("s", 2), "n", {"a": 1}),
        Artifact(Kind("s", 1), "n", {"a": 2}),
        Artifact(Kind("s", 1), "n", {"a": 1}, {"x": base}),
        Artifact(Kind("t", 1), "n", {"a": 1}),
    ]
    assert len({a.fingerprint for a in [base, *others]}) == 5
    assert Artifact(Kind("s", 1), "another name", {"a": 1}).fingerprint == base.fingerprint
    deep = Artifact(Kind("s", 1), "n", {}, {"x": Artifact(Kind("s", 1), "n", {"a": 2})})
    assert deep.fingerprint != Artifact(Kind("s", 1), "n", {}, {"x": base}).fingerprint


def test_a_started_artifact_is_resumed_from_what_is_there(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def fails(folders: list[Path]) -> list[dict[str, int]]:
        write_text(folders[0] / "shard", "kept")
        raise RuntimeError("the power went out")

    with pytest.raises(RuntimeError):
        store.ensure([artifact()], fails)
    assert store.state(artifact()) == "started"
    assert store.manifest(artifact()).error == "the power went out"

    def resumes(folders: list[Path]) -> list[dict[str, int]]:
        assert (folders[0] / "shard").read_text() == "kept"
        return [{}]

    assert store.ensure([artifact()], resumes)
    assert store.state(artifact()) == "finished"


def test_drafts_of_a_killed_run_are_removed_be_they_files_or_folders(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.fail([artifact()], RuntimeError("killed"))
    folder = store.path(artifact())
    (folder / "snapshots" / ".step-000000.part").mkdir(parents=True)
    for draft in (
        "snapshots/.step-000000.part/model",
        "snapshots/.step-000000.part/.config.json.7.part",
        ".metrics.7.part",
    ):
        (folder / draft).write_text("half")
    (folder / "snapshots" / "step-000003").mkdir()
    (folder / "snapshots" / "step-000003" / "model").write_text("kept")

    def resumes(folders: list[Path]) -> list[dict[str, int]]:
        assert not list(folders[0].rglob(".*.part"))
        assert (folders[0] / "snapshots" / "step-000003" / "model").read_text() == "kept"
        return [{}]

    assert store.ensure([artifact()], resumes)


@pytest.mark.parametrize("harm", ["truncated", "flipped", "removed", "manifest"])
def test_a_damaged_artifact_is_found_out_and_made_again(
    harm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    store.ensure([artifact()], builder())
    path = store.path(artifact()) / "data.txt"
    match harm:
        case "truncated":
            path.write_text("cont")
        case "flipped":
            path.write_text("CONTENT")
        case "removed":
            path.unlink()
        case "manifest":
            (path.parent / "manifest.json").write_text("garbage")
    assert store.ensure([artifact()], builder())
    assert "damaged" in caplog.text
    assert path.read_text() == "content"


def test_touching_a_file_does_not_damage_its_artifact(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.ensure([artifact()], builder())
    os.utime(store.path(artifact()) / "data.txt")
    assert damage(store.path(artifact()), store.manifest(artifact())) is None


def test_force_makes_it_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.ensure([artifact()], builder("old"))
    assert store.ensure([artifact()], builder("new"), force=True)
    assert (store.path(artifact()) / "data.txt").read_text() == "new"


def test_only_what_is_missing_is_built(tmp_path: Path) -> None:
    store, calls = Store(tmp_path), []  # type: ignore[var-annotated]
    both = [artifact(a=1), artifact(a=2)]
    store.ensure(both[:1], builder(calls=calls))
    assert store.ensure(both, builder(calls=calls)) == [both[1]]
    assert calls == [1, 1]


def _slow(root: Path, started: Any, made: Any) -> None:
    def build(folders: list[Path]) -> list[dict[str, int]]:
        started.set()
        time.sleep(1.0)
        return [{}]

    if Store(root).ensure([artifact()], build):
        with made.get_lock():
            made.value += 1


def test_two_runs_that_want_the_same_artifact_make_it_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    started, made = context.Event(), context.Value("i", 0)
    runs = [context.Process(target=_slow, args=(tmp_path, started, made)) for _ in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert [run.exitcode for run in runs] == [0, 0]
    assert made.value == 1


def test_a_lock_does_not_survive_its_process(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    started, made = context.Event(), context.Value("i", 0)
    run = context.Process(target=_slow, args=(tmp_path, started, made))
    run.start()
    started.wait()
    assert run.pid is not None
    os.kill(run.pid, signal.SIGKILL)
    run.join()
    assert Store(tmp_path).ensure([artifact()], builder())


def test_nothing_has_its_final_name_before_it_is_complete(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), atomic(tmp_path / "file") as draft:
        draft.write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_a_sentence_and_leaves_nothing_behind(tmp_path: Path) -> None:
    def build(folders: list[Path]) -> list[dict[str, int]]:
        with atomic(folders[0] / "data") as draft:
            draft.write_text("half")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(LarkError, match="No space left"):
        Store(tmp_path).ensure([artifact()], build)
    assert not [p for p in tmp_path.rglob("*") if "data" in p.name]


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path: Path) -> None:
    """Not the draft that could not be renamed."""
    (tmp_path / "summary.md").mkdir()
    with (
        pytest.raises(LarkError, match=r"summary\.md: there is a folder where a file is expected"),
        disk_errors(tmp_path),
    ):
        write_text(tmp_path / "summary.md", "text")


def test_an_outputs_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LarkError, match="cannot be written"):
        Store(tmp_path / "file")


@pytest.mark.parametrize(
    ("kind", "said"), [("file", "is a file"), ("dangling", "is a link that leads nowhere")]
)
@pytest.mark.parametrize("what", ["outputs/.locks", "outputs"])
def test_what_is_in_the_place_of_the_outputs_is_named(
    what: str, kind: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / what
    path.parent.mkdir(exist_ok=True)
    if kind == "file":
        path.write_text("x")
    else:
        path.symlink_to(tmp_path / "no" / "where" / "at all")
    with pytest.raises(
        LarkError, match=rf"outputs=.*outputs cannot be written \({path} {said}\): remove it, or choose"
    ):
        Store(tmp_path / "outputs")


def test_checksums_of_inputs_follow_their_content(tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    path.write_text("one")
    first = Checksums(tmp_path)(path)
    assert Checksums(tmp_path)(path) == first
    path.write_text("two")
    assert Checksums(tmp_path)(path) != first
    assert json.loads((tmp_path / ".cache" / "checksums.json").read_text())


def test_a_damaged_entry_of_the_cache_is_not_used(tmp_path: Path) -> None:
    path, cache = tmp_path / "pool.jsonl", tmp_path / ".cache" / "checksums.json"
    path.write_text("one")
    right = Checksums(tmp_path)(path)
    text = cache.read_text()
    for wrong in (right[:-1], right[:-1] + ("0" if right[-1] != "0" else "1")):
        cache.write_text(text.replace(right, wrong))
        assert Checksums(tmp_path)(path) == right
    cache.write_text(text)
    assert Checksums(tmp_path).entries
