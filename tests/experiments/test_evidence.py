"""Results of several stores, kept as small files, are one table."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.harness import evidence, results
from experiments.harness.sweep import Sweep, Trial, compose_sweep
from lark.errors import LarkError
from lark.evaluation.grade import METRICS
from tests.experiments.planted import build

METHODS = {"random": 0.0, "grape": 2.5, "lark": 0.2}


def ability(trial: Trial) -> float:
    return METHODS[trial.config.method.name]


def store(outputs: Path, seeds: Sequence[int], *arguments: str) -> Sweep:
    """A store in which every run with these training seeds is evaluated."""
    typed = [f"method={','.join(METHODS)}", "budget=1", f"training.seed={','.join(map(str, seeds))}"]
    sweep = compose_sweep("table1", [*typed, f"outputs={outputs}", "tracking=none", *arguments])
    for trial in sweep.trials:
        plan = tuple(step for step in trial.plan if step.makes(METRICS))
        build(sweep, replace(trial, plan=plan), ability)
    return sweep


def test_seeds_of_two_stores_add_up_to_one_table(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    for name, seed in (("monday", 42), ("tuesday", 1)):
        evidence.record(store(tmp_path / name, [seed]), kept)
    assert sorted(path.name for path in kept.iterdir()) == [
        "README.md",
        "base.csv",
        "seed-1.csv",
        "seed-42.csv",
    ]
    together = tmp_path / "together"
    evidence.record(store(tmp_path / "both", [42, 1]), together)
    columns = ["method", "seed", "settings", "problems", "demo_words", "demo_choice"]
    pd.testing.assert_frame_equal(evidence.read(kept)[columns], evidence.read(together)[columns])
    text = (kept / "README.md").read_text()
    assert "GRAPE max leads" in text
    assert "Significantly behind: " in text and "Random" in text
    assert "| GRAPE max | 2 |" in text


def test_the_digits_are_the_accuracies_of_the_store(tmp_path: Path) -> None:
    sweep = store(tmp_path / "outputs", [42])
    data = evidence.collect(sweep)
    tasks = list(sweep.trials[0].config.benchmark.tasks)
    for trial in sweep.trials:
        (row,) = data[data["method"] == trial.config.method.name].to_dict("records")
        for single in (False, True):
            shares = [evidence.shares(row, task, single).mean() for task in tasks]
            expected = results.accuracies(sweep, trial, single)
            assert expected is not None
            assert np.mean(shares) == pytest.approx(expected.mean())


def test_recording_again_adds_what_is_new_and_keeps_what_another_store_had(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    first = store(tmp_path / "first", [42])
    evidence.record(first, kept)
    part = store(tmp_path / "second", [42], "method=lark")
    evidence.record(part, kept)
    data = evidence.read(kept)
    assert sorted(data["method"]) == ["base", "grape", "lark", "random"]


def test_runs_on_other_problems_are_refused(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    evidence.record(store(tmp_path / "first", [42]), kept)
    with pytest.raises(LarkError, match="its runs answered different problems"):
        evidence.record(store(tmp_path / "second", [1], "benchmark.skip=[demo_choice]"), kept)


def test_without_results_it_says_so(tmp_path: Path) -> None:
    sweep = compose_sweep("table1", ["method=lark", "budget=1", f"outputs={tmp_path}"])
    with pytest.raises(LarkError, match="no run of this experiment is finished"):
        evidence.record(sweep, tmp_path / "kept")
