"""A real sweep through Hydra's submitit launcher: the local executor gives each trial its own process."""

from pathlib import Path

import pandas as pd

from lark.config.hydra_errors import sentence
from lark.pipeline.plan import make_plan
from lark.pool.read import read
from lark.store.store import Checksums
from tests.conftest import composed, run_program

JOBS = [
    "hydra/launcher=submitit_local",
    "stages=[select]",
    "pool.questions=3",
    "tracking=none",
    "hardware=cpu",
]


def test_two_jobs_run_apart_and_a_failure_comes_home_as_a_sentence(tmp_path: Path) -> None:
    """One trial uses the scores of another tool, the other a file that does not exist."""
    candidates = [(t.question_id, t.candidate_id) for t in read(composed("pool.questions=3").pool)]
    scored = [(question, candidate, float(number)) for number, (question, candidate) in enumerate(candidates)]
    scores = pd.DataFrame(scored, columns=["question_id", "candidate_id", "score"])
    scores.to_csv(tmp_path / "scores.csv", index=False)
    code, said = run_program(
        *JOBS, "method=external", f"method.path={tmp_path / 'scores.csv'},nowhere.csv", "-m", outputs=tmp_path
    )
    assert code != 0
    assert "error: method.path=nowhere.csv: there is no such file" in said
    assert "Traceback" not in said
    (chosen,) = (pd.read_parquet(path) for path in tmp_path.glob("selection/*external*/selection.parquet"))
    best = scores.sort_values("score").groupby("question_id").tail(3)
    assert set(zip(chosen["question_id"], chosen["candidate_id"], strict=True)) == set(
        zip(best["question_id"], best["candidate_id"], strict=True)
    )
    assert len(list((tmp_path / "runs" / ".submitit").glob("*/*_result.pkl"))) == 2
    assert (tmp_path / "runs" / "demo" / "external-B3-questions=3" / ".hydra" / "config.yaml").is_file()


def test_other_scores_are_another_selection(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"

    def fingerprint(text: str, *overrides: str) -> str:
        path.write_text(text)
        plan = make_plan(composed("method=external", f"method.path={path}", *overrides), Checksums(tmp_path))
        return next(
            step.artifacts[0].fingerprint for step in plan if step.artifacts[0].kind.name == "selection"
        )

    first = fingerprint("question_id,candidate_id,score\n1,1,1\n")
    assert fingerprint("question_id,candidate_id,score\n1,1,1\n") == first
    assert fingerprint("question_id,candidate_id,score\n1,1,1\n", "method.higher_is_better=false") != first
    assert fingerprint("question_id,candidate_id,score\n1,1,12\n") != first


def test_without_slurm_a_submission_is_one_sentence(tmp_path: Path) -> None:
    code, said = run_program("hardware=slurm", "-m", outputs=tmp_path)
    assert code != 0
    assert "there is no srun here" in said
    assert "Traceback" not in said


def test_without_the_launchers_package_it_says_what_to_install() -> None:
    text = (
        "Could not find 'hydra/launcher/submitit_slurm'\n\nAvailable options in"
        " 'hydra/launcher':\n\tbasic\nConfig search path"
    )
    assert sentence(ValueError(text)).startswith(
        "hydra/launcher=submitit_slurm needs Hydra's launcher for clusters: pip install"
    )
