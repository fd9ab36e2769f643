"""Is it alive? Who owns a file, whether its process has ended, and whether it was touched lately.

A process that works for long touches a file. A process of the same machine is asked for directly, through
/proc. A process of another machine is judged by its file alone: by how long the file has not changed, on
our own clock, because clocks of machines differ.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Owner = Mapping[str, object]
"""The process that a file belongs to, as it is stored in the file: `process` (its number) and `host`."""


def this_process() -> dict[str, object]:
    """This process, as an `Owner`."""
    return {"process": os.getpid(), "host": socket.gethostname()}


def owner_name(owner: Owner) -> str:
    """`process 123 on node3`."""
    return f"process {owner.get('process', '?')} on {owner.get('host', '?')}"


def has_ended(owner: Owner) -> bool:
    """True if the owner is a process of this machine that has ended, even if its parent has not asked for
    its exit code yet. A process of another machine may always be alive.
    """
    number = owner.get("process")
    if owner.get("host") != socket.gethostname() or not isinstance(number, int):
        return False
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return exit_code(number) is not None


def exit_code(number: int) -> int | None:
    """The exit code of a process that has ended and that its parent has not asked for yet; None if it runs
    or is unknown.
    """
    try:
        fields = process_fields(number)
        is_zombie = fields[0] == "Z"
        return os.waitstatus_to_exitcode(int(fields[-1])) if is_zombie else None
    except (OSError, ValueError):
        return None


def processor_ticks(number: int) -> int | None:
    """Processor time that a process of this machine has used, in ticks; None if it is unknown."""
    try:
        user, system = process_fields(number)[11:13]
        return int(user) + int(system)
    except (OSError, ValueError):
        return None


def ticks_of(owner: Owner) -> int | None:
    """Processor time of the owner, if it is a process of this machine."""
    number = owner.get("process")
    is_here = owner.get("host") == socket.gethostname()
    return processor_ticks(number) if is_here and isinstance(number, int) else None


def process_fields(number: int) -> list[str]:
    """Fields of /proc/<number>/stat after the process's name, which may contain spaces and brackets."""
    text = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(")")[2].split()


def touch(path: Path) -> None:
    """Touch a file that exists. An error of the disk is left to those who read and write the file."""
    with contextlib.suppress(OSError):
        os.utime(path)


@contextlib.contextmanager
def touching(path: Path, seconds: float) -> Iterator[None]:
    """Touch a file every few `seconds`, in a thread."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(seconds):
            touch(path)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def is_fresh(path: Path, seconds: float) -> bool:
    """True if a file was touched in the last `seconds`. Compares the clock of the file system with ours,
    for readers that look only once; those that wait use `Watched`.
    """
    try:
        return time.time() - path.stat().st_mtime < seconds
    except OSError:
        return False


@dataclass
class Watched:
    """A file that is looked at again and again: for how long it has not changed, on our own clock."""

    path: Path
    stamp: tuple[int, int] | None = None
    """Changes whenever the file is touched, replaced or removed."""
    since: float = field(default_factory=time.monotonic)
    """When the stamp was first seen."""

    def has_changed(self) -> bool:
        """Look at the file: True if it is not as it was at the last look. The first look finds a change."""
        try:
            stat = self.path.stat()
            stamp = (stat.st_mtime_ns, stat.st_ino)
        except FileNotFoundError:
            stamp = None
        if stamp == self.stamp:
            return False
        self.stamp = stamp
        self.since = time.monotonic()
        return True

    @property
    def seconds(self) -> float:
        """How long the file has been the same."""
        return time.monotonic() - self.since
