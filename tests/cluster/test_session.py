"""A run's own Ray cluster: its folder is private and removed, and only the run's token opens it. Real Ray,
on loopback.
"""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lark.cluster.nodes import ALLOW_LOOPBACK
from lark.cluster.session import make_folder, remove_folder
from tests.conftest import ROOT

RUN = """
import json, os, sys
from pathlib import Path
from lark.cluster.nodes import reach
address = reach(None, Path(sys.argv[1])).address
print(json.dumps({"address": address, "token": os.environ["RAY_AUTH_TOKEN"]}), flush=True)
sys.stdin.read()
sys.exit("the run fails")
"""


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a short path, in which sockets of Ray can be. pytest's are too long."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    (folder / "tmp").mkdir()
    for name in ("RAY_TMPDIR", "TMPDIR"):
        monkeypatch.setenv(name, str(folder / "tmp"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    yield folder
    shutil.rmtree(folder)


def start(outputs: Path) -> "tuple[subprocess.Popen[str], dict[str, str]]":
    """A process with a cluster, and how to connect to it."""
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, str(outputs)],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert run.stdout is not None
    return run, json.loads(run.stdout.readline())


def client(address: str, token: str) -> dict[str, Any]:
    """The answer to a client of the cluster with some token."""
    env = {
        **os.environ,
        **ALLOW_LOOPBACK,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_NUM_REDIS_GET_RETRIES": "2",
    }
    command = [sys.executable, "-m", "lark.cluster.session", address]
    return dict(
        json.loads(subprocess.check_output(command, cwd=ROOT, env=env, text=True, stderr=subprocess.DEVNULL))
    )


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_cluster_of_a_run_that_fails_has_a_private_folder_refuses_other_tokens_and_leaves_nothing(
    short: Path,
) -> None:
    run, cluster = start(short / "outputs")
    (folder,) = (short / "outputs").iterdir()
    assert mode(folder) == 0o700
    assert any(path.is_socket() for path in folder.rglob("*"))
    assert client(**cluster).get("address") == cluster["address"]
    last = "1" if cluster["token"].endswith("0") else "0"
    assert "Failed to connect" in client(cluster["address"], cluster["token"][:-1] + last)["error"]
    run.communicate()
    assert run.returncode == 1
    assert not list((short / "outputs").iterdir())
    assert not list((short / "tmp").iterdir())


def test_the_folder_of_a_killed_run_is_removed(short: Path) -> None:
    run, _ = start(short / "outputs")
    assert list((short / "outputs").iterdir())
    run.send_signal(signal.SIGKILL)
    run.communicate()
    deadline = time.monotonic() + 60
    while list((short / "outputs").iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_path_too_long_for_sockets_is_replaced_by_a_private_temporary_folder(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = short / ("long" * 20)
    near, temporary = make_folder(short / "outputs"), make_folder(long)
    assert near.parent == short / "outputs" and mode(near) == 0o700
    assert temporary.parent == Path("/tmp") and mode(temporary) == 0o700
    assert not list(long.iterdir())
    remove_folder(temporary)
    monkeypatch.setattr(tempfile, "tempdir", str(short / "tmp"))
    assert make_folder(long).parent == short / "tmp"
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    last = make_folder()
    assert last.parent == Path("/tmp") and mode(last) == 0o700
    remove_folder(last)
