"""Whether a process is alive: by its number on this machine, by its file on another."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lark.store.alive import Watched, has_ended, is_fresh, owner_name, this_process, touching


def test_a_process_of_this_machine_has_ended_before_its_parent_notices() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        owner = {"process": process.pid, "host": socket.gethostname()}
        assert not has_ended(owner)
        process.kill()
        while not has_ended(owner):  # without asking for its exit code
            time.sleep(0.01)
    assert has_ended(owner)


@pytest.mark.parametrize("owner", [{}, {"process": 2**22 + 7, "host": "elsewhere"}, {"process": "7"}])
def test_a_process_that_cannot_be_looked_up_may_be_alive(owner: dict[str, object]) -> None:
    assert not has_ended(owner)


def test_this_process_is_alive_and_has_a_name() -> None:
    assert not has_ended(this_process())
    assert owner_name(this_process()) == f"process {os.getpid()} on {socket.gethostname()}"


def test_a_file_that_is_touched_stays_fresh(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert not is_fresh(path, 60)
    path.touch()
    os.utime(path, (0, 0))
    assert not is_fresh(path, 60)
    with touching(path, 0.01):
        while not is_fresh(path, 60):
            time.sleep(0.01)


def test_a_file_that_changes_is_counted_from_its_last_change(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    watched = Watched(path, since=time.monotonic() - 1000)
    assert watched.seconds > 999
    assert watched.has_changed() and watched.seconds < 999
    assert not watched.has_changed()
    os.utime(path, (0, 0))
    assert watched.has_changed()
    path.unlink()
    assert watched.has_changed() and not watched.has_changed()
