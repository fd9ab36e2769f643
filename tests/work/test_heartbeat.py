"""A worker that is stopped is noticed and named; one that works for long without a word is left alone."""

import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from lark.errors import LarkError
from lark.work import heartbeat, launch
from lark.work.heartbeat import Watch
from tests.conftest import ROOT

WORKER = """
import contextlib, os, re, signal, sys, time
from pathlib import Path
if sys.argv[4] == "stop at once":
    os.kill(os.getpid(), 19)
from lark.work import heartbeat
heartbeat.BEAT = 0.1
heartbeat.start(Path(sys.argv[1]), 3, float(sys.argv[3]))
print("started", flush=True)
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    if sys.argv[4] == "work":
        sum(range(10000))
    elif sys.argv[4] == "hold":
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, end - time.monotonic())
        with contextlib.suppress(KeyboardInterrupt):
            re.match("(a|aa)+$", "a" * 100 + "b")
    elif sys.argv[4] == "stop":
        os.kill(os.getpid(), 19)
    else:
        time.sleep(end - time.monotonic())
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BEAT", 0.1)
    monkeypatch.setattr(launch, "GRACE_SECONDS", 1)


def run(folder: Path, seconds: float, doing: str, silence: float, idle: float = 0.0) -> int:
    arguments = [sys.executable, "-c", WORKER, str(folder), str(seconds), str(idle), doing]
    watch = Watch(folder, silence)
    watch_checked = watch.check

    def check() -> None:  # the test's machine may be busy: a late check must not start the count again
        watch.checked = time.monotonic()
        watch_checked()

    watch.check = check  # type: ignore[method-assign]
    return launch._run(arguments, folder, {**os.environ, "PYTHONPATH": str(ROOT)}, watch=watch)


def test_a_stopped_worker_is_named_and_ended(tmp_path: Path) -> None:
    with pytest.raises(
        LarkError,
        match=r"Worker process 3 \(process \d+ on .*\) has shown no sign of life .* hardware\.silence=",
    ):
        run(tmp_path, 60, "stop", silence=2 / 60)
    assert not list(tmp_path.glob(".alive-*"))


def test_a_worker_that_is_stopped_before_its_first_sign_is_ended(tmp_path: Path) -> None:
    with pytest.raises(
        LarkError,
        match=r"Worker process that was just started \(process \d+ on .*\) has shown no sign of life",
    ):
        run(tmp_path, 60, "stop at once", silence=2 / 60)
    assert not list(tmp_path.glob(".alive-*"))


def test_all_processes_of_a_launcher_must_show_a_sign(tmp_path: Path) -> None:
    watch = Watch(tmp_path, 1e-9)
    watch.expect(os.getpid(), 2)
    (tmp_path / ".alive-0").write_text(json.dumps({"process": os.getpid(), "host": "elsewhere"}))
    watch.silent()
    time.sleep(0.01)
    (silent, *_) = [silent for silent in watch.silent() if silent.name == heartbeat.START]
    assert "the launcher of 2 processes" in str(silent)
    (tmp_path / ".alive-1").write_text(json.dumps({"process": os.getpid(), "host": "elsewhere"}))
    watch.silent()
    assert not (tmp_path / f".alive-{heartbeat.START}").exists()


@pytest.mark.parametrize("doing", ["work", "wait", "hold"])
def test_a_worker_that_says_nothing_is_left_alone(doing: str, tmp_path: Path) -> None:
    assert run(tmp_path, 4, doing, silence=1.5 / 60) == 0
    assert not list(tmp_path.glob(".alive-*")), "the artifact's folder has only its own files"


def test_no_limit_can_be_set(tmp_path: Path) -> None:
    assert Watch(tmp_path, 0).interval is None
    assert run(tmp_path, 0.5, "wait", silence=0) == 0


def test_a_worker_that_only_waits_logs_what_it_waits_for(tmp_path: Path) -> None:
    assert run(tmp_path, 3, "wait", silence=10, idle=1 / 60) == 0
    log = (tmp_path / "log.txt").read_text()
    assert "Process 3 has waited" in log and 'File "<string>", line 22' in log


def test_a_run_that_was_stopped_itself_starts_to_count_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".alive-0").write_text("1")
    watch = Watch(tmp_path, 1)
    (tmp_path / ".alive-0").write_text("1")
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    watch.check()
    now += 3600  # SIGSTOP for an hour, with all workers
    watch.check()
    now += 0.1
    watch.check()


def test_stopping_ends_the_thread(tmp_path: Path) -> None:
    stop = heartbeat.start(tmp_path, 0, 0)
    stop.set()
    time.sleep(0.5)
    assert "heartbeat" not in {thread.name for thread in threading.enumerate()}
