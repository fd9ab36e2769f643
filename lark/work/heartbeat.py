"""Signs of life: every worker process touches a file while it runs, and launch.py watches these files.

A thread touches the file, so a worker that loads weights or compiles for an hour still shows that it is
alive; a process that is stopped, frozen or on a lost machine does not. Code in C can keep the thread from
running, so a process of this machine that uses the processor is alive too. A worker whose main thread waits
without using the processor is alive but may be stuck: the same thread writes the main thread's stack to the
log, and the worker continues.

Processes of a cluster do the same, and the step's worker process watches them (lark/cluster/crew.py). One
that is stuck writes its stack to the file, and its work goes to another.
"""

import contextlib
import faulthandler
import logging
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from lark.errors import LarkError
from lark.store.alive import process_fields, processor_ticks

log = logging.getLogger(__name__)

BEAT = 5.0
"""Seconds between two touches."""
IDLE = 0.02
"""Share of a core below which a process counts as waiting."""
PREFIX, REMOTE = ".alive-", ".remote-"
"""Names of the files begin with this: workers of this machine, and processes of a cluster."""
START = "start"
"""The file of workers that were started and have not shown a sign yet."""


def start(folder: Path, rank: int, minutes: float, leads: bool = False) -> threading.Event:
    """Touch this worker's file until the event is set. `minutes`: without any work, until its stack is
    logged (0: never).

    `leads`: it waits for processes of a cluster, and is not stuck.
    """

    def report(waited: float) -> None:
        log.warning(
            "Process %d has waited for %.0f minutes without working; what it waits for:", rank, waited / 60
        )
        faulthandler.dump_traceback(sys.stderr)

    return _start(folder / f"{PREFIX}{rank}", minutes, report, lambda: not leads)


def start_remote(
    folder: Path, name: str, minutes: float, busy: Callable[[], bool] = lambda: True
) -> threading.Event:
    """The same for a process of a cluster. Its stack is written to the file. `busy`: whether it has work,
    and can be stuck.
    """
    path = folder / f"{REMOTE}{name}"

    def report(waited: float) -> None:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        stack = "".join(traceback.format_stack(frame))
        with contextlib.suppress(OSError):
            path.write_text(f"{_this_process()}\n{waited}\n{stack}", encoding="utf-8")

    return _start(path, minutes, report, busy)


def _this_process() -> str:
    return f"{os.getpid()} {socket.gethostname()}"


def _start(
    path: Path, minutes: float, report: Callable[[float], None], busy: Callable[[], bool]
) -> threading.Event:
    with contextlib.suppress(OSError):
        path.write_text(_this_process(), encoding="utf-8")
    stop = threading.Event()
    threading.Thread(
        target=_beat, args=(path, minutes * 60, report, busy, stop), daemon=True, name="heartbeat"
    ).start()
    return stop


def _beat(
    path: Path, limit: float, report: Callable[[float], None], busy: Callable[[], bool], stop: threading.Event
) -> None:
    used, place, since, reported = _all_time(), None, time.monotonic(), False
    main = threading.main_thread().ident
    while not stop.wait(min(BEAT, limit / 4) if limit else BEAT):
        with contextlib.suppress(OSError):
            os.utime(path)
        frame = sys._current_frames().get(main or 0)
        now, here = _all_time(), None if frame is None else (id(frame.f_code), frame.f_lasti)
        if now - used > IDLE * BEAT or here != place or not busy():
            since, reported = time.monotonic(), False
        used, place = now, here
        if limit and not reported and (waited := time.monotonic() - since) > limit:
            reported = True
            report(waited)


def _all_time() -> float:
    """Processor time of this process and its children, such as those of an engine."""
    ticks, todo = 0, [str(os.getpid())]
    while todo and sys.platform == "linux":
        number = todo.pop()
        with contextlib.suppress(OSError, ValueError):
            ticks += sum(map(int, process_fields(number)[11:13])) if number != str(os.getpid()) else 0
            for listed in Path(f"/proc/{number}/task").glob("*/children"):
                todo += listed.read_text(encoding="utf-8").split()
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Sign:
    """The last sign of life of a process."""

    stamp: int
    """Time of its file, by the clock of the file system."""
    since: float
    """When it was seen, by our clock."""
    used: str
    """Processor time of the process until then; empty on another machine."""


