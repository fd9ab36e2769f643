"""Batch files instead of a run: the requests of what is missing, and their results as answers."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lark.errors import LarkError
from lark.pipeline.pipeline import Pipeline
from lark.teaching.__main__ import main
from tests.conftest import composed
from tests.generation.misbehaving import completion

MODEL = "teacher-7b"
SETTINGS = [
    "pool=taught", "questions.path=demo", "questions.number=4", "teach.samples=2", "stages=[pool]",
    "teacher=[endpoint]", "teacher.endpoint.endpoint=https://127.0.0.1:9/v1",
    f"teacher.endpoint.model={MODEL}", "teacher.endpoint.price.output=2", "tracking=none",
    "hardware.threads=1",
]  # fmt: skip


class Batch:
    """A run, and the folder of its batch files."""

    def __init__(self, folder: Path) -> None:
        self.settings = [*SETTINGS, f"outputs={folder / 'outputs'}"]
        self.folder = folder / "batch"
        self.outputs = folder / "outputs"

    def write(self, *more: str) -> list[dict[str, Any]]:
        """The requests that are written."""
        main(["batch", "write", str(self.folder), *self.settings, *more])
        requests = []
        for file in sorted((self.folder / "endpoint").glob("requests-*.jsonl")):
            requests += [json.loads(line) for line in file.read_text().splitlines()]
        return requests

    def answer(self, requests: list[dict[str, Any]], body: dict[str, Any] | None = None) -> None:
        """Save the results of requests, as a batch API does; without a body, completions."""
        lines = []
        for request in requests:
            answer = body or completion(f"\\boxed{{{request['body']['seed'] % 10}}}")
            response = {"status_code": 400 if body else 200, "request_id": "1", "body": answer}
            lines.append(json.dumps({"custom_id": request["custom_id"], "response": response, "error": None}))
        number = len(list((self.folder / "endpoint").glob("output*")))
        (self.folder / "endpoint" / f"output{number}.jsonl").write_text("\n".join(reversed(lines)) + "\n")

    def read(self, *more: str) -> None:
        main(["batch", "read", str(self.folder), *self.settings, *more])

    def pool(self, *more: str) -> pd.DataFrame:
        """The pool of the run. The port is closed, so nothing can be asked for."""
        Pipeline(composed(*self.settings, *more), self.outputs / "runs" / "test").run()
        return pd.concat(map(pd.read_parquet, self.outputs.glob("pool/*/trajectories.parquet")))


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    return Batch(tmp_path)


def test_a_run_continues_with_the_results_of_its_requests(batch: Batch) -> None:
    requests = batch.write()
    assert len(requests) == 8
    assert len({request["body"]["seed"] for request in requests}) == 8
    batch.answer(requests)
    batch.read()
    pool = batch.pool()
    assert len(pool) == 8
    assert set(pool["teacher"]) == {"endpoint"}
    (rollouts,) = batch.outputs.glob("rollouts/*/rollouts.jsonl")
    rows = [json.loads(line) for line in rollouts.read_text().splitlines()]
    assert [row["rollout"] for row in rows] == [0, 1] * 4
    assert {row["seed"] for row in rows} == {request["body"]["seed"] for request in requests}
    assert all(row["response"] == f"\\boxed{{{row['seed'] % 10}}}" for row in rows)
    assert rows[0]["cost"] == pytest.approx(8 * 2 / 1e6)


def test_only_what_is_missing_is_asked_for(batch: Batch) -> None:
    requests = batch.write()
    batch.answer(requests[:5])
    batch.read()
    left = batch.write()
    assert [request["custom_id"] for request in left] == [request["custom_id"] for request in requests[5:]]
    batch.answer(left)
    batch.read()
    batch.read()
    assert batch.write() == []
    assert len(batch.pool()) == 8


def test_more_samples_are_new_requests(batch: Batch) -> None:
    requests = batch.write()
    batch.answer(requests)
    batch.read()
    batch.pool()
    more = batch.write("teach.samples=3")
    assert [request["custom_id"].rpartition("/")[2] for request in more] == ["2"] * 4


def test_too_many_refused_requests_are_a_sentence(batch: Batch) -> None:
    requests = batch.write()
    batch.answer(requests, {"error": {"message": "no", "code": "content_filter"}})
    with pytest.raises(LarkError, match=r"failed at 4 of 4 questions \(content_filter: 4\)"):
        batch.read()


def test_a_folder_without_results_is_a_sentence(batch: Batch) -> None:
    batch.write()
    with pytest.raises(LarkError, match="there is no file with results"):
        batch.read()


def test_a_run_without_teachers_is_a_sentence(batch: Batch) -> None:
    with pytest.raises(LarkError, match="There is no teacher to ask with batch files"):
        main(["batch", "write", str(batch.folder), f"outputs={batch.outputs}"])
