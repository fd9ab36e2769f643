"""The select stage's own choices: which teacher's candidates take part."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lark import pool as pools
from lark.errors import LarkError
from lark.selecting import find_teacher, write_selection
from tests.conftest import composed


def test_a_teacher_is_found_by_name_or_by_number() -> None:
    teachers = pd.Series(["qwq", "phi", "qwq", "r1"])
    assert find_teacher("qwq", teachers) == "qwq"
    assert [find_teacher(str(number), teachers) for number in (1, 2, 3)] == ["phi", "qwq", "r1"]
    with pytest.raises(LarkError, match="choose one of phi, qwq, r1, or a number from 1 to 3"):
        find_teacher("4", teachers)


def test_one_teachers_three_rollouts_share_the_weight_equally(tmp_path: Path) -> None:
    config = composed("pool.questions=3", "method=random", "budget.size=3", "method.teacher=terse")
    pools.write(pools.read(config.pool), tmp_path / pools.FILE, config.pool)
    pool = pd.read_parquet(tmp_path / pools.FILE)
    pool[["question_id", "candidate_id"]].assign(n_tokens=9).to_parquet(tmp_path / "lengths.parquet")
    write_selection(config, {"pool": tmp_path, "lengths": tmp_path}, tmp_path)
    chosen = pd.read_parquet(tmp_path / "selection.parquet")
    assert set(chosen["teacher"]) == {"terse"}
    assert chosen["weight"].tolist() == pytest.approx([1 / 3] * 9)


def test_a_score_that_decides_nothing_is_counted_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = composed("pool.questions=4", "method=external", "budget.size=3", f"method.path={tmp_path / 'mine.csv'}")
    pools.write(pools.read(config.pool), tmp_path / pools.FILE, config.pool)
    pool = pd.read_parquet(tmp_path / pools.FILE)[["question_id", "candidate_id"]]
    decided = pool["question_id"] == "demo-00000"
    pool.assign(score=np.where(decided, np.arange(len(pool)), 1.0)).to_csv(tmp_path / "mine.csv", index=False)
    pool.assign(n_tokens=9).to_parquet(tmp_path / "lengths.parquet")
    counts = write_selection(config, {"pool": tmp_path, "lengths": tmp_path}, tmp_path)
    assert counts["tied"] == 3
    assert "for 3 of 4 questions the score is the same just inside and just outside the budget" in caplog.text


def test_single_questions_of_a_pool_can_be_kept() -> None:
    config = composed("pool.questions=5", "pool.ids=[demo-00003]")
    assert {trajectory.question_id for trajectory in pools.read(config.pool)} == {"demo-00003"}
