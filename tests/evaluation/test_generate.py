"""Generation survives `kill -9`: the answers are the same in the end, and none is generated twice."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lark.evaluation import grade as grading
from lark.evaluation.generate import generate
from lark.evaluation.operations import GENERATE
from lark.generation.journal import Journal, read
from lark.models.students import DEMO
from lark.runtime.launch import environment, read_job, write_job
from lark.runtime.machine import Machine
from lark.runtime.operation import Job
from tests.conftest import ROOT, composed

SETTINGS = composed(
    "benchmark=demo_words", "benchmark.tasks.demo_words.limit=12", "benchmark.decoding.samples=2", "engine.batch=4",
    "benchmark.decoding.seeds=[0,1]", "benchmark.decoding.max_new_tokens=150", "benchmark.decoding.temperature=1.5",
)  # fmt: skip
MACHINE = Machine("cpu", 1, 1, 1)


def job_file(folder: Path) -> Path:
    folder.mkdir()
    assert isinstance(GENERATE.run, str)
    return write_job(Job("generate", folder, {"demo_words": folder}, {}, str(DEMO), SETTINGS, MACHINE), GENERATE.run)


def finish(path: Path, ranks: int = 1) -> str:
    """Generate the rest in this process, as `ranks` processes one after the other, and return the merged file."""
    job, _ = read_job(path)
    for rank in range(ranks):
        assert generate(replace(job, rank=rank, world=ranks)) == {"demo_words": {"problems": 12}}
    assert grading.merge_generations(path.parent) == {"generations": 12 * 2 * 2}
    return (path.parent / grading.GENERATIONS.file).read_text()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return finish(job_file(tmp_path_factory.mktemp("undisturbed") / "run"))


def test_killed_while_generating_it_ends_with_the_same_answers_and_repeats_none(tmp_path: Path, undisturbed: str) -> None:
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
        handle.write(b'{"problem": "demo_words-0')  # left by a kill in the middle of a write
    job, _ = read_job(path)
    generate(job)
    rows = list(read([shard]))
    assert rows[: len(kept)] == kept
    assert len({(row["problem"], row["seed"]) for row in rows}) == len(rows) == 24
    assert finish(path) == undisturbed


def test_the_number_of_processes_changes_nothing_and_may_change_in_between(tmp_path: Path, undisturbed: str) -> None:
    path = job_file(tmp_path / "run")
    job, _ = read_job(path)
    generate(replace(job, rank=1, world=2))
    assert len(list(read([path.parent / grading.shard(1)]))) == 12
    assert finish(path, ranks=3) == undisturbed


def test_a_run_that_is_killed_while_merging_generates_nothing_again(tmp_path: Path, undisturbed: str) -> None:
    path = job_file(tmp_path / "run")
    (path.parent / "problems.jsonl").write_text("")
    (path.parent / grading.GENERATIONS.file).write_text(undisturbed)
    job, _ = read_job(path)
    generate(job)
    assert not list(path.parent.glob(grading.SHARDS))
    assert grading.merge_generations(path.parent) == {"generations": 48}


def test_a_journal_continues_after_its_last_complete_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for n in range(3):
        with Journal(path) as journal:
            journal.append({"n": n, "text": "Ü\n\u2028"})
        with path.open("ab") as handle:
            handle.write('{"n": 99, "text": "Ü'.encode()[:-1])
    assert [row["n"] for row in read([path])] == [0, 1, 2]
    assert [row["n"] for row in read([tmp_path / "journal.jsonl"])] == [0, 1, 2]
