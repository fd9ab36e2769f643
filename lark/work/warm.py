"""Workers that have imported their code before there is work for them.

PyTorch, transformers and the Trainer take a worker five seconds and more to import. A *warm process*
imports the modules of the coming steps while earlier steps run, and then starts their workers:

    On CPU it forks a worker for each step, also for the later trials of a sweep, so that everything is
    imported once. It only imports modules and never calls them. So a worker begins as a new process would,
    and nothing of one step reaches the next. On GPUs it becomes the worker of the next step, and another
    one is started for the step after that. It does not fork, because some libraries query the driver when
    they are imported, and a fork cannot use a driver that its parent has used.

A warm process is started with the environment of its steps, because libraries read it when they are
imported (threads, visible GPUs, allocator). A step that needs another environment or several processes is
started without a warm process, and so is one whose warm process has ended. A worker that was killed may
leave locks that it shared with the process that it was forked from, so that process ends too.

Run as: python -m lark.work.warm <socket> <fork or become>   (by `_Warm`)
"""

import contextlib
import gc
import importlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from lark.store.alive import exit_code, processor_ticks
from lark.work.launch import ROOT, Process, die_with_parent, read_job, start_process
from lark.work.worker import leave, main

log = logging.getLogger(__name__)

FORK, BECOME = "fork", "become"
IDLE_SECONDS = 30
"""Longest wait for a warm process that does not use the processor: it may be stopped."""

Coming = tuple[str, dict[str, str]]
"""The module of a coming step's worker, and the environment of that worker."""


class _Warm:
    """A warm process, seen from the run."""

    def __init__(self, how: str, env: dict[str, str]) -> None:
        self.how = how
        self.env = env
        self.modules: set[str] = set()
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), how],
                env=env,
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509  # the child only calls prctl
            )

    def load(self, module: str) -> None:
        if module not in self.modules:
            self.modules.add(module)
            self._send({"import": module})

    def start(self, job: str) -> Process | None:
        """Start the worker of a job file. None if that is not possible: the warm process has ended, or is
        stuck.
        """
        reader, writer = os.pipe()
        try:
            self._send({"run": job}, [writer])
            started = self._receive() if self._answers() else None
        finally:
            os.close(writer)
        if started is None:
            os.close(reader)
            self.close()
            return None
        stdout = os.fdopen(reader, "rb", buffering=0)
        if self.how == FORK:
            return _Forked(self, started["pid"], stdout)
        self.connection.close()
        self.process.stdout = stdout
        return self.process

    def _answers(self) -> bool:
        """Wait for an answer, as long as the process works: importing may take minutes."""
        used: int | None = None
        since = time.monotonic()
        while not select.select([self.connection], [], [], 0.5)[0]:
            now = processor_ticks(self.process.pid)
            if now != used:
                used = now
                since = time.monotonic()
            elif time.monotonic() - since > IDLE_SECONDS:
                return False
        return True

    def close(self) -> None:
        """End the warm process, unless it has become a worker."""
        self.connection.close()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()

    def _send(self, message: dict[str, str], files: Iterable[int] = ()) -> None:
        with contextlib.suppress(OSError):  # it has ended, which `start` finds out
            socket.send_fds(self.connection, [json.dumps(message).encode()], list(files))

    def _receive(self) -> dict[str, Any] | None:
        """The next message; None if the warm process has ended. Waits for it."""
        message = _read(self.connection)[0]
        return json.loads(message) if message else None


class _Forked:
    """A worker that a warm process has forked, with the interface of `subprocess.Popen`."""

    def __init__(self, parent: _Warm, pid: int, stdout: IO[bytes]) -> None:
        self.parent = parent
        self.pid = pid
        self.stdout: IO[bytes] | None = stdout
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            ended = self._report(timeout)
            self.returncode = -signal.SIGKILL if ended is None else int(ended["code"])
            if self.returncode < 0:
                self.parent.close()
        return self.returncode

    def _report(self, timeout: float | None) -> dict[str, Any] | None:
        """The worker's exit code, as reported by the warm process; from `/proc` if the warm process is
        stopped.
        """
        since: float | None = None
        while not select.select([self.parent.connection], [], [], 0.5 if timeout is None else timeout)[0]:
            if timeout is not None:
                raise subprocess.TimeoutExpired(f"worker {self.pid}", timeout)
            code = exit_code(self.pid)
            if code is None:
                continue
            since = since or time.monotonic()
            if time.monotonic() - since > IDLE_SECONDS:
                self.parent.close()
                return {"code": code}
        return self.parent._receive()


