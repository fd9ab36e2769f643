"""Start workers: a plain process, or torchrun if there are several.

A worker reads its job from a file and writes its result to the artifact's folder. Its output is shown and
saved in `log.txt`. If it fails, the user sees the worker's own error, not the launcher's.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Protocol

from lark.config import from_dict
from lark.errors import LarkError, WorkerMemoryError
from lark.reading.untrusted import readable_object
from lark.secrets import Redactor
from lark.store.disk import no_space, removed
from lark.store.store import write_text
from lark.work.heartbeat import Watch
from lark.work.machine import Machine
from lark.work.operation import Job
from lark.work.process import ROOT, die_with_parent, environment

JOB = "job.json"
RESULT = ".result.json"
ERROR = ".error.json"
LOG = "log.txt"
GRACE_SECONDS = 15
"""Time that a worker has to end before it is killed."""
DISK_FULL = 28
"""Exit code of a worker that could not write its error because the disk is full."""
NOT_WRITTEN = 30
"""Exit code of a worker that could not write its error for another reason."""


class Process(Protocol):
    """A started worker: a `subprocess.Popen`, or one with the same interface. `pid` is also the id of its
    process group.
    """

    pid: int
    stdout: IO[bytes] | None

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


Start = Callable[[list[str], dict[str, str]], Process]
"""Starts a command with an environment."""


def start_process(arguments: list[str], env: dict[str, str]) -> Process:
    return subprocess.Popen(
        arguments, env=env, cwd=ROOT,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True, preexec_fn=die_with_parent,  # noqa: PLW1509  # the child only calls prctl
    )  # fmt: skip


def run_worker(
    job: Job, target: str, processes: int | None = None, start: Start = start_process
) -> dict[str, Any]:
    """Run a job in workers, which call the function `target` ("package.module:function"); return its result.

    `processes`: None: as many as the machine has.
    """
    folder = job.folder
    machine = job.machine
    for stale in (RESULT, ERROR):
        (folder / stale).unlink(missing_ok=True)
    write_job(job, target)
    watch = Watch(folder, job.config.hardware.silence)
    env = environment(machine, processes, job.gpus, job.allocator)
    count = 1 if machine.cluster else processes or machine.processes
    code = _run(command(folder, machine, processes), folder, env, watch, start, count)
    if code != 0 or not (folder / RESULT).exists():
        raise _failure(job.operation, folder, code)
    result = dict(json.loads((folder / RESULT).read_text(encoding="utf-8")))
    (folder / RESULT).unlink()
    return result


def write_job(job: Job, target: str) -> Path:
    """Write the job for workers, as `job.json` in its folder; return the file's path."""
    path = job.folder / JOB
    write_text(path, json.dumps({**asdict(job), "run": target}, indent=2, default=str))
    return path


def read_job(path: Path) -> tuple[Job, str]:
    """Read a job, with the rank of this process, and the function that runs it."""
    values = json.loads(path.read_text(encoding="utf-8"))
    target = values.pop("run")
    values |= {
        "folder": Path(values["folder"]),
        "outputs": _paths(values["outputs"]),
        "inputs": _paths(values["inputs"]),
        "config": from_dict(values["config"]),
        "machine": Machine(**values["machine"]),
        # As torchrun sets them.
        "rank": int(os.environ.get("RANK", "0")),
        "world": int(os.environ.get("WORLD_SIZE", "1")),
    }
    return Job(**values), target


def _paths(folders: Mapping[str, str]) -> dict[str, Path]:
    return {label: Path(folder) for label, folder in folders.items()}


def command(folder: Path, machine: Machine, processes: int | None = None) -> list[str]:
    """The command line of a worker, as `dry_run=true` shows it."""
    worker = ["-m", "lark.work.worker", str(folder / JOB)]
    count = processes or machine.processes
    # On a cluster, the worker starts the processes that do the work (lark/cluster/crew.py).
    if count == 1 or machine.cluster:
        return [sys.executable, *worker]
    torchrun = ["-m", "torch.distributed.run", f"--nproc_per_node={count}", "--standalone"]
    return [sys.executable, *torchrun, *worker]


def _run(
    arguments: list[str],
    folder: Path,
    env: dict[str, str],
    watch: Watch | None = None,
    start: Start = start_process,
    processes: int = 1,
) -> int:
    """Run a command, copy its output to the terminal and the log, and end its children when interrupted;
    return its exit code.

    `watch`: also end it if one of its `processes` shows no sign of life.
    """
    process = start(arguments, env)
    redactor = Redactor()
    assert process.stdout is not None
    if watch is not None:
        watch.expect(process.pid, processes)
    try:
        with (folder / LOG).open("ab") as log_file, selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while True:
                ready = selector.select(None if watch is None else watch.interval)
                if watch is not None:
                    watch.check()
                if not ready:
                    continue
                chunk = os.read(process.stdout.fileno(), 65536)
                output = redactor.feed(chunk)
                log_file.write(output)
                log_file.flush()
                # After a worker has written its error, all further output is torchrun's report of the
                # failure.
                if not (folder / ERROR).exists():
                    sys.stderr.buffer.write(output)
                    sys.stderr.buffer.flush()
                if not chunk:
                    break
        return process.wait()
    finally:
        _end(process)
        if watch is not None:
            watch.close()


def _end(process: Process) -> None:
    """End the worker and everything it started: first with SIGTERM, then with SIGKILL."""
    for sig in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sig)
        except ProcessLookupError:
            return
        if process.poll() is None:
            try:
                process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                continue


def _failure(operation: str, folder: Path, code: int) -> LarkError:
    """The error of a failed worker: its own, if it left one."""
    log = f"Its log: {folder / LOG}"
    error = readable_object(folder / ERROR)
    if error is None:
        return _unexplained(operation, folder, code, log)
    if error["memory"] is not None:
        # The amount is empty if PyTorch does not report it.
        requested = f" (it tried to allocate another {error['memory']})" if error["memory"] else ""
        return WorkerMemoryError(f"The {operation} worker ran out of memory{requested}. {log}")
    if error["expected"]:
        return LarkError(error["message"])
    return LarkError(f"The {operation} worker failed: {error['message']}\n{log}")


def _unexplained(operation: str, folder: Path, code: int, log: str) -> LarkError:
    """The error of a worker that left none."""
    if code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return WorkerMemoryError(
            f"The {operation} worker was killed, most likely because it ran out of memory. {log}"
        )
    if not folder.is_dir():
        return LarkError(removed(folder))
    if code == DISK_FULL:
        return LarkError(no_space(folder))
    if code == NOT_WRITTEN:
        return LarkError(
            f"{folder}: the {operation} worker cannot write here."
            " Check the folder's permissions and the disk."
        )
    return LarkError(f"The {operation} worker exited with code {code} without a message. {log}")
