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
import json
import logging
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lark.errors import LarkError
from lark.reading.untrusted import readable_object
from lark.store.alive import Owner, Watched, owner_name, processor_ticks, this_process, ticks_of, touch

log = logging.getLogger(__name__)

BEAT = 5.0
"""Seconds between two touches."""
IDLE_SHARE = 0.02
"""Share of a core below which a process counts as waiting."""
WORKER = ".alive-"
"""Names of the files of workers of this machine begin with this."""
REMOTE = ".remote-"
"""Names of the files of processes of a cluster begin with this."""
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

    return _start(folder / f"{WORKER}{rank}", minutes, report, lambda: not leads)


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
        sign = {**this_process(), "waited": waited, "stack": stack}
        with contextlib.suppress(OSError):
            path.write_text(json.dumps(sign), encoding="utf-8")

    return _start(path, minutes, report, busy)


def _start(
    path: Path, minutes: float, report: Callable[[float], None], busy: Callable[[], bool]
) -> threading.Event:
    with contextlib.suppress(OSError):
        path.write_text(json.dumps(this_process()), encoding="utf-8")
    stop = threading.Event()
    arguments = (path, minutes * 60, report, busy, stop)
    threading.Thread(target=_beat, args=arguments, daemon=True, name="heartbeat").start()
    return stop


def _beat(
    path: Path, limit: float, report: Callable[[float], None], busy: Callable[[], bool], stop: threading.Event
) -> None:
    """Touch the file, and report once when the main thread has waited for `limit` seconds (0: never)."""
    used = _processor_seconds()
    position = None
    since = time.monotonic()
    reported = False
    while not stop.wait(_interval(limit)):
        touch(path)
        used_before = used
        position_before = position
        used = _processor_seconds()
        position = _main_position()
        # A wait is at one place and uses no processor. A thread that waits in a loop uses a little.
        has_worked = used - used_before > IDLE_SHARE * BEAT or position != position_before
        if has_worked or not busy():
            since = time.monotonic()
            reported = False
        waited = time.monotonic() - since
        if limit and not reported and waited > limit:
            reported = True
            report(waited)


def _interval(limit: float) -> float:
    """Seconds between two looks, so that a short limit is noticed in time."""
    return min(BEAT, limit / 4) if limit else BEAT


def _main_position() -> tuple[int, int] | None:
    """Where the main thread is: its code, and the instruction in it."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return None if frame is None else (id(frame.f_code), frame.f_lasti)


def _processor_seconds() -> float:
    """Processor time of this process and its children, such as those of an engine."""
    ticks = sum(processor_ticks(number) or 0 for number in _children(os.getpid()))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def _children(number: int) -> list[int]:
    """The processes that a process has started, theirs, and so on. Only Linux lists them."""
    children: list[int] = []
    with contextlib.suppress(OSError, ValueError):  # one that ends meanwhile
        for listing in Path(f"/proc/{number}/task").glob("*/children"):
            for child in map(int, listing.read_text(encoding="utf-8").split()):
                children += [child, *_children(child)]
    return children


@dataclass
class Sign(Watched):
    """The file of a process, and its last sign of life."""

    ticks: int | None = None
    """Processor time of the process until then; None on another machine."""


@dataclass(frozen=True)
class Silent:
    """A process without a sign of life, or one that is stuck."""

    name: str
    owner: Owner
    seconds: float
    stack: str = ""
    """The stack of its main thread, if it is stuck."""

    def __str__(self) -> str:
        lasted = f"{self.seconds:.0f} seconds" if self.seconds < 120 else f"{self.seconds / 60:.0f} minutes"
        name = "that was just started" if self.name == START else self.name
        process = f"{name} ({owner_name(self.owner)})"
        if self.stack:
            return f"{process} has waited for {lasted} without working"
        return (
            f"{process} has shown no sign of life for {lasted}: it is stopped, or its machine or disk hangs"
        )


class Watch:
    """Notices that a worker process no longer shows signs of life. Clocks of different machines are not
    compared.
    """

    def __init__(self, folder: Path, minutes: float, prefix: str = WORKER) -> None:
        self.folder = folder
        self.limit = minutes * 60
        self.prefix = prefix
        self.seen: dict[str, Sign] = {}
        self.expected = 0
        self.checked = time.monotonic()
        self.close()

    def expect(self, number: int, processes: int) -> None:
        """Workers were started, with this process id. Until all have shown a sign, its work counts as
        theirs.
        """
        self.expected = processes
        host = socket.gethostname()
        if processes > 1:
            # No host has this name, so the launcher's processor time is not read: it is busy itself, which
            # says nothing about its workers.
            host += f", the launcher of {processes} processes"
        with contextlib.suppress(OSError):
            owner = json.dumps({"process": number, "host": host})
            self._file(START).write_text(owner, encoding="utf-8")

    @property
    def interval(self) -> float | None:
        """Seconds between two checks. None: never."""
        return _interval(self.limit) if self.limit else None

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
        now = time.monotonic()
        if now - self.checked > 4 * BEAT:
            # This process was stopped itself, with its workers: start to count again.
            for sign in self.seen.values():
                sign.since = now
        self.checked = now
        if not self.limit:
            return []
        stuck = list(self._look())
        if len(self.seen) > self.expected > 0:  # every worker has a file, next to the one of their start
            self.expected = 0
            self.forget(START)
        return [*stuck, *self._unchanged()]

    def _look(self) -> Iterator[Silent]:
        """Look at every file again; yield the processes that report to be stuck."""
        for path in self.folder.glob(f"{self.prefix}*"):
            sign = self.seen.get(path.name) or Sign(path)
            with contextlib.suppress(OSError):
                if sign.has_changed():
                    self.seen[path.name] = sign
                    owner = _owner(path)
                    sign.ticks = ticks_of(owner)
                    if "stack" in owner:
                        waited = float(str(owner["waited"]))
                        yield Silent(self._name(path), owner, waited, str(owner["stack"]))

    def _unchanged(self) -> Iterator[Silent]:
        """The processes whose file has not changed for the limit, and that have not used the processor."""
        for sign in self.seen.values():
            if sign.seconds <= self.limit:
                continue
            owner = _owner(sign.path)
            ticks = ticks_of(owner)
            if ticks == sign.ticks:
                yield Silent(self._name(sign.path), owner, sign.seconds)
            sign.since = time.monotonic()
            sign.ticks = ticks

    def _file(self, name: str) -> Path:
        return self.folder / f"{self.prefix}{name}"

    def _name(self, path: Path) -> str:
        return path.name.removeprefix(self.prefix)

    def forget(self, name: str) -> None:
        """A process has ended."""
        self.seen.pop(f"{self.prefix}{name}", None)
        self._file(name).unlink(missing_ok=True)

    def close(self) -> None:
        for path in self.folder.glob(f"{self.prefix}*"):
            path.unlink(missing_ok=True)


def _owner(path: Path) -> Owner:
    """The process of a file, with its stack if it is stuck; empty if the file is gone or being written."""
    return readable_object(path) or {}
