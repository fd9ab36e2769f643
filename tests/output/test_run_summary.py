"""The summary at the end of a run: the headline with its grader, and the details behind it."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

from lark.config import Config, Task
from lark.evaluation.grade import METRICS
from lark.evaluation.metrics import GradedSample, benchmark_metrics
from lark.evaluation.resampled import resampled_metrics
from lark.output import run_summary as summary
from lark.output.accuracies import Evaluated, disagreement
from lark.output.accuracies import evaluated as evaluated_models
from lark.output.accuracy_tables import (
    details_table,
    headline,
    levels_table,
    resampled_table,
    results_table,
)
from lark.output.regime_summary import regime_markdown
from lark.output.run_summary import run_summary
from lark.pipeline.pipeline import Outcome, Pipeline
from lark.pipeline.plan import make_plan
from lark.scoring.sources import SCORES_TABLE
from lark.scoring.student_regime import StudentRegime
from lark.store.store import Artifact, Checksums, Store
from lark.work.operation import Step
from tests.conftest import composed


def evaluated(folder: Path, *overrides: str, path: str | None = None) -> tuple[Config, Store, list[Step]]:
    """A base model that solves all of four problems (levels 1 and 2) under verify, and half of them under
    paper.
    """
    config = composed("method=base", "tracking=none", "benchmark=demo_words", f"outputs={folder}", *overrides)
    if path is not None:
        (folder / path).write_text(json.dumps({"problem": "?", "answer": "5"}) + "\n")
        config.benchmark.tasks = {
            "mine": Task(label="Mine", path=str(folder / path), answer_format="numeric")
        }
    store, plan = Store(config.outputs_path), make_plan(config, Checksums(config.outputs_path))
    (graded,) = (step for step in plan if step.artifacts[0].kind == METRICS)

    def write(folders: list[Path]) -> list[dict[str, int]]:
        metrics = {
            grader: benchmark_metrics(
                GradedSample(f"p{p}", seed, 0, p in right, False, grader == "verify" or p > 0, 1 + p // 2)
                for p in range(4)
                for seed in config.benchmark.decoding.seeds
            ).to_dict()
            for grader, right in (("paper", (0, 1)), ("verify", (0, 1, 2, 3)))
        }
        (folders[0] / "metrics.json").write_text(json.dumps(metrics))
        grades = [
            {
                "problem": f"p{p}",
                "seed": seed,
                "answer": "5",
                "answer_verify": "5",
                "paper": p < 2,
                "verify": True,
            }
            for p in range(4)
            for seed in config.benchmark.decoding.seeds
        ]
        (folders[0] / "grades.jsonl").write_text("".join(json.dumps(grade) + "\n" for grade in grades))
        return [{}]

    for artifact in (*_inputs(graded), *graded.artifacts):
        store.ensure([artifact], write)
    return config, store, plan


def _inputs(step: Step) -> list[Artifact]:
    return [source for artifact in step.artifacts for source in artifact.inputs.values()]


@pytest.mark.parametrize(("grader", "share", "interval", "unboxed"), [
    ("paper", "50.00±0.00", "0.0 to 100.0", "25.0"), ("verify", "100.00±0.00", "100.0 to 100.0", "0.0"),
])  # fmt: skip
def test_the_details_are_of_the_headlines_grader(
    grader: str, share: str, interval: str, unboxed: str, tmp_path: Path
) -> None:
    config, store, plan = evaluated(tmp_path, f"benchmark.grader={grader}")
    details = details_table(config, evaluated_models(config, store, plan))
    (row,) = details.rows
    cells = dict(zip(details.header, row, strict=True))
    assert f"({grader} grader)" in headline(config)
    single = {"paper": "50.00 (0.0 to 100.0)", "verify": "100.00 (100.0 to 100.0)"}
    assert {name: cells[f"pass@1 ({name})"] for name in single} == single
    assert (cells[f"Acc@5 ({grader})"], cells["95% interval"], cells["without box"]) == (
        share,
        interval,
        unboxed,
    )


def graded(model: str, correct: Sequence[Sequence[int]]) -> Evaluated:
    """A model with these numbers of correct samples, of 5, for each problem and seed."""
    grades = []
    for problem, by_seed in enumerate(correct):
        for seed, number in enumerate(by_seed):
            for sample in range(5):
                grade = {"problem": f"p{problem}", "seed": seed, "sample": sample, "paper": sample < number}
                grades.append({**grade, "verify": False, "answer": "1", "answer_verify": "1"})
    samples = [
        GradedSample(row["problem"], row["seed"], row["sample"], row["paper"], False, True) for row in grades
    ]
    readings = {grader: resampled_metrics(grades, grader) for grader in ("paper", "verify")}
    metrics = dict.fromkeys(("paper", "verify"), benchmark_metrics(samples))
    return Evaluated(model, [model, "3"], {"demo_words": metrics}, {"demo_words": readings})


def test_a_gain_that_hides_a_loss_is_named(tmp_path: Path) -> None:
    """Acc@5 rises from 50 to 100, while single samples are right less often: 50% and then 30%."""
    config = composed("tracking=none", "benchmark=demo_words")
    before = graded("base", [[5, 5], [0, 0]])
    after = graded("trained", [[2, 2], [1, 1]])
    text = disagreement(config, [before, after])
    assert text is not None and "Acc@5 rises by 50.00 points, but pass@1 falls by 20.00" in text
    reverse = disagreement(config, [graded("base", [[2, 2], [1, 1]]), graded("trained", [[5, 5], [0, 0]])])
    assert reverse is not None and "Acc@5 falls by 50.00 points, but pass@1 rises by 20.00" in reverse
    assert disagreement(config, [before, graded("trained", [[5, 5], [1, 1]])]) is None
    rows = results_table(config, [before, after]).rows
    assert [(row[3], row[-1]) for row in rows[2:]] == [
        ("Acc@5", "100.00±0.00"),
        ("pass@1", "30.00 (20.0 to 40.0)"),
    ]


def test_the_same_samples_are_shown_as_pass_and_majority(tmp_path: Path) -> None:
    config, store, plan = evaluated(tmp_path)
    table = resampled_table(config, evaluated_models(config, store, plan))
    (row,) = table.rows
    cells = dict(zip(table.header, row, strict=True))
    assert (cells["samples"], cells["pass@5 (paper)"], cells["maj@5 (paper)"]) == ("3", "50.00", "50.00")
    assert (cells["pass@5 (verify)"], cells["maj@5 (verify)"]) == ("100.00", "100.00")
    assert "pass@5, the probability" in table.title


def test_answers_that_cannot_be_read_explain_an_empty_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config, *_ = evaluated(tmp_path, "benchmark.grader=paper")
    monkeypatch.setattr(summary, "MANY_UNBOXED", 20)  # a quarter of them have no box
    run_summary(Pipeline(config, tmp_path))
    assert "which count as wrong: Base model 25%." in caplog.text and "pool.answer_pattern" in caplog.text
    caplog.clear()
    monkeypatch.undo()
    run_summary(Pipeline(config, tmp_path))
    assert "count as wrong" not in caplog.text


def test_one_seed_has_no_deviation(tmp_path: Path) -> None:
    assert "standard deviation over 3 decoding seeds" in headline(composed())
    config, store, plan = evaluated(tmp_path, "benchmark.decoding.seeds=[4]")
    assert "at least one of 5 samples solves (decoding seed 4)" in headline(config)
    (row,) = details_table(config, evaluated_models(config, store, plan)).rows
    assert not any("±" in cell for cell in row)


def test_base_and_trained_evaluation_have_times_of_their_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are the same operations; the second once replaced the first in the summary."""
    run = Pipeline(composed("tracking=none", f"outputs={tmp_path}"), tmp_path)
    run.outcomes = [Outcome(step, step.artifacts, 1.0 + i) for i, step in enumerate(run.steps)]
    with caplog.at_level(logging.INFO):
        run_summary(run)
    seconds = json.loads((tmp_path / "summary.json").read_text())["seconds"]
    assert len(seconds) == len(run.steps)
    assert {"generate", "generate (base model)", "grade", "grade (base model)"} <= set(seconds)
    assert "generate (base model)" in caplog.text
    assert (
        f"Summary: {tmp_path / 'summary.json'}" in caplog.text
    )  # nothing was graded, so there is no summary.md
    assert "generate (base model): " in run.describe() and "\ngenerate: " in run.describe()


