"""Scores of another tool: what is read, what is refused in one sentence and when, and what is counted and
logged.
"""

import json
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lark.errors import LarkError
from lark.pipeline import pipeline
from lark.pipeline.pipeline import Pipeline
from lark.pool import trajectories as pools
from lark.pool.read import read
from lark.scoring import external_scores as external
from lark.selection.write import SELECTION, write_selection
from lark.store.store import Store
from tests.conftest import composed, job_of

HEADER = "question_id,candidate_id,score\n"
IDS = {"question_id": ["q1", "q1"], "candidate_id": ["a", "b"]}


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "the file has no scores; expected Parquet, or CSV with commas and a header"),
        (HEADER, "the file has no scores"),
        (b"PAR1 and then nothing that Parquet would say", "looks like a Parquet file but cannot be read"),
        (b"\x00\x01\xff\xfe\x9c" * 50, "not UTF-8"),
        (HEADER + 'q1,"a,1\n', "line 2: cannot be read as CSV"),
        (
            HEADER + "q,1,2,0.5\n",
            "line 2: 4 values, but the header has 3 columns",
        ),  # an id with a comma, not quoted
        (HEADER + "q1,a,0.5,\nq2,a,0.5,\n", "line 2: 4 values, but the header has 3 columns"),
        (HEADER + "q1,a,1\nq2,b\n", "line 3: 2 values, but the header has 3 columns"),
        (HEADER.strip() + ",score\nq1,a,1,2\n", "the column 'score' appears 2 times"),
        ('[{"question_id": "q1", "candidate_id": "a", "score": 1}]\n', "looks like JSON"),
        (
            '{"question_id": "q1", "candidate_id": "a", "score": 1}\n',
            "looks like JSON, but it is not a file of scores",
        ),
        (
            '{"scores": [[1, 2]], "candidate_files": []}',
            "`scores` has 1 rows, but `candidate_files` has 0 files",
        ),
        (
            '{"scores": [[1, "high"]], "candidate_files": [{"teacher": "a", "path": "a/1.json"}]}',
            "scores[0][1] must be a number",
        ),
        ('{"scores": {"0": 1}}', "scores['0'] must be a list of candidates; it is 1"),
        ('{"scores": {"0": [{"candidate_id": 1}]}}', "scores['0'][0] has no `candidate_id` or no `g_hat`"),
        (
            HEADER.replace(",", ";") + "q1;a;1\n",
            "seem to be separated by semicolons); expected Parquet, or CSV with commas",
        ),
        (HEADER.replace(",", "\t") + "q1\ta\t1\n", "separated by tabs"),
        ("question_id,candidate_id\nq1,a\n", "missing column(s) score;"),
        (HEADER + "q1,a,1\nq2,c,high\n", "`score` must contain numbers; for q2 / c it is 'high'"),
        (HEADER + "q1,a,1\nq1,a,2\n", "duplicate score for the trajectory q1 / a;"),
        (HEADER + "q1,a,1\n,b,2\n", "1 of 2 rows have no question_id or no candidate_id"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_sentence_before_anything_runs(
    content: str | bytes, said: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "scores.csv", content)
    config = composed(
        "method=external",
        f"method.path={path}",
        f"outputs={tmp_path / 'out'}",
        "tracking=none",
        "stages=[select]",
    )
    with pytest.raises(LarkError) as error:
        Pipeline(config, tmp_path / "run")
    assert str(error.value).startswith(str(path))
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out" / "pool").exists()


def test_the_authors_matrix_of_scores_has_the_ids_of_the_papers_pool(tmp_path: Path) -> None:
    """As their scorers write it: [C][N], a file of the pool per row, NaN where a score is missing."""
    pool = tmp_path / "RSR_data"
    for teacher in ("gptoss-20b-high", "qwq-32b"):
        for rollout in (1, 2):
            trajectory = [
                {"role": "user", "content": "1+1?"},
                {"role": "assistant", "content": f"{teacher}, {rollout}"},
            ]
            (pool / teacher).mkdir(parents=True, exist_ok=True)
            rows = [
                {"messages": trajectory},
                {"messages": [{"role": "user", "content": "2+2?"}, trajectory[1]]},
            ]
            (pool / teacher / f"short-sys_5k_gen{rollout}.json").write_text(json.dumps(rows))
    files = sorted(pool.glob("*/*.json"))
    content = {
        "method": "rsr",
        "student_model": "/models/qwen2.5-7b",
        "n_problems": 2,
        "n_candidates": 4,
        "candidate_files": [
            {"fidx": n, "teacher": f.parent.name, "path": f"/elsewhere/{f}"} for n, f in enumerate(files)
        ],
        "scores": [[0.1, 0.2], [0.3, float("nan")], [0.5, 0.6], [0.7, 0.8]],
    }
    scores = external.read_scores(written(tmp_path / "scores.json", json.dumps(content)))
    trajectories = pd.DataFrame(
        [asdict(t) for t in read(composed("pool=rsr", f"pool.path={pool}", "pool.questions=null").pool)]
    )
    matched = external.match(scores, trajectories[["question_id", "candidate_id"]], tmp_path / "scores.json")
    assert matched.counts == {"unscored": 1, "infinite_scores": 0, "unknown_scores": 0}
    by_id = dict(
        zip(
            zip(trajectories["question_id"], trajectories["candidate_id"], strict=True),
            matched.score,
            strict=True,
        )
    )
    assert by_id["00000", "gptoss-20b-high.2"] == 0.3
    assert by_id["00001", "qwq-32b.1"] == 0.6


def test_the_released_scorers_dictionary_has_the_ids_of_the_file_that_was_scored(tmp_path: Path) -> None:
    rows = [
        {"candidate_id": 0, "teacher": "x", "L": 1.2, "rho": 0.4, "g_hat": 0.01},
        {"candidate_id": 1, "g_hat": None},
    ]
    content = {"method": "lark_ghat", "top_k": 50, "scores": {"7": rows}}
    table = external.read_scores(written(tmp_path / "scores.json", json.dumps(content)))
    assert table[["question_id", "candidate_id"]].to_numpy().tolist() == [["7", "0"], ["7", "1"]]
    assert table["score"].tolist() == pytest.approx([0.01, np.nan], nan_ok=True)


@pytest.mark.parametrize("name", ["scores.parquet", "scores.PARQUET", "scores.pq", "scores.csv", "scores"])
def test_parquet_is_known_by_its_content(name: str, tmp_path: Path) -> None:
    pd.DataFrame({**IDS, "score": [1, 2], "more": ["x", "y"]}).to_parquet(tmp_path / name)
    assert external.read_scores(tmp_path / name).to_dict("list") == {**IDS, "score": [1.0, 2.0]}


def test_decimals_are_numbers_and_ids_of_any_kind_are_text(tmp_path: Path) -> None:
    table = pa.table(
        {
            "question_id": pa.array([1.0, 2.0]),  # integers with a gap in them, as pandas saves them
            "candidate_id": pa.array([7, 8]),
            "score": pa.array([Decimal("1.25"), None], type=pa.decimal128(5, 2)),
        }
    )
    pq.write_table(table, tmp_path / "scores.parquet")
    read = external.read_scores(tmp_path / "scores.parquet")
    assert read["question_id"].tolist() == ["1", "2"]
    assert read["candidate_id"].tolist() == ["7", "8"]
    np.testing.assert_equal(read["score"].to_numpy(), [1.25, np.nan])


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"score": ["1", "2"]}, "`score` must contain numbers; its type is"),
        (
            {"score": [1, 2], "candidate_id": ["a", None]},
            "1 of 2 rows have no question_id or no candidate_id",
        ),
    ],
)
def test_parquet_of_the_wrong_kind_is_refused(
    columns: dict[str, list[object]], said: str, tmp_path: Path
) -> None:
    pd.DataFrame({**IDS, **columns}).to_parquet(tmp_path / "scores.parquet")
    with pytest.raises(LarkError, match=said):
        external.read_scores(tmp_path / "scores.parquet")


