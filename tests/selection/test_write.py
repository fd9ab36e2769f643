"""The select stage's own choices: which teacher's candidates take part, and what is reported about them and
when.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lark.config import Config
from lark.errors import LarkError
from lark.pipeline import pipeline
from lark.pipeline.pipeline import Pipeline
from lark.pool import trajectories as pools
from lark.pool.read import read
from lark.selection.choose import check_choice, find_teacher
from lark.selection.write import write_selection
from tests.conftest import composed, job_of, work_here


def test_a_teacher_is_found_by_name_or_by_number() -> None:
    teachers = pd.Series(["qwq", "phi", "qwq", "r1"])
    assert find_teacher("qwq", teachers) == "qwq"
    assert [find_teacher(str(number), teachers) for number in (1, 2, 3)] == ["phi", "qwq", "r1"]
    with pytest.raises(LarkError, match="choose one of phi, qwq, r1, or a number from 1 to 3"):
        find_teacher("4", teachers)


def test_one_teachers_three_rollouts_share_the_weight_equally(tmp_path: Path) -> None:
    config = composed("pool.questions=3", "method=random", "budget.size=3", "method.teacher=terse")
    pools.write(read(config.pool), tmp_path / pools.FILE, config.pool)
    pool = pd.read_parquet(tmp_path / pools.FILE)
    pool[["question_id", "candidate_id"]].assign(n_tokens=9).to_parquet(tmp_path / "lengths.parquet")
    write_selection(job_of(config, tmp_path, inputs={"pool": tmp_path, "lengths": tmp_path}))
    chosen = pd.read_parquet(tmp_path / "selection.parquet")
    assert set(chosen["teacher"]) == {"terse"}
    assert chosen["weight"].tolist() == pytest.approx([1 / 3] * 9)


def test_a_score_that_decides_nothing_is_counted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = composed(
        "pool.questions=4", "method=external", "budget.size=3", f"method.path={tmp_path / 'mine.csv'}"
    )
    pools.write(read(config.pool), tmp_path / pools.FILE, config.pool)
    pool = pd.read_parquet(tmp_path / pools.FILE)[["question_id", "candidate_id"]]
    decided = pool["question_id"] == "demo-00000"
    pool.assign(score=np.where(decided, np.arange(len(pool)), 1.0)).to_csv(tmp_path / "mine.csv", index=False)
    pool.assign(n_tokens=9).to_parquet(tmp_path / "lengths.parquet")
    counts = write_selection(job_of(config, tmp_path, inputs={"pool": tmp_path, "lengths": tmp_path}))
    assert counts["tied"] == 3
    assert (
        "for 3 of 4 questions the last selected and the first rejected candidate have equal scores"
        in caplog.text
    )


@pytest.mark.parametrize(("budget", "whole"), [(2, 0), (3, 2), (4, 2)])
def test_a_budget_that_takes_every_candidate_is_logged(
    budget: int, whole: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = composed("pool.questions=2", "method=random", f"budget.size={budget}", "method.teacher=terse")
    pools.write(read(config.pool), tmp_path / pools.FILE, config.pool)
    pool = pd.read_parquet(tmp_path / pools.FILE)
    pool[["question_id", "candidate_id"]].assign(n_tokens=9).to_parquet(tmp_path / "lengths.parquet")
    counts = write_selection(job_of(config, tmp_path, inputs={"pool": tmp_path, "lengths": tmp_path}))
    assert counts["budget_takes_all"] == whole
    assert ("for 2 of 2 questions the budget takes every candidate" in caplog.text) == (whole > 0)


def test_a_wrong_teacher_is_refused_before_scoring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "run_worker", lambda job, *_: pytest.fail(f"{job.operation} ran"))
    arguments = ("pool.questions=2", "tracking=none", f"outputs={tmp_path}", "stages=[select]")
    run = Pipeline(composed(*arguments, "method.teacher=nobody"), tmp_path / "run")
    for _ in range(2):  # also when the pool already exists
        with pytest.raises(LarkError, match=r"method\.teacher=nobody: choose one of"):
            run.run()


def test_a_missing_scores_file_is_refused_before_anything_runs(tmp_path: Path) -> None:
    config = composed(
        "method=external", f"method.path={tmp_path / 'none.csv'}", f"outputs={tmp_path}", "tracking=none"
    )
    for dry in (False, True):
        with pytest.raises(LarkError, match=r"none\.csv: there is no such file"):
            Pipeline(replace(config, dry_run=dry), tmp_path / "run")
    assert not (tmp_path / "pool").exists()


@pytest.mark.parametrize(
    ("longest", "said"), [(70, "are cut at student.max_length=70; 0 of them"), (5, "; 66 of them"), (512, "")]
)
def test_truncation_by_the_students_context_is_logged_in_one_line(
    longest: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pipeline, "run_worker", work_here)
    arguments = (
        "pool.questions=2",
        "tracking=none",
        f"outputs={tmp_path}",
        "stages=[score]",
        "method=random",
    )
    Pipeline(composed(*arguments, f"student.max_length={longest}"), tmp_path / "run").run()
    lines = [record.getMessage() for record in caplog.records if "are cut at" in record.getMessage()]
    assert len(lines) == bool(said)
    assert said in "".join(lines)


def test_single_questions_of_a_pool_can_be_kept() -> None:
    config = composed("pool.questions=5", "pool.ids=[demo-00003]")
    assert {trajectory.question_id for trajectory in read(config.pool)} == {"demo-00003"}


def made_pool(folder: Path, *settings: str, tokens: int = 9, cut: float = 0.0) -> tuple[Config, pd.DataFrame]:
    """A demo pool with lengths, of which a share is truncated."""
    config = composed("pool.questions=4", *settings)
    pools.write(read(config.pool), folder / pools.FILE, config.pool)
    pool = pd.read_parquet(folder / pools.FILE)[["question_id", "candidate_id"]]
    lengths = pool.assign(n_tokens=tokens, truncated=np.arange(len(pool)) < cut * len(pool))
    lengths.to_parquet(folder / "lengths.parquet")
    return config, lengths


@pytest.mark.parametrize(
    ("budget", "trajectories"), [("total=10", 10), ("tokens=100", 11), ("total=3", 3), ("total=1k", 132)]
)
def test_a_budget_across_questions_is_met_in_both_files(
    budget: str, trajectories: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, _ = made_pool(tmp_path, "method=random", f"budget.{budget}")
    counts = write_selection(job_of(config, tmp_path, inputs={"pool": tmp_path, "lengths": tmp_path}))
    chosen = pd.read_parquet(tmp_path / "selection.parquet")
    lines = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert counts["trajectories"] == len(chosen) == len(lines) == trajectories
    assert counts["tokens"] == 9 * trajectories
    assert counts["questions"] == min(4, trajectories)
    assert counts["unreached"] == 4 - min(4, trajectories)
    assert np.mean([line["weight"] for line in lines]) == pytest.approx(1)
    assert ("1 of 4 questions get no trajectory" in caplog.text) == (trajectories == 3)


def test_a_token_budget_below_one_trajectory_is_refused(tmp_path: Path) -> None:
    config, _ = made_pool(tmp_path, "method=random", "budget.tokens=8")
    with pytest.raises(
        LarkError, match=r"budget\.tokens=8: the first trajectory already exceeds this budget"
    ):
        write_selection(job_of(config, tmp_path, inputs={"pool": tmp_path, "lengths": tmp_path}))


@pytest.mark.parametrize(("cut", "warned"), [(0.0, False), (0.03, False), (1.0, True)])
def test_truncated_trajectories_in_the_selection_are_counted(
    cut: float, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, lengths = made_pool(tmp_path, "method=token_length", "budget.total=132", cut=cut)
    counts = write_selection(job_of(config, tmp_path, inputs={"pool": tmp_path, "lengths": tmp_path}))
    assert counts["truncated"] == lengths["truncated"].sum()
    assert ("selected trajectories are cut at student.max_length=512" in caplog.text) == warned


@pytest.mark.parametrize(("share", "settings", "refused"), [
    (0.5, [], True), (0.5, ["method.partial=true"], False),
    (0.97, [], False), (0.5, ["method.teacher=1"], False),
])  # fmt: skip
def test_scores_that_cover_too_little_of_the_pool_are_refused(
    share: float, settings: list[str], refused: bool, tmp_path: Path
) -> None:
    path = tmp_path / "mine.csv"
    config, lengths = made_pool(
        tmp_path, "method=external", f"method.path={path}", "budget.size=2", *settings
    )
    pool = pd.read_parquet(tmp_path / pools.FILE).assign(score=np.arange(len(lengths)))
    first = sorted(pool["teacher"].unique())[0]
    every = pool.groupby("question_id").head(round(share * 33))
    kept = pool[(pool["teacher"] == first)] if config.method.teacher else every
    kept[["question_id", "candidate_id", "score"]].to_csv(path, index=False)
    job = job_of(config, tmp_path, inputs={"pool": tmp_path, "lengths": tmp_path})
    if not refused:
        write_selection(job)
        return
    said = r"only 64 of 132 candidates have a score \(48\.5%; at least 95% are needed\).*method\.partial=true"
    with pytest.raises(LarkError, match=said):
        write_selection(job)
    with pytest.raises(LarkError, match=said):  # also before anything is scored
        check_choice(config, {"pool": tmp_path})
