"""Workers: one code path for one process or several, their own errors, and no process left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lark.demo.pool import trajectories
from lark.errors import LarkError
from lark.pipeline.operations.evaluate import GRADE
from lark.pipeline.operations.score import LENGTHS
from lark.pool import trajectories as pools
from lark.pool.trajectory import Trajectory
from lark.work import launch
from lark.work.machine import Machine
from lark.work.operation import Operation
from tests.conftest import ROOT, composed, job_of

MACHINE = Machine("cpu", 1, 1, 1)


def run(operation: Operation, folder: Path, processes: int = 1, **parts: Any) -> dict[str, object]:
    job = job_of(
        composed(), folder, machine=Machine("cpu", processes, 1, 1), operation=operation.name, **parts
    )
    return launch.run_worker(job, str(operation.run))


@pytest.mark.parametrize("processes", [1, 2])
def test_a_failing_worker_is_quoted_in_its_own_words(
    processes: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pools.write((Trajectory(**row) for row in trajectories(1, 42)), tmp_path / pools.FILE, composed().pool)  # type: ignore[arg-type]
    with pytest.raises(LarkError, match=r"student\.path=.*its tokenizer cannot be loaded"):
        run(LENGTHS, tmp_path, processes, weights=str(tmp_path / "nowhere"), inputs={"pool": tmp_path})
    assert "Traceback" not in capfd.readouterr().err
    assert "Traceback" in (tmp_path / "log.txt").read_text()


def test_a_crash_names_the_log(tmp_path: Path) -> None:
    with pytest.raises(LarkError, match=r"KeyError.*\n.*log\.txt"):
        run(GRADE, tmp_path, outputs={"demo_words": tmp_path})  # without its input, which no user can cause


def test_one_process_is_started_plainly_and_several_by_torchrun(tmp_path: Path) -> None:
    assert launch.command(tmp_path, MACHINE) == [
        sys.executable,
        "-m",
        "lark.work.worker",
        str(tmp_path / "job.json"),
    ]
    assert "torch.distributed.run" in launch.command(tmp_path, Machine("cpu", 2, 1, 1))


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0]
    except FileNotFoundError:
        return False


SLEEPER = """
import subprocess, sys, os
from lark.work.launch import _run
from pathlib import Path
from typing import Any
child = (
    "import subprocess,sys,os,time; p=subprocess.Popen(['sleep','60']);"
    " print(os.getpid(), p.pid, flush=True); time.sleep(60)"
)
_run([sys.executable, "-c", child], Path(sys.argv[1]), dict(os.environ))
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_the_worker_ends_with_the_run_however_it_ends(how: signal.Signals, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPER, str(tmp_path)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    assert process.stderr is not None
    worker, grandchild = map(int, process.stderr.readline().split())
    process.send_signal(how)
    process.wait()
    deadline = time.time() + 20
    watched = [worker, grandchild] if how == signal.SIGINT else [worker]
    while any(map(alive, watched)) and time.time() < deadline:
        time.sleep(0.1)
    assert not any(map(alive, watched))
    if alive(grandchild):
        os.kill(grandchild, signal.SIGKILL)


def test_a_bar_moves_seldom_where_nobody_watches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launch.environment(MACHINE)["TQDM_MININTERVAL"] == "10"
    monkeypatch.setenv("TQDM_MININTERVAL", "2")
    assert launch.environment(MACHINE)["TQDM_MININTERVAL"] == "2"