def test_ids_in_a_csv_stay_as_they_are_written(tmp_path: Path) -> None:
    rows = "NA,null,1\n007,nan, 2\r\n1e3,None,\nq,x,NA\n"
    read = external.read_scores(
        written(tmp_path / "scores.csv", "\ufeffquestion_id, candidate_id, score\n" + rows)
    )
    assert read["question_id"].tolist() == ["NA", "007", "1e3", "q"]
    assert read["candidate_id"].tolist() == ["null", "nan", "None", "x"]
    np.testing.assert_equal(read["score"].to_numpy(), [1.0, 2.0, np.nan, np.nan])


@pytest.mark.parametrize("pool_ids", [["7", "8"], ["7.0", "8.0"], ["7", "8 "]])
@pytest.mark.parametrize("score_ids", [["7", "8"], ["7.0", "8.0"], ["7 ", "8"], [7.0, 8.0], [7, 8]])
def test_ids_of_either_side_match_with_and_without_a_fraction(
    pool_ids: list[str], score_ids: list[object], tmp_path: Path
) -> None:
    pool = pd.DataFrame({"question_id": pool_ids, "candidate_id": ["0", "0"]})
    scores = pd.DataFrame({"question_id": score_ids, "candidate_id": ["0", "0"], "score": [1.0, 2.0]})
    for path in (tmp_path / "scores.csv", tmp_path / "scores.parquet"):
        (scores.to_csv(path, index=False) if path.suffix == ".csv" else scores.to_parquet(path))
        assert external.match(external.read_scores(path), pool, path).score.tolist() == [1.0, 2.0]


