"""A sweep as a user runs it: a trial that fails is reported at the end and does not stop the others; a
second run does nothing.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from experiments.harness import lanes
from lark.work.machine import usable_cores
from lark.work.warm import WARMTH
from tests.conftest import ROOT

COMMAND = [
    "table1", "method=random", "budget=1", "method.teacher=nobody,terse", "stages=[select]",
    "pool.questions=3",
    "tracking=none", "hydra.sweep.subdir=${method.teacher}",
]  # fmt: skip


def arguments(command: str, outputs: Path) -> list[str]:
    return [sys.executable, "-m", "experiments", command, *COMMAND, f"outputs={outputs}"]


def experiments(command: str, outputs: Path) -> tuple[int, str]:
    done = subprocess.run(arguments(command, outputs), cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_failing_trial_is_reported_and_the_others_finish_and_again_nothing_runs(tmp_path: Path) -> None:
    code, said = experiments("run", tmp_path)
    assert code != 0
    last = said.strip().splitlines()[-1]
    assert "table1: trial" in last
    assert "method.teacher=nobody: choose one of backward" in last
    assert "Traceback" not in said
    finished = [
        p.parent
        for p in tmp_path.glob("selection/*/manifest.json")
        if '"status": "finished"' in p.read_text()
    ]
    assert len(finished) == 1
    assert "1 of 2 trials is not finished" in (tmp_path / "report" / "table1.md").read_text()

    times = {path: path.stat().st_mtime_ns for path in finished[0].iterdir()}
    code, _ = experiments("run", tmp_path)
    assert code != 0
    assert {path: path.stat().st_mtime_ns for path in finished[0].iterdir()} == times

    code, planned = experiments("plan", tmp_path)
    assert code == 0
    assert "nothing: all is reused" in planned
    assert "2 trials" in planned


def test_lanes_share_the_trials_and_their_results_are_those_of_one_process(tmp_path: Path) -> None:
    def selected(outputs: Path, *settings: str) -> tuple[str, dict[str, bytes]]:
        command = [
            sys.executable,
            "-m",
            "experiments",
            "run",
            "table1",
            "method=random,grape",
            "budget=1",
            "stages=[select]",
        ]
        options = [
            "pool.questions=3",
            "tracking=none",
            "hardware.device=cpu",
            f"outputs={outputs}",
            *settings,
        ]
        done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        files = [
            path
            for name in ("selection.parquet", "train.jsonl")
            for path in outputs.glob(f"selection/*/{name}")
        ]
        return done.stdout + done.stderr, {
            str(path.relative_to(outputs)): path.read_bytes() for path in files
        }

    said, alone = selected(tmp_path / "alone", "hardware.threads=1")
    assert "lanes, each" not in said
    said, together = selected(tmp_path / "together")
    assert together == alone and len(alone) == 4
    if usable_cores() > 1:
        assert "in 2 lanes, each" in said and said.count("] \t#") == 2, said  # each trial is taken once
        assert len(re.findall(r"^\[\d\] select +\d", said, re.MULTILINE)) == 2, said


def test_lanes_do_not_share_the_warm_processes_of_the_process_that_starts_them(tmp_path: Path) -> None:
    WARMTH.prepare([("json", dict(os.environ))], "cpu")
    assert WARMTH.processes
    lanes.fork([lambda: (tmp_path / "seen").write_text(str(len(WARMTH.processes)))], 1)
    assert (tmp_path / "seen").read_text() == "0" and not WARMTH.processes


def test_a_sweep_ends_with_the_command_that_started_it(tmp_path: Path) -> None:
    command = subprocess.Popen(
        arguments("run", tmp_path), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.time() + 60
    while not (started := psutil.Process(command.pid).children()) and time.time() < deadline:
        time.sleep(0.01)
    command.kill()
    command.wait()
    _, left = psutil.wait_procs(started, timeout=20)
    assert started and not left


BENCHMARKS = sorted(path.stem for path in (ROOT / "experiments" / "bench").glob("[a-z]*.py"))
HELP = """
import runpy, sys
for script in sys.argv[1:]:
    sys.argv[1:] = ["--help"]
    try:
        runpy.run_module(f"experiments.bench.{script}", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        print(f"\\n{script} ended with {end.code}\\f")
"""


@pytest.fixture(scope="module")
def benchmark_help() -> dict[str, str]:
    """What each benchmark prints for --help, in one process: each would import PyTorch and vLLM."""
    command = [sys.executable, "-c", HELP, *BENCHMARKS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return dict(zip(BENCHMARKS, done.stdout.split("\f"), strict=False))


@pytest.mark.parametrize("script", BENCHMARKS)
def test_every_benchmark_takes_what_make_bench_gives_all_of_them(
    script: str, benchmark_help: dict[str, str]
) -> None:
    """`make bench ARGS=--quick` goes through them all."""
    assert "--quick" in benchmark_help[script]
    assert f"{script} ended with 0" in benchmark_help[script]


def test_the_planners_benchmark_runs_and_refuses_what_is_not_a_student(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "experiments.bench.planner"]
    done = subprocess.run([*command, "--quick"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and re.search(r"score .* ratio .*\ntrain .* ratio", done.stderr), done.stderr
    done = subprocess.run([*command, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "not a student's folder" in done.stderr
