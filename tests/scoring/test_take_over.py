"""A pool that grows is scored only where it is new, and has the scores of a fresh pass."""

import json
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lark.config import Config
from lark.demo.pool import trajectories
from lark.models.shapes import DEMO
from lark.pipeline import pipeline
from lark.pipeline.pipeline import Pipeline
from lark.pool.trajectories import KEY
from lark.scoring import worker
from lark.scoring.contents import verdict_key
from lark.scoring.forward import LoadedStudent
from lark.scoring.influence import directions
from lark.scoring.taken import TAKEN
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

    folders: dict[str, Path]

    def counts(self, kind: str) -> dict[str, Any]:
        manifest = json.loads((self.folders[kind] / "manifest.json").read_text())
        assert manifest["status"] == "finished"
        return dict(manifest["counts"])

    def table(self, kind: str) -> pd.DataFrame:
        return pd.read_parquet(self.folders[kind] / f"{kind}.parquet")

    def tokens(self) -> pd.DataFrame:
        """A row per token, in order."""
        folder = self.folders["tokens"]
        rows = [row for question in places(folder) for row in read_trajectories(folder, question)]
        columns = ("candidate_id", "token", "surprisal", "rank", "entropy")
        return pd.concat([pd.DataFrame({name: getattr(row, name) for name in columns}) for row in rows])


@pytest.fixture(autouse=True, scope="module")
def here() -> Iterator[None]:
    """The workers' work is done in this process, with students that are loaded once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "run_worker", work_here)
        patch.setattr(LoadedStudent, "load", loaded)
        yield


load = LoadedStudent.load


@cache
def with_gradients(gradients: bool) -> LoadedStudent:
    return load(str(DEMO), settings_of().student, "cpu", gradients)


def loaded(
    path: str, student: object, device: str, gradients: bool = False, fused: bool = False
) -> LoadedStudent:
    return with_gradients(gradients)


@cache
def settings_of(*arguments: str) -> Config:
    return composed(
        "pool=files", "pool.path=pool.jsonl", "stages=[score]", "tracking=none", "hardware.warm=false",
        "hardware.threads=1", "scoring.shard_tokens=2000", *arguments,
    )  # fmt: skip


def settings(outputs: Path, rows: Sequence[Row], *arguments: str) -> Config:
    """The settings of a run with a pool of these rows."""
    outputs.mkdir(parents=True, exist_ok=True)
    path = outputs / "pool.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    config = settings_of(*arguments)
    return replace(config, pool=replace(config.pool, path=str(path)), outputs=str(outputs))


def scored(outputs: Path, rows: Sequence[Row], *arguments: str) -> Run:
    run = Pipeline(settings(outputs, rows, *arguments), outputs / "run")
    run.run()
    folders = {}
    for step in run.steps:
        folders |= {artifact.kind.name: run.store.path(artifact) for artifact in step.artifacts}
    return Run(folders)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outputs with the scores and tokens of the small pool. Copied, never changed."""
    outputs = tmp_path_factory.mktemp("once")
    scored(outputs, SMALL, "scoring.tokens=true")
    return outputs


