"""Generation survives `kill -9`: the same answers in the end, and none asked for twice."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from lark.evaluation import grade as grading
from lark.evaluation.generate import generate
from lark.generation.journal import Journal, read
from lark.models.students import DEMO
from lark.runtime.launch import environment
from lark.runtime.machine import Machine
from lark.runtime.worker import Job, read_job
from tests.conftest import ROOT, composed

SETTINGS = composed(
    "benchmark=demo_words", "benchmark.tasks.demo_words.limit=12", "benchmark.decoding.samples=2", "engine.batch=4",
    "benchmark.decoding.seeds=[0,1]", "benchmark.decoding.max_new_tokens=150", "benchmark.decoding.temperature=1.5",
)  # fmt: skip
MACHINE = Machine("cpu", 1, 1, 1)


def job_file(folder: Path) -> Path:
    folder.mkdir()
    job: dict[str, Any] = {"task": "generate", "folder": str(folder), "inputs": {"student": str(DEMO)}}
    job |= {"gpus": 1, "extra": {"tasks": {"demo_words": str(folder)}}, "config": asdict(SETTINGS), "machine": asdict(MACHINE)}
    (folder / "job.json").write_text(json.dumps(job))
    return folder / "job.json"


def finish(path: Path, ranks: int = 1) -> str:
    """The rest of the work in this process, as `ranks` processes one after the other, put together."""
    job = read_job(path)
    for rank in range(ranks):
        generate(Job(**{**vars(job), "rank": rank, "world": ranks}))
    assert grading.merge_generations(path.parent) == {"generations": 12 * 2 * 2}
    return (path.parent / grading.GENERATIONS).read_text()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return finish(job_file(tmp_path_factory.mktemp("undisturbed") / "run"))


def test_killed_while_generating_it_ends_with_the_same_answers_and_asks_for_none_twice(
    tmp_path: Path, undisturbed: str
) -> None:
    path = job_file(tmp_path / "run")
    shard = path.parent / grading.shard(0)
    process = subprocess.Popen([sys.executable, "-m", "lark.runtime.worker", str(path)], cwd=ROOT, env=environment(MACHINE))
    deadline = time.time() + 300
    while (not shard.exists() or shard.read_bytes().count(b"\n") < 3) and process.poll() is None and time.time() < deadline:
        time.sleep(0.005)
    assert process.poll() is None, "it ended before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = list(read([shard]))
    assert 3 <= len(kept) < 24
    with shard.open("ab") as handle:
        handle.write(b'{"problem": "demo_words-0')  # what a kill in the middle of a write leaves
    job = read_job(path)
    generate(job)
    rows = list(read([shard]))
    assert rows[: len(kept)] == kept
    assert len({(row["problem"], row["seed"]) for row in rows}) == len(rows) == 24
    assert finish(path) == undisturbed


def test_the_number_of_processes_changes_nothing_and_may_change_in_between(tmp_path: Path, undisturbed: str) -> None:
    path = job_file(tmp_path / "run")
    job = read_job(path)
    generate(Job(**{**vars(job), "rank": 1, "world": 2}))
    assert len(list(read([path.parent / grading.shard(1)]))) == 12
    assert finish(path, ranks=3) == undisturbed


def test_a_run_that_is_killed_while_merging_generates_nothing_again(tmp_path: Path, undisturbed: str) -> None:
    path = job_file(tmp_path / "run")
    (path.parent / "problems.jsonl").write_text("")
    (path.parent / grading.GENERATIONS).write_text(undisturbed)
    generate(read_job(path))
    assert not list(path.parent.glob(grading.SHARDS))
    assert grading.merge_generations(path.parent) == {"generations": 48}


def test_a_journal_goes_on_behind_its_last_complete_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for n in range(3):
        with Journal(path) as journal:
            journal.append({"n": n, "text": "Ü\n\u2028"})
        with path.open("ab") as handle:
            handle.write('{"n": 99, "text": "Ü'.encode()[:-1])
    assert [row["n"] for row in read([path])] == [0, 1, 2]
    assert [row["n"] for row in read([tmp_path / "journal.jsonl"])] == [0, 1, 2]
