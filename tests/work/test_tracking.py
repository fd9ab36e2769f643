"""Weights & Biases mirrors the local files, and its failures never end a run."""

import subprocess
import sys
from pathlib import Path

import pytest

from lark.output.sweep_table import sweep_table
from lark.work.tracking import Tracker, with_sweep_group
from tests.conftest import ROOT, SMALL, composed, run_program
from tests.work.wandb_file import runs_below


def test_without_a_key_what_was_to_go_online_is_kept_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))
    tracker = Tracker(composed("tracking=online").tracking, tmp_path, tmp_path)
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
    sweep = ["-m", "method=random,token_length", "stages=[select]", *SMALL, "tracking=offline"]
    for _ in range(2):  # the second time, nothing is new
        code, output = run_program(*sweep, outputs=tmp_path)
        assert code == 0, output
        assert "2 trials. Saved: " in output and output.count("18 of 6 questions") == 4  # also at its own end
    trials = sorted(tmp_path.glob("runs/demo/*/.tracked"))
    groups = {trial.read_text() for trial in trials}
    assert (len(trials), len(groups)) == (2, 1)
    assert groups.pop().startswith("method=random,token_length ")
    assert len(list(tmp_path.glob("runs/demo/*/wandb/offline-run-*"))) == 2
    (page,) = tmp_path.glob("report/sweeps/method=random,token_length *.md")
    assert "| method | trajectories | weights | training set |" in page.read_text()
    (table,) = runs_below(tmp_path / "report" / "sweeps")
    assert table.name == f"sweep {table.group}" and table.history["trials.nrows"] == [2]


def test_a_table_of_trials_names_what_is_swept_and_what_failed() -> None:
    header = ["student", "method", "B", "metric", "Avg"]
    base = ["demo", "Base model", "–", "Acc@5", "45.0"]
    first = {"typed": ["method=lark", "training.seed=1"], "header": header}
    second = {"typed": ["method=lark", "training.seed=2"], "header": header}
    third = {"typed": ["method=rsr", "training.seed=3"], "error": "no memory"}
    first["rows"] = [base, ["demo", "LARK", "3", "Acc@5", "50.0"]]
    second["rows"] = [base, ["demo", "LARK", "3", "Acc@5", "50.0"]]
    table = sweep_table([first, second, third])
    assert list(table.columns) == ["student", "method", "B", "training.seed", "metric", "Avg", "error"]
    assert list(table["training.seed"]) == ["–", "1", "2", "3"]  # the base model once, in no trial of its own
    assert list(table["method"]) == ["Base model", "LARK", "LARK", "rsr"]
    assert list(table["error"]) == ["–", "–", "–", "no memory"]


def test_trackio_keeps_all_runs_in_one_place_of_the_outputs(tmp_path: Path) -> None:
    pytest.importorskip("trackio", reason="the optional group `trackio` is not installed")
    code = """
import sys
from pathlib import Path
from lark.config import Tracking
from lark.work.tracking import Tracker
outputs = Path(sys.argv[1])
for name in ("demo/lark-B3", "demo/rsr-B3"):
    folder = outputs / "runs" / name
    folder.mkdir(parents=True)
    tracker = Tracker(Tracking(mode="trackio", group="sweep"), folder, outputs, settings={"a": 1}, tags=["t"])
    tracker.log({"train/loss": 1.5})
    tracker.summarise({"trained/avg/pass@1": 20.0})
    tracker.table("results", ["method"], [["LARK"]])
    tracker.finish()
from trackio.sqlite_storage import SQLiteStorage
print(SQLiteStorage.get_runs("lark"), SQLiteStorage.get_logs("lark", "demo/lark-B3"))
print(SQLiteStorage.get_run_config("lark", "demo/lark-B3"))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert "['demo/lark-B3', 'demo/rsr-B3']" in done.stdout and "'trained/avg/pass@1': 20.0" in done.stdout
    assert "'tags': ['t']" in done.stdout and "'_Group': 'sweep'" in done.stdout
    assert (tmp_path / "trackio" / "lark.db").is_file()
