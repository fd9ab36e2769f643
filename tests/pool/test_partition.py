"""A pool of many files, read in several processes: the trajectories of one process, in the same order,
whatever their number.
"""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lark import config as conf
from lark.errors import LarkError
from lark.pool import partition, worker
from lark.pool import trajectories as pools
from lark.pool.cleaning import Tally
from lark.pool.read import read
from lark.scoring.shards import read_rows
from tests.conftest import composed, job_of, work_here

ROWS = 60


def write_files(folder: Path, given: bool, count: int = 5) -> conf.Pool:
    """Files with trajectories of the same questions. `given`: whether they have candidate ids."""
    draw = random.Random(0)
    folder.mkdir()
    number = 0
    for file in range(count):
        lines = []
        for _ in range(ROWS + file):
            question = draw.randrange(40)
            response = "so " * draw.randrange(1, 60) + f"\\boxed{{{draw.randrange(3)}}}"
            row: dict[str, Any] = {
                "question_id": f"q{question}",
                "question": f"What is {question}?",
                "teacher": f"t{file % 3}",
            }
            row |= {"response": response, "answer": "1"}
            if given:
                row |= {"candidate_id": f"c{number}", "rollout": number}
            if file == 1:
                row["remark"] = "not used"
            lines.append(json.dumps(row))
            number += 1
        (folder / f"part-{file}.jsonl").write_text("\n".join(lines) + "\n")
    return conf.Pool(name="many", format="rows", path=str(folder))


def one_process(pool: conf.Pool, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    tally = Tally()
    return pools.write(read(pool, tally), folder / pools.FILE, pool, tally)


def parts(pool: conf.Pool, folder: Path, processes: int) -> dict[str, Any]:
    folder.mkdir()
    return partition.write_parts(pool, partition.groups(pool), folder, processes)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "PART_BYTES", 9000)


@pytest.mark.parametrize("given", [True, False])
def test_parts_have_the_trajectories_of_one_file_in_its_order_whatever_the_number_of_processes(
    tmp_path: Path, given: bool
) -> None:
    pool = write_files(tmp_path / "files", given)
    whole = one_process(pool, tmp_path / "one")
    counts = [parts(pool, tmp_path / str(processes), processes) for processes in ((1, 3) if given else (2,))]
    for said, folder in zip(counts, ("1", "3") if given else ("2",), strict=True):
        assert said == {**whole, "parts": len(partition.groups(pool))} and said["parts"] > 2
        path, single = tmp_path / folder / pools.FILE, tmp_path / "one" / pools.FILE
        assert len(pools.parts(path)) == said["parts"] and not path.exists()
        assert list(pools.iterate(path)) == list(pools.iterate(single))
        assert pools.frame(path, pools.KEY).equals(pools.frame(single, pools.KEY))
        total = len(pools.frame(single, pools.KEY))
        assert pools.group_rows(path)[-1].stop == total
        for rows in (range(0, 3), range(ROWS - 5, ROWS + 70), range(total - 1, total)):
            assert read_rows(path, rows, pools.TEXT_COLUMNS) == read_rows(single, rows, pools.TEXT_COLUMNS)
    if given:
        for part in pools.parts(tmp_path / "1" / pools.FILE):
            assert part.read_bytes() == (tmp_path / "3" / part.name).read_bytes()


def test_ids_and_answers_of_different_parts_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "PART_BYTES", 1)
    monkeypatch.setattr(worker, "run_worker", work_here)
    files = tmp_path / "files"
    files.mkdir()
    for number, (identity, answer) in enumerate([("a", "5"), ("a", "6"), ("b", "5")]):
        row = {"question": "How many?", "response": f"{number}", "question_id": identity, "answer": answer}
        (files / f"{number}.jsonl").write_text(json.dumps(row) + "\n")
    pool = conf.Pool(name="p", format="rows", path=str(files))
    whole = one_process(pool, tmp_path / "one")
    assert whole["same_text"]["examples"] == ["a", "b"] and whole["contradicted"]["examples"] == ["a"]
    assert parts(pool, tmp_path / "parts", 1) == {**whole, "parts": 3}
    folder = tmp_path / "shards"
    folder.mkdir()
    job = job_of(replace(composed(), pool=pool), folder)
    assert worker.write_parts_on_cluster(job, partition.groups(pool)) == {**whole, "parts": 3}


@pytest.mark.parametrize("given", [True, False])
def test_groups_that_are_read_as_shards_make_the_same_parts_and_resume(
    tmp_path: Path, given: bool, monkeypatch
) -> None:
    """As on a cluster, in this process."""
    monkeypatch.setattr(worker, "run_worker", work_here)
    pool = write_files(tmp_path / "files", given)
    whole = one_process(pool, tmp_path / "one")
    folder = tmp_path / "shards"
    folder.mkdir()
    job, split = job_of(replace(composed(), pool=pool), folder), partition.groups(pool)
    read_one, done = partition.read_group, list[Path]()

    def interrupted(
        pool: conf.Pool, files: list[Path], part: Path, start: dict[str, int]
    ) -> partition.GroupReport:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(part)
        return read_one(pool, files, part, start)

    monkeypatch.setattr(worker, "read_group", interrupted)
    with pytest.raises(KeyboardInterrupt):
        worker.write_parts_on_cluster(job, split)
    times = {part: part.stat().st_mtime_ns for part in done}
    monkeypatch.setattr(worker, "read_group", read_one)
    assert worker.write_parts_on_cluster(job, split) == {**whole, "parts": len(split)}
    assert list(pools.iterate(folder / pools.FILE)) == list(pools.iterate(tmp_path / "one" / pools.FILE))
    assert sorted(path.name for path in folder.iterdir()) == [
        pools.part_name(number) for number in range(len(split))
    ]
    assert not given or times == {part: part.stat().st_mtime_ns for part in done}


def test_groups_depend_on_the_files_alone_and_small_pools_are_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = write_files(tmp_path / "files", given=True)
    split = partition.groups(pool)
    assert [file for group in split for file in group] == sorted(Path(str(pool.path)).iterdir())
    assert all(sum(file.stat().st_size for file in group) >= partition.PART_BYTES for group in split[:-1])
    assert not partition.groups(conf.Pool(name="many", format="rows", path=pool.path, questions=5))
    monkeypatch.setattr(partition, "PART_BYTES", 64_000_000)
    assert not partition.groups(pool)


def test_errors_name_the_file_and_the_line_also_of_what_two_files_disagree_on(tmp_path: Path) -> None:
    pool = write_files(tmp_path / "files", given=True)
    files = sorted(Path(str(pool.path)).iterdir())
    lines = files[3].read_text().splitlines()
    first = json.loads(files[0].read_text().splitlines()[4])

    def refused(name: str, line: dict[str, Any] | str) -> str:
        text = line if isinstance(line, str) else json.dumps(line)
        files[3].write_text("\n".join([*lines[:7], text, *lines[7:]]) + "\n")
        with pytest.raises(LarkError) as alone:
            one_process(pool, tmp_path / f"one-{name}")
        with pytest.raises(LarkError) as together:
            parts(pool, tmp_path / f"parts-{name}", 2)
        assert str(together.value) == str(alone.value)
        assert f"{files[3]}" in str(together.value) and "8" in str(together.value)
        return str(together.value)

    assert "JSON" in refused("broken", "{not json")
    assert "appears a second time" in refused("twice", first)
    assert "has another question text" in refused(
        "text", {**first, "candidate_id": "new", "question": "Something else?"}
    )
