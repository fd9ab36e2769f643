"""A pool that grows is scored only where it is new, and has the scores of a fresh pass."""

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark.config import Config
from lark.demo.pool import trajectories
from lark.models.dialogue import INSTRUCTION
from lark.models.shapes import DEMO
from lark.pipeline import pipeline
from lark.pipeline.pipeline import Pipeline
from lark.planner.estimates import Estimate, estimate
from lark.pool.trajectories import KEY
from lark.scoring import merging, pool_pass, worker
from lark.scoring.contents import Chat, RowKeys, verdict_key
from lark.scoring.forward import LoadedStudent
from lark.scoring.influence import directions
from lark.scoring.take_over import take_over
from lark.scoring.taken import TAKEN, Taken, sources_of
from lark.scoring.tokens import places, read_trajectories
from lark.store.integrity import stamps
from lark.store.manifest import edit_manifest
from tests.conftest import composed, work_here

Row = dict[str, Any]
ROWS = [row for row in trajectories(4, 42) if row["rollout"] != 2]
"""4 questions, 11 teachers, 2 rollouts."""
NEW = "terse"
"""The teacher that is added."""
QUESTION = "What is 2+4?"
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
    ("text", "rule_quality"), ("correctness", "correct_then_likely"),
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


def test_correctness_is_taken_over_with_the_answer_and_not_with_the_text_alone() -> None:
    row = ROWS[0]
    same, renamed_row, other = (
        verdict_key(changed) for changed in (row, renamed(row), row | {"answer": "0"})
    )
    assert same == renamed_row != other


