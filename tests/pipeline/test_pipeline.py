"""The whole program, as a user runs it: pool to table, again, in parts, killed, and two at once."""

import json
import signal
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pandas as pd
import pytest

from lark.explorer.context import Context
from lark.explorer.evaluated import evaluations
from lark.pipeline.pipeline import Pipeline
from lark.store import store as artifacts
from tests.conftest import ROOT, SMALL, composed, run_program, start_program
from tests.work.wandb_file import runs_below


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An outputs folder after one undisturbed run."""
    outputs = tmp_path_factory.mktemp("finished")
    code, said = run_program(*SMALL, outputs=outputs)
    assert code == 0, said
    assert "Acc@2: the share of problems" in said and "pass@1: the share of samples" in said
    assert said.rstrip().splitlines()[-1].startswith("Next: python -m lark.explorer")
    assert "the demo's numbers" in said
    assert "95% interval" in said
    summary = (outputs / "runs" / "demo" / "lark-B3" / "summary.md").read_text()
    assert "level 1" in summary
    assert "What the selection is like: ρ = " in summary and "What the selection is like: ρ = " in said
    return outputs


def results(outputs: Path, run: str = "demo/lark-B3") -> object:
    return json.loads((outputs / "runs" / run / "summary.json").read_text())["results"]


def made(outputs: Path) -> dict[str, float]:
    """When each artifact was finished."""
    return {str(p.parent.relative_to(outputs)): p.stat().st_mtime for p in outputs.glob("*/*/manifest.json")}


def test_every_stage_leaves_what_the_next_one_needs(finished: Path) -> None:
    (selection,) = (finished / "selection").iterdir()
    chosen = pd.read_parquet(selection / "selection.parquet")
    assert chosen.groupby("question_id").size().eq(3).all()
    assert chosen.groupby("question_id")["weight"].sum().sub(1).abs().max() < 1e-9
    lines = [json.loads(line) for line in (selection / "train.jsonl").open()]
    assert len(lines) == 18
    assert {m["role"] for m in lines[0]["messages"]} == {"user", "assistant"}
    (checkpoint,) = (finished / "checkpoint").iterdir()
    curve = [json.loads(line) for line in (checkpoint / "metrics.jsonl").open()]
    assert [line["step"] for line in curve] == [1, 2, 3, 4]
    assert not (checkpoint / "checkpoints").exists()
    for manifest in finished.glob("*/*/manifest.json"):
        assert json.loads(manifest.read_text())["status"] == "finished"
        assert (manifest.parent / "config.yaml").exists()


def test_again_nothing_is_computed(finished: Path) -> None:
    before, table = made(finished), results(finished)
    code, said = run_program(
        *SMALL, "hardware=cpu", "hardware.score_tokens=999", "tracking.project=other", outputs=finished
    )
    assert code == 0, said
    assert made(finished) == before
    assert results(finished) == table
    assert "reused" in said


def test_another_budget_reuses_the_scores(finished: Path) -> None:
    code, said = run_program(*SMALL, "budget=1", "stages=[select]", outputs=finished)
    assert "6 of 6 questions" in said and "/train.jsonl" in said
    assert said.splitlines()[-1].startswith("Next: python run.py ")
    assert "budget.size=1 'stages=[train]'" in said.splitlines()[-1]
    assert code == 0, said
    assert len(list((finished / "scores").iterdir())) == 1
    assert len(list((finished / "selection").iterdir())) == 2


def test_the_plan_says_what_would_run_and_runs_nothing(finished: Path) -> None:
    before = made(finished)
    code, said = run_program(*SMALL, "method=rsr", "dry_run=true", outputs=finished)
    assert code == 0, said
    assert "reuse" in said
    assert "lark.work.worker" in said
    assert made(finished) == before


def test_a_grader_can_be_rerun_without_generating(finished: Path) -> None:
    before = made(finished)
    code, said = run_program(*SMALL, "stages=[evaluate]", "force=[grade]", outputs=finished)
    assert code == 0, said
    changed = {name.split("/")[0] for name, when in made(finished).items() if before[name] != when}
    assert changed == {"metrics"}


def test_a_damaged_artifact_is_rebuilt_with_a_warning(finished: Path) -> None:
    table = results(finished)
    (scores,) = (finished / "scores").glob("*/scores.parquet")
    scores.write_bytes(b"not parquet")
    code, said = run_program(*SMALL, outputs=finished)
    assert code == 0, said
    assert "is damaged (scores.parquet has 11 bytes" in said
    assert results(finished) == table


def kill_when(ready: Callable[[], bool], *arguments: str, outputs: Path) -> None:
    """`kill -9` the program as soon as `ready()`."""
    process = start_program(*arguments, outputs=outputs)
    deadline = time.time() + 300
    while not ready() and process.poll() is None and time.time() < deadline:
        time.sleep(0.02)
    assert process.poll() is None, process.communicate()[0]
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_killed_in_every_stage_and_started_again_it_ends_with_the_same_table(
    finished: Path, tmp_path: Path
) -> None:
    for pattern in (
        "pool/*",
        "scores/*/shard-*",
        "checkpoint/*/checkpoints/*/complete",
        "generations/*base*/shard-*",
    ):
        kill_when(lambda pattern=pattern: any(tmp_path.glob(pattern)), *SMALL, outputs=tmp_path)  # type: ignore[misc]
    code, said = run_program(*SMALL, outputs=tmp_path)
    assert code == 0, said
    assert results(tmp_path) == results(finished)
    assert not list(tmp_path.rglob("*.part"))


def test_two_runs_at_once_share_what_they_have_in_common(tmp_path: Path) -> None:
    part = [*SMALL, "stages=[select]"]
    runs = [start_program(*part, f"method={method}", outputs=tmp_path) for method in ("lark", "rsr")]
    said = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], said
    assert len(list((tmp_path / "scores").iterdir())) == 1
    assert sum("waiting for another run" in text for text in said) >= 1
    assert len(list((tmp_path / "selection").iterdir())) == 2


def test_the_base_model_is_evaluated_without_any_training(tmp_path: Path) -> None:
    code, said = run_program(*SMALL, "method=base", outputs=tmp_path)
    assert code == 0, said
    assert not (tmp_path / "checkpoint").exists()
    assert "Base model" in said


def test_wandb_is_not_needed_without_tracking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wandb.py").write_text("raise ImportError('not installed')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    code, said = run_program(*SMALL, "stages=[pool,report]", outputs=tmp_path / "out")
    assert code == 0, said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["methd=lark"], "did you mean method?"),
        (["pool=files", "pool.path=nowhere.jsonl"], "there is no such file"),
        (["hardware=a100x8"], "8 GPUs on this machine, which has none"),
        (["student.path=./nowhere"], "there is no such folder"),
        (["student.chat_template=./nowhere.jinja"], "student.chat_template=./nowhere.jinja: no such file"),
        (
            ["student.max_length=100000", "stages=[score]", "pool.questions=2"],
            "longer than the model's context of 512",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_an_exit_code(arguments: list[str], said: str, tmp_path: Path) -> None:
    code, output = run_program(*arguments, "tracking=none", outputs=tmp_path)
    assert code != 0
    (line,) = [line for line in output.splitlines() if line.startswith("error:")]
    assert said in line
    assert "Traceback" not in output


def test_outputs_that_cannot_be_written_are_a_sentence_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, output = run_program("stages=[pool]", "tracking=none", outputs=tmp_path / "file")
    assert code != 0
    assert output.strip().startswith("error: ") and "choose another folder with outputs=<folder>" in output
    assert len(output.strip().splitlines()) == 1


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A file-size limit simulates a full disk.
    import resource

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    process = start_program(
        "pool.questions=100", "stages=[pool]", "tracking=none", outputs=tmp_path, preexec_fn=limit
    )
    output, _ = process.communicate()
    assert process.returncode != 0
    assert "error: " in output
    assert not list(tmp_path.glob("pool/*/trajectories.parquet"))
    assert artifacts.MANIFEST in {p.name for p in tmp_path.glob("pool/*/*")}


def test_a_student_of_ones_own_is_not_trained_by_the_demos_recipe_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = (
        f"student.path={ROOT / 'lark' / 'demo' / 'student'}",
        "student.name=mine",
        "tracking=none",
        f"outputs={tmp_path}",
    )
    Pipeline(composed(*own), tmp_path)
    assert (
        "training=demo is the recipe of the demo's student" in caplog.text
        and "student.name=mine" in caplog.text
    )
    caplog.clear()
    Pipeline(composed(*own, "stages=[select]"), tmp_path)  # which trains nothing
    Pipeline(composed("tracking=none", f"outputs={tmp_path}"), tmp_path)
    assert "recipe" not in caplog.text


def test_a_finished_job_is_a_run_in_every_group_that_it_belongs_to_and_in_each_once(finished: Path) -> None:
    folder = finished / "runs" / "demo" / "lark-B3"
    for group, runs in (("first", 1), ("first", 1), ("second", 2)):
        code, said = run_program(*SMALL, "tracking.mode=offline", f"tracking.group={group}", outputs=finished)
        assert code == 0, said
        assert len(list(folder.glob("wandb/offline-run-*"))) == runs
    assert (folder / ".tracked").read_text().splitlines() == ["first", "second"]
    first, second = sorted(runs_below(folder), key=lambda run: run.group)
    assert (first.group, second.group, first.name) == ("first", "second", "demo/lark-B3")
    assert first.tags == ["student=demo", "method=lark", "budget=3", "pool=demo"]
    rows = json.loads((folder / "summary.json").read_text())["accuracies"]
    assert {(row["model"], row["benchmark"]) for row in rows} == set(
        product(("base", "trained"), ("demo_words", "avg"))
    )
    for row in rows:
        for metric in ("Acc@2", "pass@1", "pass@1_low", "pass@1_high"):
            key = f"{row['model']}/{row['benchmark']}/{metric}"
            assert first.summary[key] == pytest.approx(row[metric], abs=1e-3)
            assert first.history[key] == [first.summary[key]]
    assert first.history["results.nrows"] == [4]


def test_a_trained_student_is_evaluated_as_it_is_under_its_own_name(finished: Path) -> None:
    (checkpoint,) = (finished / "checkpoint").glob("demo-lark-B3-*")
    evaluate = ["stages=[evaluate]", "student=own", f"student.path={checkpoint}", "engine=hf", *SMALL[2:]]
    before = made(finished)
    for _ in range(2):
        code, said = run_program(*evaluate, outputs=finished)
        assert code == 0, said
        assert "Base model" not in said
    assert "reused" in said and "train " not in said
    added = made(finished).keys() - before.keys()
    assert {name.rpartition("-")[0] for name in added} == {
        "generations/demo-lark-B3-base-demo_words",
        "metrics/demo-lark-B3-base-demo_words",
    }
    # The same student, prompts and precision as in its own run, so the same answers.
    (own,) = (finished / "metrics").glob("demo-lark-B3-demo_words-*")
    (again,) = (finished / "metrics").glob("demo-lark-B3-base-demo_words-*")
    assert (own / "metrics.json").read_text() == (again / "metrics.json").read_text()
    (evaluation,) = [e for e in evaluations(Context(finished).listing()) if e.model.label == "demo-lark-B3"]
    assert evaluation.model.student == "demo-lark-B3" and evaluation.task == "demo_words"
