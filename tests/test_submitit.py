"""A sweep through Hydra's submitit launcher, for real: the local executor runs each job in a process of its own."""

from pathlib import Path

import pytest

from lark.config_errors import sentence
from tests.conftest import run_program

pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
JOBS = ["-m", "hydra/launcher=submitit_local", "stages=[select]", "pool.questions=3", "tracking=none", "hardware=cpu"]


def test_two_jobs_run_apart_and_a_failure_comes_home_as_a_sentence(tmp_path: Path) -> None:
    code, said = run_program(*JOBS, "method=token_length,external", "method.path=nowhere.csv", outputs=tmp_path)
    assert code != 0
    assert "error: method.path=nowhere.csv: there is no such file" in said
    assert "Traceback" not in said
    (selection,) = (tmp_path / "selection").glob("*token_length*")
    assert (selection / "train.jsonl").is_file()
    assert len(list((tmp_path / "runs" / ".submitit").glob("*/*_result.pkl"))) == 2
    assert (tmp_path / "runs" / "demo" / "token_length-B3" / ".hydra" / "config.yaml").is_file()


def test_without_slurm_a_submission_is_one_sentence(tmp_path: Path) -> None:
    code, said = run_program("-m", "hardware=slurm", outputs=tmp_path)
    assert code != 0
    assert "there is no srun here" in said
    assert "Traceback" not in said


def test_without_the_launchers_package_it_says_what_to_install() -> None:
    text = (
        "Could not find 'hydra/launcher/submitit_slurm'\n\nAvailable options in 'hydra/launcher':\n\tbasic\nConfig search path"
    )
    assert "pip install hydra-submitit-launcher" in sentence(ValueError(text))