def test_what_does_not_match_the_pool_is_counted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "scores.csv"
    config = composed("pool.questions=2", "method=external", "method.partial=true", f"method.path={path}")
    pools.write(read(config.pool), tmp_path / pools.FILE, config.pool)
    pool = pd.read_parquet(tmp_path / pools.FILE)[pools.KEY]
    pool.assign(n_tokens=9).to_parquet(tmp_path / "lengths.parquet")
    scores = pool.assign(score=np.arange(len(pool), dtype=float))
    scores.loc[5, "score"] = np.inf
    scores.loc[6, "score"] = np.nan
    stranger = pd.DataFrame({"question_id": ["q9"], "candidate_id": ["c9"], "score": [1.0]})
    pd.concat([scores[3:], stranger]).to_csv(path, index=False)
    counts = write_selection(job_of(config, tmp_path, inputs={"pool": tmp_path, "lengths": tmp_path}))
    assert {key: counts[key] for key in ("unscored", "infinite_scores", "unknown_scores")} == {
        "unscored": 5, "infinite_scores": 1, "unknown_scores": 1,
    }  # fmt: skip
    assert f"{path}: 1 scores are infinite and count as missing" in caplog.text
    assert (
        f"{path}: 5 of the pool's {len(pool)} trajectories have no score and cannot be selected"
        in caplog.text
    )
    assert f"{path}: 1 of {len(pool) - 2} rows match no trajectory in this pool, e.g. q9 / c9" in caplog.text
    chosen = pd.read_parquet(tmp_path / "selection.parquet")
    assert np.isfinite(chosen["score"]).all()


def test_scores_of_another_pool_are_refused_before_scoring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "run_worker", lambda job, *_: pytest.fail(f"{job.operation} ran"))
    path = written(tmp_path / "scores.csv", HEADER + "0,terse.0,1\n")
    arguments = (
        "pool.questions=2",
        "tracking=none",
        f"outputs={tmp_path}",
        "stages=[select]",
        "method=external",
    )
    run = Pipeline(composed(*arguments, f"method.path={path}"), tmp_path / "run")
    with pytest.raises(
        LarkError,
        match=(
            r"no row matches this pool\. First row: 0 / terse\.0; first trajectory of the pool: demo-00000 / "
        ),
    ):
        run.run()
    (choice,) = (step.artifacts[0] for step in run.plan if step.artifacts[0].kind == SELECTION)
    assert Store(tmp_path).manifest(choice).status == "failed"
