"""Whether a run holds the lock of an artifact. Reads the kernel's list instead of trying the lock, which
could delay the run. Only where the kernel has no such list (macOS), the lock is tried.
"""

from pathlib import Path

from lark.store.alive import is_fresh
from lark.store.locks import STALE_SECONDS, held_file, holder

LIST = Path("/proc/locks")


def locked_inodes() -> frozenset[str] | None:
    """Inodes of the files that processes of this machine have locked. None if the kernel has no such list."""
    try:
        lines = LIST.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    # A line is "1: FLOCK  ADVISORY  WRITE 708 00:2d:1234 0 EOF". On some file systems (btrfs, overlay) the
    # device differs from stat's, so only the inode counts.
    places = (line.split()[-3] for line in lines if "FLOCK" in line)
    return frozenset(place.rpartition(":")[2] for place in places)


def locked(path: Path, inodes: frozenset[str] | None) -> bool:
    """Whether a process of this machine holds a lock on the file, or a process of any machine has a lock
    file beside it (on file systems without locks). `inodes`: from `locked_inodes`.
    """
    if is_fresh(held_file(path), STALE_SECONDS):
        return True
    if inodes is None:
        return holder(path) is not None
    try:
        return str(path.stat().st_ino) in inodes
    except OSError:
        return False
