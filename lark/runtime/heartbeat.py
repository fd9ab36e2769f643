"""Signs of life: every worker process touches a file while it runs, and launch.py watches these files.

A thread touches the file, so a worker that loads weights or compiles for an hour still shows that it is alive; a process that is
stopped, frozen or on a lost machine does not. Code in C can keep the thread from running, so a process of this machine that uses
the processor is alive too. A worker whose main thread waits without using the processor is alive but may be
stuck: the same thread writes the main thread's stack to the log, and the worker continues.
"""

import contextlib
import faulthandler
import logging
import os
import socket
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from lark.errors import LarkError

log = logging.getLogger(__name__)

BEAT = 5.0
"""Seconds between two touches."""
IDLE = 0.02
"""Share of a core below which a process counts as waiting."""
PREFIX = ".alive-"


def start(folder: Path, rank: int, minutes: float) -> threading.Event:
    """Touch this process's file until the event is set. `minutes`: without any work, until its stack is logged (0: never)."""
    path = folder / f"{PREFIX}{rank}"
    with contextlib.suppress(OSError):
        path.write_text(f"{os.getpid()} {socket.gethostname()}", encoding="utf-8")
    stop = threading.Event()
    threading.Thread(target=_beat, args=(path, rank, minutes * 60, stop), daemon=True, name="heartbeat").start()
    return stop


def _beat(path: Path, rank: int, limit: float, stop: threading.Event) -> None:
    used, place, since, told = time.process_time(), None, time.monotonic(), False
    main = threading.main_thread().ident
    while not stop.wait(BEAT):
        with contextlib.suppress(OSError):
            os.utime(path)
        frame = sys._current_frames().get(main or 0)
        now, here = time.process_time(), None if frame is None else (id(frame.f_code), frame.f_lasti)
        if now - used > IDLE * BEAT or here != place:
            since, told = time.monotonic(), False
        used, place = now, here
        if limit and not told and time.monotonic() - since > limit:
            told = True
            log.warning("Process %d has waited for %.0f minutes without working; what it waits for:", rank, limit / 60)
            faulthandler.dump_traceback(sys.stderr)


@dataclass(frozen=True)
class Sign:
    """The last sign of life of a process."""

    stamp: int
    """Time of its file, by the clock of the file system."""
    since: float
    """When it was seen, by our clock."""
    used: str
    """Processor time of the process until then; empty on another machine."""


class Watch:
    """Notices that a worker process no longer shows signs of life. Clocks of different machines are not compared."""

    def __init__(self, folder: Path, minutes: float) -> None:
        self.folder, self.limit = folder, minutes * 60
        self.seen: dict[str, Sign] = {}
        self.checked = time.monotonic()
        for stale in folder.glob(f"{PREFIX}*"):
            stale.unlink(missing_ok=True)

    @property
    def interval(self) -> float | None:
        """Seconds between two checks. None: never."""
        return min(BEAT, self.limit / 4) if self.limit else None

    def check(self) -> None:
        """Raise LarkError if a process has not touched its file for the limit. Call it every few seconds."""
        now = time.monotonic()
        if now - self.checked > 4 * BEAT:  # this process was stopped itself, with its workers: start to count again
            self.seen = {name: replace(sign, since=now) for name, sign in self.seen.items()}
        self.checked = now
        if not self.limit:
            return
        for path in self.folder.glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):
                stamp, last = path.stat().st_mtime_ns, self.seen.get(path.name)
                if last is None or last.stamp != stamp:
                    self.seen[path.name] = Sign(stamp, now, _processor_time(path))
        for name, sign in self.seen.items():
            if now - sign.since > self.limit:
                used = _processor_time(self.folder / name)
                if used == sign.used:
                    raise LarkError(self._sentence(name, now - sign.since))
                self.seen[name] = replace(sign, since=now, used=used)

    def _sentence(self, name: str, seconds: float) -> str:
        number, host = _owner(self.folder / name)
        lasted = f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:.0f} minutes"
        return (
            f"Worker process {name.removeprefix(PREFIX)} (process id {number} on {host}) has shown no sign of life for {lasted}: "
            "it is stopped, or its machine or disk hangs. It was ended. Check the machine, and run the same command again "
            f"to resume; hardware.silence={self.limit / 60:g} sets this limit in minutes (0: no limit)."
        )

    def close(self) -> None:
        for path in self.folder.glob(f"{PREFIX}*"):
            path.unlink(missing_ok=True)


def _owner(path: Path) -> tuple[str, str]:
    """Process id and machine of a worker process."""
    try:
        number, _, host = path.read_text(encoding="utf-8").partition(" ")
    except OSError:
        return "unknown", "unknown"
    return number, host


def _processor_time(path: Path) -> str:
    """Processor time of a worker process of this machine, in ticks; empty if it is not known."""
    number, host = _owner(path)
    if host != socket.gethostname() or not number.isdigit():
        return ""
    try:
        fields = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return " ".join(fields[11:13])
