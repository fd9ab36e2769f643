"""Generation survives `kill -9`: the answers are the same in the end, and none is generated twice."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lark.errors import LarkError
from lark.evaluation import shards
from lark.evaluation.benchmarks import load
from lark.evaluation.generate import generate
from lark.generation.journal import CHECK, Journal, checksum
from lark.generation.journal import read as read_journal
from lark.models.students import DEMO
from lark.pipeline.operations.evaluate import GENERATE
from lark.work.launch import environment, read_job, write_job
from lark.work.machine import Machine
from lark.work.operation import Job
from tests.conftest import ROOT, composed

SETTINGS = composed(
    "benchmark=demo_words",
    "benchmark.tasks.demo_words.limit=12",
    "benchmark.decoding.samples=2",
    "engine.batch=4",
    "benchmark.decoding.seeds=[0,1]",
    "benchmark.decoding.max_new_tokens=150",
    "benchmark.decoding.temperature=1.5",
)
MACHINE = Machine("cpu", 1, 1, 1)
PLAN = shards.WantedSamples(
    tuple(problem.id for problem in load("demo_words", SETTINGS.benchmark.tasks["demo_words"])), (0, 1), 2
)


def read(paths: list[Path]) -> list[dict[str, Any]]:
    return list(read_journal(paths, paths[0].parent.name, PLAN.problem))


def job_file(folder: Path) -> Path:
    folder.mkdir()
    assert isinstance(GENERATE.run, str)
    return write_job(
        Job("generate", folder, {"demo_words": folder}, {}, str(DEMO), SETTINGS, MACHINE), GENERATE.run
    )


def finish(path: Path, ranks: int = 1) -> str:
    """Generate the rest in this process, as `ranks` processes one after the other, and return the merged
    file.
    """
    job, _ = read_job(path)
    for rank in range(ranks):
        assert generate(replace(job, rank=rank, world=ranks)) == {"demo_words": {"problems": 12}}
    assert shards.merge(path.parent, PLAN) == {"generations": 12 * 2 * 2}
    return (path.parent / shards.GENERATIONS.file).read_text()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return finish(job_file(tmp_path_factory.mktemp("undisturbed") / "run"))


def test_killed_while_generating_it_ends_with_the_same_answers_and_repeats_none(
    tmp_path: Path, undisturbed: str
) -> None:
    path = job_file(tmp_path / "run")
    shard = path.parent / shards.shard("00000")
    process = subprocess.Popen(
        [sys.executable, "-m", "lark.work.worker", str(path)], cwd=ROOT, env=environment(MACHINE)
    )
    deadline = time.time() + 300
    while (
        (not shard.exists() or shard.read_bytes().count(b"\n") < 3)
        and process.poll() is None
        and time.time() < deadline
    ):
        time.sleep(0.005)
    assert process.poll() is None, "it ended before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = read([shard])
    assert 3 <= len(kept) < 24
    with shard.open("ab") as handle:
        handle.write(b'{"problem": "demo_words-0')  # left by a kill in the middle of a write
    job, _ = read_job(path)
    generate(job)
    rows = read([shard])
    assert rows[: len(kept)] == kept
    assert len({(row["problem"], row["seed"]) for row in rows}) == len(rows) == 24
    assert finish(path) == undisturbed


def test_the_number_of_processes_changes_nothing_and_may_change_in_between(
    tmp_path: Path, undisturbed: str
) -> None:
    path = job_file(tmp_path / "run")
    job, _ = read_job(path)
    generate(replace(job, rank=1, world=2))
    assert len(read([path.parent / shards.shard("00001")])) == 12
    assert finish(path, ranks=3) == undisturbed


def test_a_run_that_is_killed_while_merging_generates_nothing_again(tmp_path: Path, undisturbed: str) -> None:
    path = job_file(tmp_path / "run")
    assert finish(path) == undisturbed
    assert not list(path.parent.glob(shards.SHARD_FILES))
    generate(read_job(path)[0])
    assert not list(path.parent.glob(shards.SHARD_FILES))
    assert shards.merge(path.parent, PLAN) == {"generations": 48}


@pytest.mark.parametrize(
    "harm", ["text", "number", "no checksum", "another checksum", "checksum is a folder"]
)
def test_merged_answers_that_changed_before_the_run_ended_are_not_used(
    harm: str, answered: list[bytes], undisturbed: str, tmp_path: Path
) -> None:
    """A run that is killed between merging and its manifest leaves neither shards nor the manifest's
    checksum.
    """
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / shards.shard(0)).write_bytes(b"".join(answered))
    shards.merge(folder, PLAN)
    assert shards.merged(folder) and (folder / shards.GENERATIONS.file).read_text() == undisturbed
    if harm in ("text", "number"):
        old, new = {"text": ('"text": "', '"text": "9'), "number": ('"n_tokens": ', '"n_tokens": 1')}[harm]
        (folder / shards.GENERATIONS.file).write_text(undisturbed.replace(old, new, 1))
    elif harm == "another checksum":
        (folder / shards.CHECKSUM).write_text("0" * 64)
    else:
        (folder / shards.CHECKSUM).unlink()
        if harm == "checksum is a folder":
            (folder / shards.CHECKSUM).mkdir()
    assert not shards.merged(folder)
    with pytest.raises(LarkError, match="24 of 24 answers are missing"):
        shards.merge(folder, PLAN)


def test_a_journal_continues_after_its_last_complete_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for n in range(3):
        with Journal(path, "owner") as journal:
            journal.append({"n": n, "text": "Ü\n\u2028"})
        with path.open("ab") as handle:
            handle.write('{"n": 99, "text": "Ü'.encode()[:-1])
    assert [row["n"] for row in read_journal([path], "owner", lambda row: None)] == [0, 1, 2]
    assert not list(read_journal([path], "another", lambda row: None))


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The lines of a complete journal."""
    path = job_file(tmp_path_factory.mktemp("answered") / "run")
    generate(read_job(path)[0])
    return (path.parent / shards.shard("00000")).read_bytes().splitlines(keepends=True)