class Warmth:
    """The warm processes of a run. All trials of a sweep share them."""

    def __init__(self) -> None:
        self.processes: list[_Warm] = []
        self.coming: deque[Coming] = deque()
        self.how = FORK

    def prepare(self, coming: Iterable[Coming], device: str) -> None:
        """Import the modules of the workers that will be started next, in this order. Replaces what was
        prepared before.
        """
        self.coming = deque(coming) if sys.platform == "linux" else deque()
        self.how = FORK if device == "cpu" else BECOME
        self._advance()

    def start(self, arguments: list[str], env: dict[str, str]) -> Process:
        """Start a worker with this command and environment; use a warm process if there is one for it."""
        warm = next((warm for warm in self._running() if warm.env == env), None)
        process = None
        if warm is not None:
            process = warm.start(arguments[-1])
            if process is None or warm.how == BECOME:
                self.processes.remove(warm)
        while self.coming and self.coming.popleft()[1] != env:
            pass
        self._advance()
        return process or start_process(arguments, env)

    def close(self) -> None:
        while self.processes:
            self.processes.pop().close()

    def _running(self) -> list[_Warm]:
        self.processes = [warm for warm in self.processes if warm.process.poll() is None]
        return self.processes

    def _advance(self) -> None:
        """Start warm processes for what is coming: all of it if they fork, or else the next step."""
        for module, env in self.coming if self.how == FORK else list(self.coming)[:1]:
            warm = next((warm for warm in self._running() if (warm.how, warm.env) == (self.how, env)), None)
            if warm is None:
                warm = _Warm(self.how, env)
                self.processes.append(warm)
            warm.load(module)


WARMTH = Warmth()


def _read(connection: socket.socket) -> tuple[bytes, list[int]]:
    """The next message and the files in it. Empty if the other side has ended."""
    try:
        message, files, _, _ = socket.recv_fds(connection, 65536, 1)
    except ConnectionResetError:
        return b"", []
    return message, files


def _serve(connection: socket.socket, how: str) -> Path:
    """The main loop of a warm process: import modules and start workers until the run ends. Returns the
    job, in its worker.
    """
    waiting: deque[str] = deque()
    workers: list[int] = []

    def report(*_: object) -> None:
        """Send the exit code of the worker. As a signal handler, it also runs during an import."""
        if not workers:
            return
        number, status = os.waitpid(workers[0], os.WNOHANG)
        if number:
            workers.clear()
            connection.send(json.dumps({"code": os.waitstatus_to_exitcode(status)}).encode())

    def load() -> None:
        with contextlib.suppress(Exception):  # the worker fails on the same import, and reports it
            importlib.import_module(waiting.popleft())

    signal.signal(signal.SIGCHLD, report)
    while True:
        if waiting and not select.select([connection], [], [], 0)[0]:
            load()
            continue
        message, files = _read(connection)
        if not message:
            os._exit(0)
        request = json.loads(message)
        if "import" in request:
            waiting.append(request["import"])
            continue
        job = Path(request["run"])
        while read_job(job)[1].split(":")[0] in waiting:
            load()
        gc.collect()
        gc.freeze()  # the worker's garbage collector then leaves shared pages alone
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        parent = os.getpid()
        child = os.fork() if how == FORK else 0
        if child:
            workers.append(child)
            os.close(files[0])
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
            continue
        _begin(connection, files[0], parent if how == FORK else None)
        return job


def _begin(connection: socket.socket, output: int, parent: int | None) -> None:
    """Make this process a worker as launch.py would have started it. `parent`: the process that forked it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    if parent is not None:
        os.setsid()
        die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            # From the system's entropy, as in a new process; `random` and PyTorch do so themselves.
            numpy.random.seed()
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(output, number)
        # A new stream: the old one belongs to /dev/null, which can seek, and a pipe cannot.
        setattr(sys, name, open(number, "w", buffering=1, encoding="utf-8", closefd=False))  # noqa: SIM115
    os.close(output)
    connection.send(json.dumps({"pid": os.getpid()}).encode())
    connection.close()


if __name__ == "__main__":
    leave(main(_serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])))
