"""One process at a time: the kernel's locks, or a lock file where the file system has none.

Some network file systems refuse `flock` (ENOLCK, EOPNOTSUPP). There, the process that creates the file
`<name>.held` has the lock, and touches it while it works. Another process takes it over if the owner has
ended, or has not touched it for STALE_SECONDS.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from lark.reading.untrusted import readable_object
from lark.store.alive import Owner, Watched, has_ended, is_fresh, owner_name, this_process, touching
from lark.store.checks import lock_not_removable

log = logging.getLogger(__name__)

LOCKS = ".locks"
"""Folder of the locks, below the outputs."""
UNSUPPORTED = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL})
"""Errors of `flock` on file systems without locks."""
TOUCH_SECONDS = 10.0
"""Time between two touches of a lock file."""
STALE_SECONDS = 120.0
"""A lock file that was not touched for this long was left behind."""
RETRY_SECONDS = 0.5
"""Time between two attempts to create a lock file."""


@contextlib.contextmanager
def locked(path: Path, label: object) -> Iterator[None]:
    """Hold the lock at `path`; wait if another process has it. `label`: what it protects, for messages."""
    with path.open("a+") as handle:
        if _kernel_lock(handle, label):
            # For readers of the lock, such as the explorer; nothing depends on it.
            handle.seek(0)
            handle.truncate()
            handle.write(owner_name(this_process()))
            handle.flush()
            yield
        else:
            with _holding(held_file(path), label):
                yield


def lock_file(outputs: Path, folder: Path) -> Path:
    """The lock of the artifact in a folder: outputs/<kind>/<name>-<fingerprint>."""
    fingerprint = folder.name.rpartition("-")[2]
    return outputs / LOCKS / f"{folder.parent.name}-{fingerprint}.lock"


def held_file(path: Path) -> Path:
    """The file that replaces the lock at `path` on a file system without locks."""
    return path.with_name(f"{path.name}.held")


def holder(path: Path) -> str | None:
    """The process that holds the lock at `path`, for messages; None if it is free. Does not wait."""
    try:
        with path.open() as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return path.read_text(encoding="utf-8").strip() or "another process"
    except OSError as error:  # also if there is no such file
        return _file_holder(held_file(path)) if error.errno in UNSUPPORTED else None
    return None


def _file_holder(path: Path) -> str | None:
    """The process that holds a lock file, unless it has ended or has not touched the file for long."""
    owner = readable_object(path)
    if owner is None or not is_fresh(path, STALE_SECONDS) or has_ended(owner):
        return None
    return owner_name(owner)


def _kernel_lock(handle: TextIO, label: object) -> bool:
    """Take the kernel's lock, which ends with the handle; False if the file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.seek(0)
        _log_waiting(label, handle.read().strip())
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        return False
    return True


def _log_waiting(label: object, owner: str) -> None:
    log.info("%s: waiting for another run (%s) that is making it", label, owner)


@contextlib.contextmanager
def _holding(path: Path, label: object) -> Iterator[None]:
    """Hold a lock file, and touch it until the end."""
    token = _take(path, label)
    try:
        with touching(path, TOUCH_SECONDS):
            yield
    finally:
        if _owner(path).get("token") == token:  # not if another process took it over
            path.unlink(missing_ok=True)


def _owner(path: Path) -> Owner:
    """The content of a lock file; empty if it is missing or being written."""
    return readable_object(path) or {}


def _take(path: Path, label: object) -> str:
    """Create the lock file; return the token in it. Waits while another process holds it."""
    token = uuid.uuid4().hex
    watched = Watched(path)
    is_logged = False
    while not _create(path, json.dumps({"token": token, **this_process()})):
        watched.has_changed()
        owner = _owner(path)
        if _is_left_behind(owner) or watched.seconds > STALE_SECONDS:
            _remove(path, owner.get("token"))
            continue
        if not is_logged:
            _log_waiting(label, owner_name(owner))
            is_logged = True
        time.sleep(RETRY_SECONDS)
    return token


def _create(path: Path, text: str = "") -> bool:
    """Create a file; False if it exists. Of several processes, one succeeds."""
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(handle, "w") as file:
        file.write(text)
    return True


def _is_left_behind(owner: Owner) -> bool:
    """True if the owner has ended. This process does not have the lock yet, so a lock with its number is
    that of an earlier process.
    """
    is_mine = {name: owner.get(name) for name in ("process", "host")} == this_process()
    return is_mine or has_ended(owner)


def _remove(path: Path, token: object) -> None:
    """Remove a lock that was left behind. Of several processes that see it, the one that creates the claim
    does: another could remove the lock that the first has taken since.
    """
    is_name = isinstance(token, str) and token.isalnum()
    claim = path.with_name(f"{path.name}.{token if is_name else 'unreadable'}")
    if not _create(claim):
        time.sleep(RETRY_SECONDS)
        with contextlib.suppress(OSError):
            # The claim of a process that was killed while it removed the lock.
            if time.time() - claim.stat().st_mtime > STALE_SECONDS:
                claim.unlink()
        return
    try:
        if _owner(path).get("token") == token:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise lock_not_removable(path, error) from error
    finally:
        claim.unlink(missing_ok=True)