@pytest.fixture
def before(once: Path, tmp_path: Path) -> Path:
    return shutil.copytree(once, tmp_path / "before")


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The scores and tokens of the whole pool, without any others."""
    return scored(tmp_path_factory.mktemp("fresh"), ROWS, "scoring.tokens=true")


def by_key(table: pd.DataFrame) -> pd.DataFrame:
    return table.sort_values(KEY, ignore_index=True)


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


def test_only_a_new_teachers_trajectories_are_scored(before: Path, fresh: Run, computed: list[int]) -> None:
    run = scored(before, ROWS, "scoring.tokens=true")
    assert len(computed) == len(ROWS) - len(SMALL)
    for kind in ("lengths", "scores"):
        assert run.folders[kind].name == fresh.folders[kind].name
        assert_same(run.table(kind), fresh.table(kind))
    for kind in ("lengths", "scores", "tokens"):
        (source,) = run.counts(kind)["taken_from"]
        assert run.counts(kind)["taken_over"] == len(SMALL)
        assert (before / source / "manifest.json").is_file()
        assert source != f"{kind}/{run.folders[kind].name}"
    pd.testing.assert_frame_equal(run.tokens(), fresh.tokens(), rtol=1e-3, atol=1e-3)  # half floats
    assert not list(before.rglob(TAKEN))


def test_order_and_ids_do_not_matter(before: Path, fresh: Run, computed: list[int]) -> None:
    rows = [renamed(row) for row in random.Random(0).sample(ROWS, len(ROWS))]
    run = scored(before, rows)
    assert len(computed) == len(ROWS) - len(SMALL)
    names = dict(zip((tuple(renamed(row)[key] for key in KEY) for row in ROWS), ROWS, strict=True))
    table = run.table("scores")
    assert [tuple(ids) for ids in table[KEY].to_numpy()] == [tuple(row[key] for key in KEY) for row in rows]
    table[KEY] = [[names[tuple(ids)][key] for key in KEY] for ids in table[KEY].to_numpy()]
    assert_same(by_key(table), by_key(fresh.table("scores")))


def test_a_smaller_pool_is_scored_without_the_student(before: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoadedStudent, "load", None)
    (whole,) = before.glob("scores/*/scores.parquet")
    expected = pd.read_parquet(whole)
    some = [row for row in SMALL if row["question_id"] in ("demo-00001", "demo-00003")]
    part = scored(before, some)
    assert part.counts("scores")["taken_over"] == len(some)
    rows = expected["question_id"].isin(["demo-00001", "demo-00003"])
    assert_same(part.table("scores"), expected[rows].reset_index(drop=True))


def test_rows_come_from_several_artifacts_and_equal_rows_from_one(
    before: Path, fresh: Run, computed: list[int]
) -> None:
    others = [row for row in ROWS if row["teacher"] == NEW]
    scored(before, others)
    twice = [*ROWS, renamed(ROWS[0])]
    count = len(computed)
    run = scored(before, twice)
    assert len(computed) == count
    taken = run.counts("scores")["taken_from"]
    assert sorted(taken.values()) == [len(others) + 1, len(SMALL)]
    table = run.table("scores")
    assert_same(table[:-1], fresh.table("scores"))
    assert table["nll"][len(ROWS)] == table["nll"][0]


TABLES = [
    ("entropy", "entropy"), ("top50", "lark_top50"), ("unprompted", "ifd"), ("local", "local_naturalness"),
    ("text", "rule_quality"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "method"), TABLES)
def test_every_table_of_a_trajectory_is_that_of_a_fresh_pass(kind: str, method: str, tmp_path: Path) -> None:
    small, whole = SMALL[:20], ROWS[21::-1]
    scored(tmp_path / "grown", small, f"method={method}")
    run = scored(tmp_path / "grown", whole, f"method={method}")
    assert run.counts(kind)["taken_over"] == len(small)
    assert_same(run.table(kind), scored(tmp_path / "fresh", whole, f"method={method}").table(kind))


@pytest.mark.parametrize(("kind", "method"), [("exact", "less"), ("gram", "lark_gram")])
def test_a_question_with_a_new_candidate_is_sketched_again_and_others_are_not(
    kind: str, method: str, tmp_path: Path
) -> None:
    """g* compares the candidates of a question with each other."""
    whole = [row for row in ROWS[::-1] if row["teacher"] in ("leaper", "lister", NEW)]
    changed = whole[0]["question_id"]
    small = [row for row in whole if row["teacher"] != NEW or row["question_id"] != changed]
    arguments = (f"method={method}", "scoring.shard_tokens=500")
    scored(tmp_path / "grown", small, *arguments)
    run = scored(tmp_path / "grown", whole, *arguments)
    new = scored(tmp_path / "fresh", whole, *arguments)
    assert run.counts(kind)["taken_over"] == sum(row["question_id"] != changed for row in whole) > 0
    assert_same(run.table(kind), new.table(kind))
    if kind == "exact":
        # The direction of a gradient is its own.
        assert run.counts("features")["taken_over"] == len(small)
        assert_directions(run.table("features"), new.table("features"))


def assert_directions(grown: pd.DataFrame, fresh: pd.DataFrame) -> None:
    assert_same(grown.drop(columns="feature"), fresh.drop(columns="feature"))
    ours, theirs = (directions(table["feature"]).astype(float) for table in (grown, fresh))
    assert (ours * theirs).sum(axis=1) == pytest.approx(1, abs=1e-3)


def test_correctness_is_taken_over_with_the_answer_and_not_with_the_text_alone(tmp_path: Path) -> None:
    first = ROWS[:4]
    contents = [verdict_key(row) for row in (first[0], renamed(first[0]), first[0] | {"answer": "0"})]
    assert contents[0] == contents[1] != contents[2]