@dataclass(frozen=True)
class Silent:
    """A process without a sign of life, or one that is stuck."""

    name: str
    number: str
    host: str
    seconds: float
    stack: str = ""
    """What it waits for, if it is stuck."""

    def __str__(self) -> str:
        lasted = f"{self.seconds:.0f} seconds" if self.seconds < 120 else f"{self.seconds / 60:.0f} minutes"
        name = "that was just started" if self.name == START else self.name
        who = f"{name} (process id {self.number} on {self.host})"
        if self.stack:
            return f"{who} has waited for {lasted} without working"
        return f"{who} has shown no sign of life for {lasted}: it is stopped, or its machine or disk hangs"


class Watch:
    """Notices that a worker process no longer shows signs of life. Clocks of different machines are not
    compared.
    """

    def __init__(self, folder: Path, minutes: float, prefix: str = PREFIX) -> None:
        self.folder, self.limit, self.prefix = folder, minutes * 60, prefix
        self.seen: dict[str, Sign] = {}
        self.expected = 0
        self.checked = time.monotonic()
        self.close()

    def expect(self, number: int, processes: int) -> None:
        """Workers were started, with this process id. Until all have shown a sign, its work counts as
        theirs.
        """
        self.expected = processes
        # A launcher of several is busy itself, which says nothing about them.
        host = (
            socket.gethostname()
            if processes == 1
            else f"{socket.gethostname()}, the launcher of {processes} processes"
        )
        with contextlib.suppress(OSError):
            (self.folder / f"{self.prefix}{START}").write_text(f"{number} {host}", encoding="utf-8")

    @property
    def interval(self) -> float | None:
        """Seconds between two checks. None: never."""
        return min(BEAT, self.limit / 4) if self.limit else None

    def check(self) -> None:
        """Raise LarkError if a process has not touched its file for the limit. Call it every few seconds."""
        for silent in self.silent():
            raise LarkError(
                f"Worker process {silent}. It was ended. Check the machine, and run the same command again "
                f"to resume; hardware.silence={self.limit / 60:g} sets this limit in minutes (0: no limit)."
            )

    def silent(self) -> list[Silent]:
        """The processes that have not touched their files for the limit, or are stuck. Call it every few
        seconds.
        """
        now, found = time.monotonic(), []
        if (
            now - self.checked > 4 * BEAT
        ):  # this process was stopped itself, with its workers: start to count again
            self.seen = {name: replace(sign, since=now) for name, sign in self.seen.items()}
        self.checked = now
        if not self.limit:
            return []
        for path in self.folder.glob(f"{self.prefix}*"):
            with contextlib.suppress(OSError):
                stamp, last = path.stat().st_mtime_ns, self.seen.get(path.name)
                if last is None or last.stamp != stamp:
                    self.seen[path.name] = Sign(stamp, now, _processor_time(path))
                    if stuck := _stack(path):
                        found.append(Silent(path.name.removeprefix(self.prefix), *_owner(path), *stuck))
        if len(self.seen) > self.expected > 0:  # every worker has a file, next to the one of their start
            self.expected = 0
            self.forget(START)
        for name, sign in self.seen.items():
            if now - sign.since > self.limit:
                used, path = _processor_time(self.folder / name), self.folder / name
                if used == sign.used:
                    found.append(Silent(name.removeprefix(self.prefix), *_owner(path), now - sign.since))
                self.seen[name] = replace(sign, since=now, used=used)
        return found

    def forget(self, name: str) -> None:
        """A process has ended."""
        self.seen.pop(f"{self.prefix}{name}", None)
        (self.folder / f"{self.prefix}{name}").unlink(missing_ok=True)

    def close(self) -> None:
        for path in self.folder.glob(f"{self.prefix}*"):
            path.unlink(missing_ok=True)


def _owner(path: Path) -> tuple[str, str]:
    """Process id and machine of a worker process."""
    try:
        number, _, host = path.read_text(encoding="utf-8").partition("\n")[0].partition(" ")
    except OSError:
        return "unknown", "unknown"
    return number, host


def _stack(path: Path) -> tuple[float, str] | None:
    """For how long a process has been stuck, and its stack; None if it is not."""
    waited, _, stack = path.read_text(encoding="utf-8").partition("\n")[2].partition("\n")
    return (float(waited), stack) if stack else None


def _processor_time(path: Path) -> str:
    """Processor time of a worker process of this machine, in ticks; empty if it is not known."""
    number, host = _owner(path)
    if host != socket.gethostname() or not number.isdigit():
        return ""
    return processor_ticks(int(number))
