"""A pool that grows is scored only where it is new, and has the scores of a fresh pass."""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lark.config import Config
from lark.demo.pool import trajectories
from lark.pipeline import pipeline
from lark.pipeline.pipeline import Pipeline
from lark.pool.trajectories import KEY
from lark.scoring import forward, worker
from lark.scoring.contents import Chat, Contents
from lark.scoring.forward import LoadedStudent
from lark.scoring.pool_pass import as_arrow
from lark.scoring.taken import TAKEN, Taken
from lark.scoring.tokens import places, read_trajectories
from tests.conftest import composed, work_here

Row = dict[str, Any]
ROWS = [row for row in trajectories(4, 42) if row["rollout"] != 2]
"""4 questions, 11 teachers, 2 rollouts."""
NEW = "terse"
"""The teacher that is added."""
SMALL = [row for row in ROWS if row["teacher"] != NEW]


def renamed(row: Row) -> Row:
    return row | {"question_id": f"other-{row['question_id']}", "candidate_id": f"c-{row['candidate_id']}"}


@dataclass(frozen=True)
class Run:
    """A run of the real pipeline in this process."""

    config: Config
    outputs: Path
    folders: dict[str, Path]

    def counts(self, kind: str) -> dict[str, Any]:
        manifest = json.loads((self.folders[kind] / "manifest.json").read_text())
        assert manifest["status"] == "finished"
        return dict(manifest["counts"])

    def table(self, kind: str) -> pd.DataFrame:
        return pd.read_parquet(self.folders[kind] / f"{kind}.parquet")


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "run_worker", work_here)


def settings(outputs: Path, rows: Sequence[Row], *arguments: str) -> Config:
    outputs.mkdir(parents=True, exist_ok=True)
    path = outputs / "pool.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return composed(
        "pool=files", f"pool.path={path}", "stages=[score]", "tracking=none", "hardware.warm=false",
        "scoring.shard_tokens=2000", f"outputs={outputs}", *arguments,
    )  # fmt: skip


def scored(outputs: Path, rows: Sequence[Row], *arguments: str) -> Run:
    config = settings(outputs, rows, *arguments)
    run = Pipeline(config, outputs / "run")
    run.run()
    folders = {}
    for step in run.steps:
        folders |= {artifact.kind.name: run.store.path(artifact) for artifact in step.artifacts}
    return Run(config, outputs, folders)


def grown(outputs: Path, before: Sequence[Row], after: Sequence[Row], *arguments: str) -> tuple[Run, Run]:
    """The scores of a pool after those of a smaller one, and its scores in other outputs."""
    scored(outputs / "grown", before, *arguments)
    return scored(outputs / "grown", after, *arguments), scored(outputs / "fresh", after, *arguments)


def assert_same(grown: pd.DataFrame, fresh: pd.DataFrame) -> None:
    """Rows, order and types are the same, and numbers to the precision of decision 15."""
    pd.testing.assert_frame_equal(grown, fresh, rtol=1e-5, atol=1e-6)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of trajectories that the student is run on in scoring passes."""
    seen: list[int] = []
    original = worker.response_statistics

    def counted(student: Any, batch: Sequence[Any], *arguments: Any) -> Iterator[Any]:
        seen.extend(len(encoded.ids) for encoded in batch)
        return original(student, batch, *arguments)

    monkeypatch.setattr(worker, "response_statistics", counted)
    return seen


CHANGES: dict[str, Callable[[list[Row]], list[Row]]] = {
    "a new teacher": lambda rows: rows,
    "another order": lambda rows: rows[::-1],
    "other ids": lambda rows: [renamed(row) for row in rows],
}


@pytest.mark.parametrize("change", CHANGES)
def test_only_a_new_teachers_trajectories_are_scored(
    change: str, tmp_path: Path, computed: list[int]
) -> None:
    scored(tmp_path / "grown", SMALL)
    before = len(computed)
    rows = CHANGES[change](ROWS)
    run = scored(tmp_path / "grown", rows)
    assert before == len(SMALL)
    assert len(computed) - before == len(ROWS) - len(SMALL)
    fresh = scored(tmp_path / "fresh", rows)
    for kind in ("lengths", "scores"):
        assert run.folders[kind].name == fresh.folders[kind].name
        assert_same(run.table(kind), fresh.table(kind))
        (source,) = run.counts(kind)["taken_from"]
        assert run.counts(kind)["taken_over"] == len(SMALL)
        assert (tmp_path / "grown" / source).is_dir()
        assert source != f"{kind}/{run.folders[kind].name}"
    assert not list((tmp_path / "grown").rglob(TAKEN))


def test_a_smaller_pool_is_scored_without_the_student(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = scored(tmp_path, ROWS)
    monkeypatch.setattr(LoadedStudent, "load", None)
    some = [row for row in ROWS if row["question_id"] in ("demo-00001", "demo-00003")]
    part = scored(tmp_path, some)
    assert part.counts("scores")["taken_over"] == len(some)
    expected = whole.table("scores").merge(part.table("scores")[KEY])
    assert_same(part.table("scores"), expected)


def test_rows_come_from_several_artifacts_and_equal_ones_from_one(tmp_path: Path, computed: list[int]) -> None:
    first, second = ROWS[:22], ROWS[22:44]
    scored(tmp_path / "grown", first)
    scored(tmp_path / "grown", second)
    before = len(computed)
    twice = [*first, *second, renamed(first[0])]
    run = scored(tmp_path / "grown", twice)
    assert len(computed) == before
    assert sorted(run.counts("scores")["taken_from"].values()) == [len(second), len(first) + 1]
    assert_same(run.table("scores"), scored(tmp_path / "fresh", twice).table("scores"))


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("entropy", "entropy"), ("top50", "lark_top50"), ("unprompted", "ifd"), ("local", "local_naturalness"),
        ("text", "rule_quality"),
    ],
)  # fmt: skip
def test_every_table_of_a_trajectory_is_that_of_a_fresh_pass(kind: str, method: str, tmp_path: Path) -> None:
    run, fresh = grown(tmp_path, SMALL, ROWS[::-1], f"method={method}")
    assert run.counts(kind)["taken_over"] == len(SMALL)
    assert_same(run.table(kind), fresh.table(kind))


def test_a_question_with_a_new_candidate_is_sketched_again_and_others_are_not(tmp_path: Path) -> None:
    """g* compares the candidates of a question with each other."""
    before = [row for row in ROWS if row["teacher"] != NEW or row["question_id"] != "demo-00002"]
    after = [*ROWS[::-1], *trajectories(5, 42)][:-31]
    run, fresh = grown(tmp_path, before, after, "method=less", "method.validation.questions=3")
    in_others = [row for row in ROWS if row["question_id"] != "demo-00002"]
    assert run.counts("exact")["taken_over"] == len(in_others)
    for kind in ("exact", "features"):
        assert_same(run.table(kind), fresh.table(kind))
    assert_same(run.table("influence"), fresh.table("influence"))
    more, new = grown(tmp_path / "gram", before, after, "method=lark_gram")
    assert more.counts("gram")["taken_over"] == len(in_others)
    assert_same(more.table("gram"), new.table("gram"))
