"""The analysis stage as it runs: in a worker through the pipeline, again, and killed halfway."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file, save_file

from lark.analysis import parts, worker
from lark.analysis import questions as statistics
from lark.analysis.kinds import GRADIENTS_TABLE, JACOBIANS_TABLE
from lark.errors import LarkError
from lark.models.dialogue import opening
from lark.models.load import load_chat, load_model
from lark.models.students import DEMO
from lark.pipeline.plan import make_plan
from lark.pool import trajectories as pools
from lark.pool.read import Trajectory
from lark.scoring.forward import LoadedStudent, response_statistics
from lark.scoring.methods import METHODS
from lark.scoring.worker import summarise
from lark.store.store import Checksums
from lark.work.machine import resolve
from lark.work.operation import Job
from tests.conftest import composed, run_program

QUESTION = "What is 3 + 4?"
RESPONSES = ["3 + 4 = 7. \\boxed{7}", "The sum is \\boxed{7}", "We add 3 and 4 and get 8. \\boxed{8}"]


def job(folder: Path, inputs: dict[str, Path], *overrides: str) -> Job:
    folder.mkdir(parents=True, exist_ok=True)
    config = composed("tracking=none", "hardware=cpu", *overrides)
    return Job("", folder, {"analysis": folder}, inputs, str(DEMO), config, resolve(config.hardware))


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    rows = [
        Trajectory(q, f"c{k}", "t", k, None, QUESTION, r, None, None)
        for q in "ab"
        for k, r in enumerate(RESPONSES)
    ]
    (tmp_path / "pool").mkdir()
    pools.write(iter(rows), tmp_path / "pool" / pools.FILE, composed().pool)
    return tmp_path / "pool"


def test_exact_gradients_come_with_the_scoring_stages_own_surrogate(tmp_path: Path) -> None:
    arguments = [
        "pool.questions=2",
        "analysis.name=gradients",
        "analysis.questions=1",
        "stages=[analyse]",
        "tracking=none",
    ]
    code, said = run_program(*arguments, outputs=tmp_path)
    assert code == 0, said
    (folder,) = tmp_path.glob("analysis/gradients-*")
    (question,) = statistics.read(folder)
    assert (question.K, question.tied) == (33, True)
    assert np.linalg.eigvalsh(question.gram.gram).min() > -1e-6 * np.trace(question.gram.gram)

    config = composed()
    (pool,) = tmp_path.glob("pool/*/*.parquet")
    rows = [row for row in pools.iterate(pool) if row["question_id"] == question.question_id]
    rows.sort(key=lambda row: row["candidate_id"])
    student = LoadedStudent.of(load_model(str(DEMO), config.student, "cpu"))
    encoded = load_chat(str(DEMO), config.student).encode_many(rows, config.student.max_length)
    found = pd.DataFrame([summarise(tokens, 100) for tokens in response_statistics(student, encoded)])
    found = found.assign(question_id="q", candidate_id=range(33), n_tokens=[e.n_response for e in encoded])
    np.testing.assert_allclose(question.surrogate, METHODS["lark"].score(found), rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(question.losses, found["nll"] / found["n_tokens"], rtol=1e-5)


def test_jacobians_are_computed_for_questions_that_have_gradients(pool: Path, tmp_path: Path) -> None:
    overrides = [
        "analysis.name=theory",
        "analysis.questions=2",
        "analysis.jacobians=1",
        "analysis.iterations=2",
    ]
    first = job(tmp_path / "gradients", {"pool": pool}, *overrides)
    worker.gradients(first)
    parts.merge(first.folder, GRADIENTS_TABLE.file, 2)
    second = job(tmp_path / "jacobians", {"pool": pool, "gradients": first.folder}, *overrides)
    assert worker.jacobians(second) == {"questions": 1}
    parts.merge(second.folder, JACOBIANS_TABLE.file, 1)
    table = pd.read_parquet(second.folder / JACOBIANS_TABLE.file)
    assert table["candidate_id"].tolist() == ["c0", "c1", "c2"]
    assert (table["iterations"] == 2).all()
    assert (table["jacobian"] > 0).all()


def test_a_killed_analysis_resumes_with_the_missing_questions(pool: Path, tmp_path: Path) -> None:
    started = job(tmp_path / "out", {"pool": pool}, "analysis.name=gradients", "analysis.questions=2")
    worker.gradients(started)
    whole = pd.read_parquet(started.folder / parts.name(1))
    shutil.copy(
        started.folder / parts.name(0), started.folder / parts.name(1)
    )  # a shard with the rows of another question
    (started.folder / parts.name(7)).write_bytes(b"belongs to no question")
    before = (started.folder / parts.name(0)).stat().st_mtime_ns
    worker.gradients(started)
    assert (started.folder / parts.name(0)).stat().st_mtime_ns == before
    pd.testing.assert_frame_equal(pd.read_parquet(started.folder / parts.name(1)), whole)
    assert parts.merge(started.folder, GRADIENTS_TABLE.file, 2) == {"shards": 2, "rows": 6}
    assert [question.question_id for question in statistics.read(started.folder)] == ["a", "b"]


def test_a_sample_of_questions_does_not_depend_on_their_order(pool: Path) -> None:
    table = pd.read_parquet(pool / pools.FILE)
    chosen = worker.sample(pool / pools.FILE, 1, 0)
    table.iloc[::-1].to_parquet(pool / "reversed.parquet")
    assert worker.sample(pool / "reversed.parquet", 1, 0) == chosen
    table.iloc[:1].to_parquet(pool / "one.parquet")
    with pytest.raises(LarkError, match="two candidates"):
        worker.sample(pool / "one.parquet", 1, 0)


def test_decay_rates_along_training_are_those_of_the_papers_weighted_loss(tmp_path: Path) -> None:
    """Two questions, one with two trajectories: L_total = 1/2 Σ_n Σ_k q_nk ℓ_nk, from training weights B_n
    q_nk.
    """
    assert worker.corpus_weights(["a", "a", "b"], [1.5, 0.5, 1.0]) == pytest.approx([0.375, 0.125, 0.5])
    selection, checkpoint = tmp_path / "selection", tmp_path / "checkpoint"
    selection.mkdir()
    with (selection / "train.jsonl").open("w") as handle:
        for question, candidate, weight, response in [
            ("a", "x/1", 1.5, 0),
            ("a", "x/0", 0.5, 1),
            ("b", "y", 1.0, 2),
        ]:
            turns = [*opening(QUESTION, None), {"role": "assistant", "content": RESPONSES[response]}]
            row = {"messages": turns, "weight": weight, "question_id": question, "candidate_id": candidate}
            handle.write(json.dumps(row) + "\n")
    for step in (0, 4):
        snapshot = checkpoint / "snapshots" / f"step-{step:06d}"
        shutil.copytree(DEMO, snapshot)
        if step:
            weights = {name: 0.9 * value for name, value in load_file(DEMO / "model.safetensors").items()}
            save_file(weights, snapshot / "model.safetensors", {"format": "pt"})
    curve = [{"step": step, "learning_rate": 0.0625} for step in range(1, 5)]
    (checkpoint / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in curve))
    run = job(tmp_path / "out", {"checkpoint": checkpoint, "selection": selection}, "analysis.name=kappa")
    assert worker.kappa(run)["snapshots"] == 2
    parts.merge(run.folder, "kappa.parquet", 2)
    found = pd.read_parquet(run.folder / "kappa.parquet")
    assert found["step"].tolist() == [0, 4]
    assert found["time"].tolist() == pytest.approx([0.0, 0.25])
    start_norm = np.sqrt(
        sum(float(value.double().square().sum()) for value in load_file(DEMO / "model.safetensors").values())
    )
    assert found["start_norm"].tolist() == pytest.approx([start_norm] * 2)
    assert found["distance"].tolist() == pytest.approx([0.0, 0.1 * start_norm], rel=1e-5)
    assert (found["rate"] == found["gradient_norm2"] / found["loss"]).all()
    chat = load_chat(str(DEMO), run.config.student)
    anchor = worker.load_anchor(run, str(DEMO))
    losses = [anchor.loss(*anchor.hidden(chat.encode(QUESTION, r, 512))).item() for r in RESPONSES]
    assert found["loss"][0] == pytest.approx(
        0.375 * losses[0] + 0.125 * losses[1] + 0.5 * losses[2], rel=1e-5
    )
    shutil.rmtree(checkpoint / "snapshots")
    with pytest.raises(LarkError, match=r"training\.snapshots"):
        worker.kappa(run)


def test_what_is_asked_for_is_planned_and_nothing_else(tmp_path: Path) -> None:
    def operations(*overrides: str) -> list[str]:
        config = composed(f"outputs={tmp_path}", *overrides)
        return [
            step.operation.name for step in make_plan(config, Checksums(tmp_path)) if step.stage == "analyse"
        ]

    assert operations() == []
    assert operations("analysis.name=gradients") == ["gradients"]
    assert operations("analysis.name=theory") == ["gradients", "jacobians"]
    assert operations("analysis.name=kappa", "training.snapshots=2") == ["kappa"]
    with pytest.raises(LarkError, match=r"add training\.snapshots=11"):
        operations("analysis.name=kappa")
    assert operations("analysis.name=contamination", "method=base") == ["contamination"]
    with pytest.raises(LarkError, match="follows a training run"):
        operations("analysis.name=kappa", "method=base")
    with pytest.raises(LarkError, match="choose one of gradients"):
        operations("analysis.name=gradient")


def test_sketched_gradients_are_nearly_the_exact_ones_and_nothing_is_lost_without_sketches(
    pool: Path, tmp_path: Path
) -> None:
    """The quick mode, the estimates beside the surrogate, and the teachers' gradients agree with each
    other.
    """
    whole = ["sketch.exact=null", "sketch.words=null", "sketch.states=null"]
    typed = ["analysis.name=gradients", "analysis.questions=2"]
    exact = job(tmp_path / "exact", {"pool": pool}, *typed)
    quick = job(tmp_path / "quick", {"pool": pool}, *typed, *whole, "analysis.quick=true")
    for each in (exact, quick):
        worker.gradients(each)
        parts.merge(each.folder, GRADIENTS_TABLE.file, 2)
    for one, other in zip(statistics.read(exact.folder), statistics.read(quick.folder), strict=True):
        np.testing.assert_allclose(other.gram.head, one.gram.head, rtol=1e-3, atol=1e-5 * one.gram.head.max())
        assert (np.diagonal(other.gram.rest) < np.diagonal(one.gram.rest)).all()  # two of seven projections
        assert not other.gram.cross.any()
        np.testing.assert_allclose(other.surrogate, one.surrogate, rtol=1e-3, atol=1e-6)
    estimated = job(
        tmp_path / "estimates", {"pool": pool}, "analysis.name=surrogate", "analysis.questions=2", *whole
    )
    assert worker.estimates(estimated) == {"questions": 2}
    parts.merge(estimated.folder, "estimates.parquet", 2)
    table = pd.read_parquet(estimated.folder / "estimates.parquet").sort_values(
        ["question_id", "candidate_id"]
    )
    expected = np.concatenate([q.exact for q in statistics.read(quick.folder)])
    np.testing.assert_allclose(table["g_exact"], expected, rtol=1e-3, atol=1e-5)
    assert table["g_gram"].notna().all()
    graced = job(tmp_path / "grace", {"pool": pool}, "analysis.name=grace", "analysis.questions=2", *whole)
    assert worker.teacher_gradients(graced) == {"questions": 2}
    parts.merge(graced.folder, "teachers.parquet", 2)
    table = pd.read_parquet(graced.folder / "teachers.parquet").sort_values(["question_id", "candidate_id"])
    norms = np.concatenate([np.sqrt(np.diagonal(q.gram.gram)) for q in statistics.read(quick.folder)])
    np.testing.assert_allclose(table["gradient_norm"], norms, rtol=1e-4)
    assert {len(vector) for vector in table["feature"]} == {2 * 512}


@pytest.mark.parametrize("name", ["theory", "surrogate"])
def test_sketches_are_refused_where_exact_gradients_are_the_point(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        LarkError,
        match=rf"analysis\.quick=true sketches gradients, and analysis\.name={name} needs exact ones",
    ):
        make_plan(composed(f"analysis.name={name}", "analysis.quick=true"), Checksums(tmp_path))
