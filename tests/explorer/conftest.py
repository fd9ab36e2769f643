"""A small real run that the explorer's tests share, and its server in a process of its own, as a user
starts it.
"""

import fcntl
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from lark.explorer.context import Context
from tests.conftest import ROOT, SMALL, run_program
from tests.explorer.browser import NONE, chromium, executable


def shared(factory: pytest.TempPathFactory, name: str) -> Path:
    """A folder that all processes of a test session share."""
    own = factory.getbasetemp()
    return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / name


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The outputs of the demo in miniature, with tokens, and selections of several methods. Made once, even
    by several processes. B = 40 takes all 33 candidates.
    """
    folder = shared(tmp_path_factory, "explored")
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            code, said = run_program(*SMALL, "scoring.tokens=true", outputs=folder)
            assert code == 0, said
            sweep = ["method=lark,rsr,random,rule_quality,brier", "budget=1,40", "stages=[select]"]
            code, said = run_program("-m", *SMALL[:1], "tracking=none", *sweep, outputs=folder)
            assert code == 0, said
            (folder / "done").touch()
    return folder


@pytest.fixture(scope="session")
def context(store: Path) -> Context:
    return Context(store)


@pytest.fixture(scope="session")
def pool(store: Path) -> str:
    """Fingerprint of the pool."""
    return only(store / "pool")[-12:]


@pytest.fixture(scope="session")
def view(store: Path) -> str:
    """Fingerprint of the student's scores."""
    return only(store / "scores")[-12:]


def only(folder: Path) -> str:
    (found,) = folder.iterdir()
    return found.name


@dataclass(frozen=True)
class Server:
    """A running explorer."""

    url: str
    """With the token."""
    process: subprocess.Popen[str]

    @property
    def base(self) -> str:
        return self.url.split("?")[0]

    @property
    def port(self) -> int:
        match = re.search(r":(\d+)/", self.url)
        assert match is not None
        return int(match[1])

    @property
    def token(self) -> str:
        return self.url.split("token=")[1]


@contextmanager
def serving(folder: Path, *options: str, browser: str | None = None) -> Iterator[Server]:
    """`python -m lark.explorer <folder>` on a free port, on a machine with this browser or without one."""
    given = ["--no-browser"] if browser is None else []
    own = (
        {"PYTHONUNBUFFERED": "1"}
        if browser is None
        else {"PYTHONUNBUFFERED": "1", "BROWSER": browser, "DISPLAY": ":0"}
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "lark.explorer", str(folder), "--port", "0", *given, *options],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **own},
    )  # fmt: skip
    try:
        said = ""
        assert process.stdout is not None
        for line in process.stdout:
            said += line
            match = re.search(r"http://\S+", line)
            if match:
                threading.Thread(
                    target=process.stdout.read, daemon=True
                ).start()  # a full pipe would stop the server
                yield Server(match[0], process)
                return
        raise AssertionError(f"The explorer did not start: {said}")
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One browser for all tests of the explorer. It is closed before other tests: it runs an event loop in
    this process.
    """
    with chromium() as started:
        yield started


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if executable() is None:
        terminalreporter.write_line(NONE)


@pytest.fixture(scope="session")
def server(store: Path) -> Iterator[Server]:
    with serving(store) as running:
        yield running
