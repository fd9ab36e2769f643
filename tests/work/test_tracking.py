"""Weights & Biases mirrors the local files, and its failures never end a run."""

from pathlib import Path

import pytest

from lark.work.tracking import Tracker, with_sweep_group
from tests.conftest import SMALL, composed, run_program


def test_without_a_key_what_was_to_go_online_is_kept_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))
    tracker = Tracker(composed("tracking=online"), tmp_path)
    tracker.log({"loss": 1.0})
    tracker.finish()
    assert "W&B cannot be used online" in caplog.text
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


@pytest.mark.parametrize(
    "typed",
    [
        ["method=random,lark"],  # a single run; Hydra reports the comma
        ["-m", "method=random,lark", "tracking.group=mine"],
        ["-m", "experiment=table1", "scale=paper"],  # its file names the group
    ],
)
def test_only_a_sweep_without_a_group_gets_one(typed: list[str]) -> None:
    assert with_sweep_group(typed) == typed


def test_a_sweeps_group_shows_what_is_swept_and_differs_between_sweeps() -> None:
    def group(*typed: str) -> str:
        *_, added = with_sweep_group(["--multirun", *typed])
        key, _, value = added.partition("=")
        assert key == "tracking.group"
        return value.strip("'")

    swept = ["method=random,lark", "budget.size=1,3"]
    plain = group(*swept)
    assert plain.startswith("method=random,lark budget.size=1,3 ")
    assert (
        group(*reversed(swept), "outputs=elsewhere", "hardware=cpu", "force=[train]").split()[-1]
        == plain.split()[-1]
    )
    assert group(*swept, "student=smollm2") != plain
    assert "secret" not in group(*swept, "pool.path=/home/secret/pool.jsonl")
    assert len(group(*swept, f"training.seed={','.join(map(str, range(1000)))}")) <= 128, (
        "the longest that W&B accepts"
    )


def test_the_trials_of_a_plain_sweep_are_one_group(tmp_path: Path) -> None:
    sweep = ["-m", "method=random,token_length", "stages=[pool]", *SMALL, "tracking=offline"]
    for _ in range(2):  # the second time, nothing is new
        code, output = run_program(*sweep, outputs=tmp_path)
        assert code == 0, output
    trials = sorted(tmp_path.glob("runs/demo/*/.tracked"))
    groups = {trial.read_text() for trial in trials}
    assert (len(trials), len(groups)) == (2, 1)
    assert groups.pop().startswith("method=random,token_length ")
    assert len(list(tmp_path.glob("runs/demo/*/wandb/offline-run-*"))) == 2
