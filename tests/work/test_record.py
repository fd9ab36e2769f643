"""The record of a run: one line when it starts, after each step, and when it ends."""

import json
from pathlib import Path
from typing import Any

import pytest

from lark.errors import LarkError
from lark.pipeline.pipeline import Pipeline
from lark.store.store import Artifact, Kind
from lark.work.operation import Operation, Step
from lark.work.record import RECORD_FILE, Record
from tests.conftest import SMALL, composed


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / RECORD_FILE).read_text().splitlines()]


def step(*artifacts: Artifact) -> Step:
    return Step(Operation(name="score", stage="score", run=lambda job: {}), artifacts)


def test_a_run_records_its_plan_its_steps_and_its_end(tmp_path: Path) -> None:
    scores, tokens = Artifact(Kind("scores"), "demo", {}), Artifact(Kind("tokens"), "demo", {})
    record = Record(tmp_path / "run")
    record.start(["budget=3"], [step(scores, tokens)])
    record.step(step(scores, tokens), [tokens], 1.5)
    record.end(None)
    start, done, end = lines(tmp_path / "run")
    assert start["typed"] == ["budget=3"] and start["plan"][0]["artifacts"] == [
        str(scores.folder),
        str(tokens.folder),
    ]
    assert (done["made"], done["reused"], done["seconds"]) == (
        [str(tokens.folder)],
        [str(scores.folder)],
        1.5,
    )
    assert (start["event"], done["event"], end["event"], end["error"]) == ("start", "step", "end", None)
    assert start["run"] == done["run"] == end["run"]


def test_runs_in_one_folder_are_appended(tmp_path: Path) -> None:
    for said in ("first", "second"):
        Record(tmp_path).end(LarkError(said))
    assert [line["error"] for line in lines(tmp_path)] == ["first", "second"]


def test_a_record_that_cannot_be_written_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    Record(tmp_path / "file" / "run").end(None)


def test_credentials_are_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrst")
    record = Record(tmp_path)
    record.start(["pool.path=hf_abcdefghijklmnopqrst"], [])
    record.end(LarkError("401 for hf_abcdefghijklmnopqrst"))
    assert "abcdefghij" not in (tmp_path / RECORD_FILE).read_text()


def test_a_failed_run_records_why(tmp_path: Path) -> None:
    pool = tmp_path / "pool.jsonl"
    pool.write_text("not JSON\n")
    arguments = [
        *SMALL,
        f"outputs={tmp_path / 'outputs'}",
        "pool=files",
        f"pool.path={pool}",
        "tracking=none",
    ]
    with pytest.raises(LarkError):
        Pipeline(composed(*arguments), tmp_path / "run").run(typed=arguments)
    *_, end = lines(tmp_path / "run")
    assert end["event"] == "end" and "pool.jsonl" in end["error"]