def rechecked(row: dict[str, Any]) -> bytes:
    """A line as a journal of this folder would write it."""
    record = {key: value for key, value in row.items() if key != CHECK}
    return json.dumps({**record, CHECK: checksum(record, "run")}, ensure_ascii=False).encode() + b"\n"


def with_text(row: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**row, "samples": [{**row["samples"][0], **changes}, *row["samples"][1:]]}


HARM: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "removed": lambda row: b"",
    "blank": lambda row: b"  \n",
    "broken": lambda row: rechecked(row)[:40] + b"\n",
    "binary": lambda row: b"\xff\x00\xfe\n",
    "nested": lambda row: b"[" * 50_000 + b"\n",
    "not an object": lambda row: b"[1]\n",
    "text changed": lambda row: json.dumps(with_text(row, text="6")).encode() + b"\n",
    "unchecked": lambda row: (
        json.dumps({key: value for key, value in row.items() if key != CHECK}).encode() + b"\n"
    ),
    "another problem": lambda row: rechecked({**row, "problem": "gone"}),
    "another seed": lambda row: rechecked({**row, "seed": 7}),
    "seed of another type": lambda row: rechecked({**row, "seed": "0"}),
    "a sample too few": lambda row: rechecked({**row, "samples": row["samples"][:1]}),
    "a sample too many": lambda row: rechecked({**row, "samples": row["samples"] * 2}),
}
"""What a line can become."""


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_or_foreign_line_loses_its_answer_only(
    harm: str, answered: list[bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    row = json.loads(answered[7])
    (folder / shards.shard("00000")).write_bytes(b"".join([*answered[:7], HARM[harm](row), *answered[8:]]))
    missing = (row["problem"], row["seed"])
    assert set(PLAN.keys) - set(shards.stored(folder, PLAN, report=True)) == {missing}
    assert harm == "removed" or "shard-00000.jsonl, line 8: " in caplog.text
    with pytest.raises(
        LarkError, match=f"1 of 24 answers are missing or damaged .problem {missing[0]}, seed {missing[1]}"
    ):
        shards.merge(folder, PLAN)


def test_repeated_lines_and_shards_change_nothing(
    answered: list[bytes], undisturbed: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also a second shard whose answers differ: the first intact one counts, and the repetition is
    reported.
    """
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / shards.shard("00000")).write_bytes(b"".join([*answered, answered[3], answered[3]]))
    (folder / shards.shard("00001")).write_bytes(
        b"".join(rechecked(with_text(json.loads(line), text="6")) for line in answered)
    )
    (folder / "shard-99999.jsonl").write_bytes(b"".join(answered))
    shards.stored(folder, PLAN, report=True)
    assert "the answer is stored twice; the first one counts (and 49 more)" in caplog.text
    shards.merge(folder, PLAN)
    assert (folder / shards.GENERATIONS.file).read_text() == undisturbed


def test_what_damage_has_lost_is_generated_again(
    answered: list[bytes], undisturbed: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = job_file(tmp_path / "run")
    lines = [harm(json.loads(line)) for line, harm in zip(answered, HARM.values(), strict=False)]
    (path.parent / shards.shard("00000")).write_bytes(b"".join([*lines, *answered[len(lines) :]]))
    assert finish(path) == undisturbed
    assert f"shard-00000.jsonl, line 1: the line is empty (and {len(HARM) - 2} more)" in caplog.text


def test_a_merged_file_that_is_not_as_planned_is_made_again(
    answered: list[bytes], undisturbed: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = job_file(tmp_path / "run")
    lines = undisturbed.splitlines(keepends=True)
    for damaged in (
        lines[:-1],
        [*lines, lines[0]],
        [*lines[1:], lines[0]],
        [*lines[:-1], "{\n"],
        ["{}\n", *lines[1:]],
    ):
        caplog.clear()
        (path.parent / shards.GENERATIONS.file).write_text("".join(damaged))
        (path.parent / shards.shard("00000")).write_bytes(b"".join(answered))
        assert finish(path) == undisturbed
        assert "does not contain exactly the planned answers" in caplog.text