@pytest.mark.parametrize("harm", ["table", "pool", "no pool", "an earlier format"])
def test_rows_of_a_damaged_artifact_are_computed(
    harm: str, before: Path, fresh: Run, computed: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    (table,) = before.glob("scores/*/scores.parquet")
    (pool,) = before.glob("pool/*/trajectories.parquet")
    if harm == "no pool":
        shutil.rmtree(pool.parent)
    elif harm == "an earlier format":
        replace_file(table, pd.read_parquet(table).drop(columns="ties"))
    else:
        damage(table if harm == "table" else pool)
    run = scored(before, ROWS)
    assert len(computed) == len(ROWS)
    assert "taken_over" not in run.counts("scores")
    assert_same(run.table("scores"), fresh.table("scores"))
    assert ("no rows are taken over" in caplog.text) == (harm in ("table", "pool"))


def damage(path: Path) -> None:
    """Change a byte of a file, and neither its size nor its time."""
    stat = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def replace_file(path: Path, table: pd.DataFrame) -> None:
    """Write a table as if the artifact had been finished with it."""
    table.to_parquet(path)
    edit_manifest(path.parent, files=stamps(path.parent))


@pytest.mark.parametrize("setting", ["scoring.reuse=false", "force=[score]"])
def test_everything_is_computed_on_request(setting: str, before: Path, computed: list[int]) -> None:
    run = scored(before, ROWS, setting)
    assert len(computed) == len(ROWS)
    assert "taken_over" not in run.counts("scores")


def test_other_settings_are_other_artifacts(before: Path, computed: list[int]) -> None:
    scored(before, ROWS, "student.max_length=90")
    assert len(computed) == len(ROWS)


def test_a_run_that_is_stopped_goes_on_without_its_source(
    before: Path, fresh: Run, computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards are complete, so a later run needs no record of what an earlier one took over."""
    write = pool_pass.write_part
    written: list[Path] = []

    def stops(table: pa.Table, path: Path) -> None:
        if len(written) == 3:
            raise RuntimeError("stopped")
        write(table, path)
        written.append(path)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="stopped"):
        patch.setattr(pool_pass, "write_part", stops)
        scored(before, ROWS)
    for folder in before.glob("scores/*"):
        if (folder / "scores.parquet").exists():
            shutil.rmtree(folder)
    kept = sum(len(pd.read_parquet(path)) for path in written)
    copied = sources_of(written).total()
    first = len(computed)
    run = scored(before, ROWS)
    assert 0 < copied < kept
    assert len(computed) - first == len(ROWS) - kept
    assert run.counts("scores")["taken_over"] == copied
    assert_same(run.table("scores"), fresh.table("scores"))


def test_any_number_of_processes_takes_over_the_same(before: Path, fresh: Run) -> None:
    """One of two has done its share when both are killed; three go on."""
    config = settings(before, ROWS, "scoring.shard_tokens=500")
    run = Pipeline(config, before / "run")
    *earlier, step = run.steps
    for other in earlier:
        run.store.ensure(other.artifacts, partial(run._build, other))
    (folder,) = (run.store.path(artifact) for artifact in step.artifacts)

    def build(folders: list[Path]) -> list[Any]:
        job = run._job(step, folders)
        take_over(job)
        worker.score(replace(job, rank=1, world=2))
        parts = set(folder.glob("shard-*"))
        take_over(job)
        assert len(Taken(folder).rows) == len(SMALL)
        counts = [worker.score(replace(job, rank=rank, world=3)) for rank in range(3)]
        assert set() < parts < set(folder.glob("shard-*"))
        return [merging.collect(job, counts[0])["scores"]]

    run.store.ensure(step.artifacts, build)
    scores = Run({"scores": folder})
    assert scores.counts("scores")["taken_over"] == len(SMALL)
    assert_same(scores.table("scores"), fresh.table("scores"))


def test_the_plan_counts_the_trajectories_to_score(before: Path) -> None:
    config = settings(before, ROWS)
    report = planned(config)
    assert report["score"].work.startswith("88 trajectories, 8 to score, ")
    assert report["lengths"].work.startswith("88 trajectories, 8 to score, ")
    assert report["score"].flops < 0.2 * planned(settings(before, ROWS, "scoring.reuse=false"))["score"].flops
    nothing = planned(settings(before, SMALL[:40]))["score"]
    assert (nothing.work, nothing.flops) == ("40 trajectories, 0 to score", 0)
    run = scored(before, ROWS, "stages=[pool]")
    assert run.folders
    assert planned(config)["score"].work.startswith("88 trajectories, 8 to score, ")
    other = planned(settings(before, ROWS, "method=lark_gram"))
    assert other["gram"].work.startswith("88 trajectories, ")
    assert "to score" not in other["gram"].work


def planned(config: Config) -> dict[str, Estimate]:
    run = Pipeline(replace(config, dry_run=True), Path("unused"))
    estimates = estimate(config, run.steps, run.lengths(), finished=run.finished())
    return {e.name: e for e in estimates}


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"question_id": "x", "candidate_id": "y", "teacher": "z", "rollout": 9}, True),
        ({"question": f"  {QUESTION}\n{INSTRUCTION}"}, True),
        ({"system": INSTRUCTION}, True),
        ({"answer": "0", "correct": False}, True),
        ({"system": "Be brief."}, False),
        ({"question": f"{QUESTION}?"}, False),
        ({"response": "\\boxed{7}"}, False),
        ({"thinking": "Count."}, False),
    ],
)
def test_a_conversation_is_what_the_student_reads_and_writes(change: Row, same: bool) -> None:
    chat = Chat(INSTRUCTION, last_only=False)
    row = {"system": None, "question": QUESTION, "response": "\\boxed{6}", "thinking": None}
    assert (chat.key(row) == chat.key(row | change)) == same


def test_the_turns_that_carry_loss_are_part_of_a_conversation() -> None:
    messages = [{"role": role, "content": role} for role in ("user", "assistant", "user", "assistant")]
    row = {"conversation": json.dumps({"messages": messages, "tools": None})}
    weighted = json.dumps({"messages": [*messages[:3], messages[3] | {"weight": 0}], "tools": None})
    keys = [Chat(None, last).key(row) for last in (False, True)]
    assert len({*keys, Chat(None, False).key({"conversation": weighted})}) == 3
    single = ROWS[0] | {"thinking": None}
    assert Chat(None, False).key(single) == Chat(None, True).key(single)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=8), st.randoms())
def test_questions_are_compared_by_their_set_of_candidates(
    rows: list[tuple[int, int]], rng: random.Random
) -> None:
    def keys(rows: list[tuple[int, int]], name: str) -> Counter[bytes]:
        conversations = RowKeys(
            [f"{name}{question}" for question, _ in rows], [], [bytes([key]) for _, key in rows]
        )
        return Counter(conversations.by("candidates").keys)

    shuffled = rng.sample(rows, len(rows))
    assert keys(rows, "a") == keys(shuffled, "b")
    # A candidate that no question has changes the keys of its question, and of no other.
    more = keys([*rows, (0, 9)], "a")
    others = [row for row in rows if row[0] != 0]
    assert keys(rows, "a") & more == keys(others, "a") & more
    assert more.total() == len(rows) + 1
