"""N trajectories on G GPUs that fail: the formulas agree with a simulation of the real queue, and the
command answers.
"""

import re
import subprocess
import sys
from math import inf

import numpy as np
import pytest

from experiments.bench._cluster_simulation import simulate
from experiments.bench.cluster import compare, draw, totals, with_defaults
from lark.errors import LarkError
from lark.planner.__main__ import composed, numbers
from lark.planner.division import Workload, disk_gib, parts
from lark.planner.scale import Part, expected, stops_falling
from lark.planner.scale_report import describe
from tests.conftest import ROOT
from tests.planner.steps import steps_of

SETTINGS = ["student=qwen7b", "hardware=a100x8", "budget=1"]


def test_the_planner_is_within_15_percent_of_the_simulation_from_1_to_512_gpus() -> None:
    config = composed(SETTINGS)
    table = compare(config, steps_of(config), 200_000, (1, 8, 64, 512), (0.0, 0.002, 0.05), repeats=8)
    found = totals(table)
    ratio = found["planned_hours"] / found["simulated_hours"]
    assert ratio.between(0.85, 1.15).all(), found.assign(ratio=ratio)
    failing = table[(table["failures_per_gpu_hour"] == 0.05) & (table["planned_lost"] > 2)]
    assert len(failing) and (failing["planned_lost"] / failing["simulated_lost"]).between(0.5, 2.0).all(), (
        failing
    )


@pytest.mark.parametrize("gpus", [1, 7, 40, 100, 300])
@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_shards_of_equal_and_different_size_are_planned_as_they_run(gpus: int, spread: float) -> None:
    """Also with few shards per GPU, and with fewer shards than GPUs."""
    random = np.random.default_rng(1)
    costs = random.gamma(1 / spread**2, size=120) if spread else np.ones(120)
    costs *= 120 * 60 / costs.sum()
    part = Part("score", "shards", float(costs.sum()), 30.0, 120, spread)
    simulated = np.mean([simulate(part, costs.tolist(), gpus, 0.1, random).seconds for _ in range(20)])
    assert expected(part, gpus, 0.1).seconds == pytest.approx(simulated, rel=0.15)


def test_without_failures_nothing_is_lost_and_with_them_more_checkpoints_help_training() -> None:
    train = Part("train", "together", 64 * 20 * 3600.0, 60.0, 10)
    safe = expected(train, 64, 0.0)
    assert safe.lost == pytest.approx(0.0) and safe.seconds == pytest.approx(20 * 3600 + 60)
    rare, often = (
        expected(Part("train", "together", train.work, 60.0, pieces), 64, 0.01) for pieces in (10, 100)
    )
    assert rare.seconds > 1.5 * safe.seconds and often.seconds < 1.2 * safe.seconds


@pytest.mark.parametrize("failures", [1.0, 5.0, 1e12])
def test_a_training_that_fails_before_its_next_checkpoint_does_not_finish(failures: float) -> None:
    config = composed(SETTINGS)
    said = describe(config, steps_of(config), Workload(10_000_000, 64), failures)
    remedy = (
        r"Raise training\.checkpoints to ([\d,]+) or more"
        if failures < 10
        else "Use GPUs that fail less often()"
    )
    found = re.search(rf"train does not finish at this failure rate: .* {remedy}", said)
    assert found, said
    assert not re.search(r"\d{8}|\binf\b|\bnan\b", said), said
    if failures < 10:
        more = composed([*SETTINGS, f"training.checkpoints={found[1].replace(',', '')}"])
        assert "does not finish" not in describe(more, steps_of(more), Workload(10_000_000, 64), failures)


def test_the_simulation_leaves_out_what_does_not_finish() -> None:
    config = composed(SETTINGS)
    table = compare(config, steps_of(config), 200_000, (8,), (5.0,), repeats=1)
    (train,) = table[table["step"] == "train"].to_dict("records")
    assert train["planned_hours"] == train["simulated_hours"] == inf
    score = table[table["step"] == "score"]
    assert (score["planned_hours"] / score["simulated_hours"]).between(0.8, 1.25).all(), score
    draw(table, 200_000)


def test_shards_that_no_gpu_finishes_take_forever_and_nothing_lost_is_zero() -> None:
    assert expected(Part("score", "shards", 120 * 3600.0, 30.0, 12, 0.5), 4, 5.0).seconds == inf
    for part in (Part("a", "together", 0.1, 60.0, 3), Part("b", "shards", 0.7, 60.0, 7)):
        assert str(expected(part, 7, 0.0).lost) == "0.0"


def test_one_of_something_is_singular() -> None:
    config = composed(SETTINGS)
    said = describe(config, steps_of(config), Workload(1_000, 1), 0.0)
    assert "on 1 GPU," in said and "1 shard " in said and "-0.0" not in said, said


def test_settings_of_the_benchmark_are_added_to_its_defaults() -> None:
    assert with_defaults(["outputs=x"]) == [*SETTINGS, "outputs=x"]
    assert with_defaults(["student=demo"]) == [*SETTINGS[1:], "student=demo"]


def test_time_falls_until_something_cannot_be_divided() -> None:
    config = composed(SETTINGS)
    steps = steps_of(config)
    times = {}
    for gpus in (1, 8, 64, 512, 4096):
        times[gpus] = sum(
            expected(part, gpus, 0.002).seconds for part in parts(config, steps, Workload(1_000_000, gpus))
        )
    assert list(times.values()) == sorted(times.values(), reverse=True)
    assert stops_falling({1: 100.0, 2: 50.0, 4: 48.0, 8: 47.0}) == 2
    assert stops_falling({1: 100.0, 2: 50.0, 4: 25.0}) is None
    assert disk_gib(config, steps, Workload(2_000_000, 8))["pool"] == pytest.approx(
        2 * disk_gib(config, steps, Workload(1_000_000, 8))["pool"]
    )


def test_the_command_names_the_bottleneck() -> None:
    command = [
        sys.executable,
        "-m",
        "lark.planner",
        "trajectories=10_000_000",
        "gpus=64",
        "failures_per_gpu_hour=0.002",
    ]
    done = subprocess.run([*command, *SETTINGS], cwd=ROOT, capture_output=True, text=True, check=False)
    text = done.stdout + done.stderr
    assert (
        done.returncode == 0 and "bottleneck  score" in text and "lost GPU-hours" in text and "disk" in text
    ), text


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("gpus=0", "must be a whole number from 1 to 65,536"),
        ("gpus=1e9", "from 1 to 65,536"),
        ("trajectories=1e18", "must be a whole number from 1 to 1,000,000,000,000"),
        ("trajectories=1.5", "must be a whole number"),
        ("failures_per_gpu_hour=-1", "must be a number from 0 to"),
        ("failures_per_gpu_hour=nan", "must be a number from 0 to"),
        ("gpus=many", "must be a number"),
        ("student=qwen7b", "Give trajectories="),
    ],
)
def test_a_wrong_number_is_refused_with_its_limits(wrong: str, why: str) -> None:
    with pytest.raises(LarkError, match=why):
        numbers([wrong])
