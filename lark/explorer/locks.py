"""Whether a run holds the lock of an artifact. Reads the kernel's list instead of trying the lock, which could delay the run."""

import time
from pathlib import Path

from lark.reading.untrusted import readable_object
from lark.runtime.locks import STALE

LIST = Path("/proc/locks")


def locked(path: Path) -> bool:
    """Whether a process of this machine holds a lock on the file, or a process of any machine has a lock file beside it (on file
    systems without locks). False if this cannot be known."""
    try:
        if time.time() - _held(path).stat().st_mtime < STALE:
            return True
    except OSError:
        pass
    try:
        stat = path.stat()
        lines = LIST.read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    place = f"{stat.st_dev >> 8 & 0xFFF:02x}:{stat.st_dev & 0xFF:02x}:{stat.st_ino}"
    # A line is "1: FLOCK  ADVISORY  WRITE 708 00:2d:1234 0 EOF". On some file systems (btrfs, overlay) the device differs
    # from stat's, so the inode alone counts if no line has both.
    fields = [line.split() for line in lines if "FLOCK" in line]
    return any(place in line for line in fields) or any(f[-3].endswith(f":{stat.st_ino}") for f in fields if len(f) > 3)


def _held(path: Path) -> Path:
    return path.with_name(f"{path.name}.held")


def holder(path: Path) -> str:
    """The last process that took the lock: "process 123 on host"."""
    owner = readable_object(_held(path))
    if owner is not None:
        return f"process {owner.get('process', '?')} on {owner.get('host', '?')}"[:200]
    try:
        return path.read_text(encoding="utf-8").strip()[:200]
    except (OSError, ValueError):
        return ""