def test_a_plan_lists_the_workers_of_the_steps_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Pipeline(composed("tracking=none", f"outputs={tmp_path}"), tmp_path)
    finished = {step.key for step in run.steps if step.title != "train"}
    monkeypatch.setattr(run, "finished", lambda: finished)
    assert [line.split(":")[0] for line in run.describe().partition("Workers:\n")[2].splitlines()] == [
        "train"
    ]
    monkeypatch.setattr(run, "finished", lambda: {step.key for step in run.steps})
    assert "Workers" not in run.describe()


@pytest.mark.parametrize(("path", "shown"), [("mine.jsonl", True), (None, False)])
def test_levels_are_on_the_console_unless_they_are_the_demos(
    path: str | None, shown: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, store, plan = evaluated(tmp_path, path=path)
    levels = levels_table(config, evaluated_models(config, store, plan))
    assert levels.header[-2:] == ["level 1", "level 2"]
    assert [row[3] for row in levels.rows] == ["Acc@5", "pass@1"]
    assert [row[-2:] for row in levels.rows] == [["100.00±0.00", "0.00±0.00"]] * 2
    with caplog.at_level(logging.INFO):
        run_summary(Pipeline(config, tmp_path))
    assert ("Acc@5 and pass@1 by level (paper grader)" in caplog.text) is shown
    assert "level 2" in (tmp_path / "summary.md").read_text()


@pytest.mark.parametrize(("nll", "warned"), [(60.0, True), (20.0, False)])
def test_a_run_says_how_its_student_finds_the_pool_and_warns_only_of_one_that_is_far(
    nll: float, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """20 tokens per candidate: 3 nats per token are far from the references, 1 is not."""
    config = composed("tracking=none", f"outputs={tmp_path}")
    store, plan = Store(config.outputs_path), make_plan(config, Checksums(config.outputs_path))
    (step,) = (step for step in plan if step.makes(SCORES_TABLE))

    def write(folders: list[Path]) -> list[dict[str, int]]:
        row = {"question_id": "q", "n_tokens": 20, "nll": nll, "brier": 0.35 * nll}
        rows = [{**row, "candidate_id": name, "p_gold": 0.6, "wrong_p2": 0.09} for name in "abc"]
        pd.DataFrame(rows).to_parquet(folders[0] / SCORES_TABLE.file)
        return [{}]

    run = Pipeline(config, tmp_path)
    with caplog.at_level(logging.INFO):
        run_summary(run)
        assert "SmolLM2-135M" not in caplog.text, "nothing is known before scoring"
        for artifact in (*_inputs(step), *step.artifacts):
            store.ensure([artifact], write)
        run_summary(run)
    assert "SmolLM2-135M" in caplog.text and f"{nll / 20:.3f}" in caplog.text
    assert ("This student is far from those" in caplog.text) is warned
    student = json.loads((tmp_path / "summary.json").read_text())["student_on_pool"]
    assert student == pytest.approx({"loss": nll / 20, "p_gold": 0.6, "wrong_p2": 0.09, "rho": 0.35})
    assert ("This student is far" in regime_markdown("demo", StudentRegime(**student))) is warned
