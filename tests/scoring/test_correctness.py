"""Verdicts on trajectories, and the method that uses them."""

from pathlib import Path

import pandas as pd
import pytest

from lark.errors import LarkError
from lark.pool import trajectories as pools
from lark.pool.trajectory import Trajectory
from lark.scoring.correctness import write_correctness
from tests.conftest import composed, job_of

CASES = [
    ("\\boxed{7}", "7", None, 1.0),
    ("\\boxed{8}", "7", None, 0.0),
    ("no box", "7", None, None),
    ("no box", "7", True, 1.0),
    ("\\boxed{8}", "7", True, 1.0),
    ("\\boxed{7}", "7", False, 0.0),
    ("\\boxed{8}", None, True, 1.0),
    ("\\boxed{8}", None, None, None),
]


def written(folder: Path, cases: list[tuple]) -> pd.DataFrame:
    config = composed("method=correct_then_likely")
    rows = [
        Trajectory("q", f"c{i}", "t", 0, None, "3 + 4?", response, answer, correct)
        for i, (response, answer, correct, _) in enumerate(cases)
    ]
    pools.write(iter(rows), folder / pools.FILE, config.pool)
    counts = write_correctness(job_of(config, folder, inputs={"pool": folder}))
    assert counts == {
        "trajectories": len(cases),
        "correct": sum(c[3] == 1 for c in cases),
        "unknown": sum(c[3] is None for c in cases),
    }
    return pd.read_parquet(folder / "correctness.parquet")


def test_verdicts_are_those_of_correct_only(tmp_path: Path) -> None:
    table = written(tmp_path, CASES)
    assert table["candidate_id"].tolist() == [f"c{i}" for i in range(len(CASES))]
    assert [None if pd.isna(value) else value for value in table["correct"]] == [
        expected for *_, expected in CASES
    ]


def test_a_pool_without_answers_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(
        LarkError, match=r"needs to know which trajectories are correct.*`answer` or a `correct`.*labels=vote"
    ):
        written(tmp_path, CASES[-1:])
    assert not (tmp_path / "correctness.parquet").exists()
