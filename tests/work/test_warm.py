"""Warm processes: the same results as cold ones, nothing shared between steps, and nothing left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lark.errors import LarkError, WorkerMemoryError
from lark.work import launch, warm
from lark.work.machine import Machine
from lark.work.operation import Job
from lark.work.warm import Warmth
from tests.conftest import ROOT, composed, job_of
from tests.work.test_launch import alive

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="warm processes need Linux")

STAND_IN = """
import os, random, signal, subprocess, sys, time
seen = [os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "PYTORCH_ALLOC_CONF")]
print("imported with", *seen, flush=True)
imported_by, calls = os.getpid(), []


def state(job):
    calls.append(job.operation)
    import numpy
    print("working", flush=True)
    return {
        "pid": os.getpid(), "imported_by": imported_by, "calls": calls, "group": os.getpgid(0),
        "random": random.random(), "numpy": float(numpy.random.rand()),
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "allocator": os.environ.get("PYTORCH_ALLOC_CONF"),
    }


def stop_parent(job):
    os.kill(os.getppid(), signal.SIGSTOP)
    return {"stopped": True}


def fail(job):
    raise KeyError("broken")


def die(job):
    os.kill(os.getpid(), signal.SIGKILL)


def sleep(job):
    grandchild = subprocess.Popen(["sleep", "60"])
    print(os.getppid(), os.getpid(), grandchild.pid, flush=True)
    time.sleep(60)
"""
"""A module of workers that reports its own state."""


@pytest.fixture
def warmth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Warmth]:
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    warmth = Warmth()
    yield warmth
    warmth.close()


CPU, GPU = Machine("cpu", 1, 1, 1), Machine("cuda", 1, 1, 1)


def job(folder: Path, machine: Machine = CPU, allocator: str = "") -> Job:
    folder.mkdir(exist_ok=True)
    return job_of(composed(), folder, machine=machine, allocator=allocator)


def prepare(warmth: Warmth, *jobs: Job) -> None:
    coming = [("stand_in", launch.environment(job.machine, 1, job.gpus, job.allocator)) for job in jobs]
    warmth.prepare(coming, jobs[0].machine.device)


def run(warmth: Warmth, job: Job, function: str = "state") -> dict[str, object]:
    return launch.run_worker(job, f"stand_in:{function}", 1, start=warmth.start)


def test_each_worker_starts_where_a_new_process_would(warmth: Warmth, tmp_path: Path) -> None:
    jobs = [job(tmp_path / str(number)) for number in range(3)]
    prepare(warmth, *jobs)
    found = [run(warmth, job) for job in jobs]
    (warm,) = warmth.processes
    assert {state["imported_by"] for state in found} == {warm.process.pid}
    assert len({state["pid"] for state in found} | {warm.process.pid}) == 4
    assert all(state["calls"] == ["test"] and state["group"] == state["pid"] for state in found)
    assert len({state["random"] for state in found}) == len({state["numpy"] for state in found}) == 3
    assert all((job.folder / "log.txt").read_text() == "working\n" for job in jobs)


def test_another_environment_is_not_served(
    warmth: Warmth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = job(tmp_path / "first")
    prepare(warmth, first)
    monkeypatch.setenv("OMP_PLACES", "cores")
    cold = run(warmth, first)
    assert cold["imported_by"] == cold["pid"]
    monkeypatch.setenv("WANDB_SERVICE", "set by W&B during the run")
    monkeypatch.delenv("OMP_PLACES")
    warm = run(warmth, first)
    assert warm["imported_by"] == warmth.processes[0].process.pid


def test_errors_are_reported_as_ever_and_a_killed_worker_takes_its_parent_along(
    warmth: Warmth, tmp_path: Path
) -> None:
    jobs = [job(tmp_path / str(number)) for number in range(4)]
    prepare(warmth, *jobs)
    with pytest.raises(LarkError, match=r"KeyError.*broken"):
        run(warmth, jobs[0], "fail")
    parent = warmth.processes[0].process.pid
    with pytest.raises(WorkerMemoryError, match="was killed"):
        run(warmth, jobs[1], "die")
    assert not alive(parent)
    assert run(warmth, jobs[2])["calls"] == ["test"]
    prepare(warmth, jobs[3])
    state = run(warmth, jobs[3])
    assert state["imported_by"] == warmth.processes[0].process.pid != parent


def test_a_module_that_cannot_be_imported_fails_in_its_own_step(warmth: Warmth, tmp_path: Path) -> None:
    one = job(tmp_path / "one")
    warmth.prepare(
        [("no_such_module", launch.environment(CPU, 1)), ("stand_in", launch.environment(CPU, 1))], "cpu"
    )
    with pytest.raises(LarkError, match="no_such_module"):
        launch.run_worker(one, "no_such_module:state", 1, start=warmth.start)
    assert run(warmth, one)["imported_by"] == warmth.processes[0].process.pid


def test_a_warm_process_that_has_ended_is_replaced_by_a_cold_start(warmth: Warmth, tmp_path: Path) -> None:
    one = job(tmp_path / "one")
    prepare(warmth, one)
    warmth.processes[0].process.kill()
    state = run(warmth, one)
    assert state["imported_by"] == state["pid"]


def test_a_warm_process_that_is_stopped_is_replaced_by_a_cold_start(
    warmth: Warmth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "IDLE_SECONDS", 1)
    one = job(tmp_path / "one")
    prepare(warmth, one)
    warmth.processes[0].process.send_signal(signal.SIGSTOP)
    state = run(warmth, one)
    assert state["imported_by"] == state["pid"] and not warmth.processes


def test_the_result_of_a_worker_counts_if_its_warm_process_is_stopped(
    warmth: Warmth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "IDLE_SECONDS", 1)
    one = job(tmp_path / "one")
    prepare(warmth, one)
    assert run(warmth, one, "stop_parent") == {"stopped": True}


def test_gpu_workers_are_not_forked_and_import_in_their_own_environment(
    warmth: Warmth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lark.processors._present_gpus", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    jobs = [
        job(tmp_path / str(number), GPU, allocator)
        for number, allocator in enumerate(("expandable_segments:True", ""))
    ]
    prepare(warmth, *jobs)
    for expected in jobs:
        (spare,) = warmth.processes
        state = run(warmth, expected)
        assert state["pid"] == state["imported_by"] == spare.process.pid
        assert (state["gpus"], state["allocator"]) == ("0", expected.allocator or None)
        assert "working\n" in (expected.folder / "log.txt").read_text()
    assert not warmth.processes


RUN = """
import sys, json
from pathlib import Path
from lark.work import launch
from lark.work.warm import WARMTH
from tests.conftest import composed, job_of
job = job_of(composed(), Path(sys.argv[1]))
WARMTH.prepare([("stand_in", launch.environment(job.machine, 1, job.gpus))], "cpu")
launch.run_worker(job, "stand_in:sleep", 1, start=WARMTH.start)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_run_ends(how: signal.Signals, warmth: Warmth, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]])}
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path)],
        cwd=ROOT,
        env=env,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    assert process.stderr is not None
    *watched, grandchild = map(int, process.stderr.readline().split())
    process.send_signal(how)
    process.wait()
    watched = [*watched, grandchild] if how == signal.SIGINT else watched
    deadline = time.time() + 20
    while any(map(alive, watched)) and time.time() < deadline:
        time.sleep(0.1)
    assert not any(map(alive, watched))
    if alive(grandchild):
        os.kill(grandchild, signal.SIGKILL)
