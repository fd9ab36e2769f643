"""A lock works on file systems that have none: one process at a time, and one that has ended leaves nothing
behind.
"""

import errno
import json
import multiprocessing
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from lark.store import locks
from lark.store.locks import holder, locked

NUMBERS = [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS]


@pytest.fixture(params=NUMBERS)
def without_locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system on which `flock` fails, and times that fit into a test."""

    def flock(handle: Any, operation: int) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr("fcntl.flock", flock)
    monkeypatch.setattr(locks, "TOUCH_SECONDS", 0.1)
    monkeypatch.setattr(locks, "STALE_SECONDS", 1.0)
    monkeypatch.setattr(locks, "RETRY_SECONDS", 0.02)


def work(path: Path, record: Path) -> None:
    with locked(path, "thing"):
        with record.open("a") as handle:
            handle.write("in\n")
        time.sleep(0.1)
        with record.open("a") as handle:
            handle.write("out\n")


def test_processes_take_turns(without_locks: None, tmp_path: Path) -> None:
    path, record = tmp_path / "a.lock", tmp_path / "record"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work, args=(path, record)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    assert record.read_text().split() == ["in", "out"] * 4
    assert [file.name for file in tmp_path.iterdir() if "held" in file.name] == []


@pytest.mark.parametrize(
    "owner",
    [
        {"token": "a1", "process": 2**22 + 7, "host": socket.gethostname()},
        {"token": "a1", "process": 1, "host": "another"},
        {"token": "a1", "process": 10**30, "host": socket.gethostname()},
        {},
        None,
    ],
    ids=["ended", "silent", "no process", "empty", "unreadable"],
)
def test_a_lock_that_was_left_behind_is_taken_over(
    owner: dict[str, Any] | None, without_locks: None, tmp_path: Path
) -> None:
    (tmp_path / "a.lock.held").write_text("{" if owner is None else json.dumps(owner))
    started = time.monotonic()
    with locked(tmp_path / "a.lock", "thing"):
        assert json.loads((tmp_path / "a.lock.held").read_text())["process"] == os.getpid()
    assert time.monotonic() - started < 15
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.lock"]


def test_the_lock_of_a_killed_process_is_taken_over_before_its_parent_notices(
    without_locks: None, tmp_path: Path
) -> None:
    path = tmp_path / "a.lock"
    child = multiprocessing.get_context("fork").Process(target=hold, args=(path,))
    child.start()
    while not (tmp_path / "in").exists():
        time.sleep(0.01)
    os.kill(child.pid or 0, signal.SIGKILL)
    started = time.monotonic()
    locks.STALE_SECONDS = 600.0
    with locked(path, "thing"):
        assert time.monotonic() - started < 60
    child.join(30)


def hold(path: Path) -> None:
    with locked(path, "thing"):
        path.with_name("in").touch()
        time.sleep(600)


def test_a_long_job_keeps_its_lock(without_locks: None, tmp_path: Path) -> None:
    path, record = tmp_path / "a.lock", tmp_path / "record"
    with locked(path, "thing"):
        other = multiprocessing.get_context("fork").Process(target=work, args=(path, record))
        other.start()
        time.sleep(2.0)
        assert not record.exists(), "touched within the limit, so not taken over"
    other.join(30)
    assert record.read_text().split() == ["in", "out"]


def hold_until(path: Path, held: Any, end: Any) -> None:
    with locked(path, "thing"):
        held.set()
        end.wait(60)


def check_holder(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    held = context.Event()
    end = context.Event()
    assert holder(path) is None
    process = context.Process(target=hold_until, args=(path, held, end))
    process.start()
    assert held.wait(60) and holder(path) == f"process {process.pid} on {socket.gethostname()}"
    end.set()
    process.join()
    assert holder(path) is None


def test_who_holds_a_lock_can_be_seen_without_waiting(tmp_path: Path) -> None:
    check_holder(tmp_path / "lock")


def test_who_holds_a_lock_can_be_seen_where_there_are_none(without_locks: None, tmp_path: Path) -> None:
    check_holder(tmp_path / "lock")


def test_another_error_of_the_disk_is_not_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def flock(handle: Any, operation: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(OSError, match="Input/output"), locked(tmp_path / "a.lock", "thing"):
        pass
