"""One process at a time: the kernel's locks, or a lock file where the file system has none.

Some network file systems refuse `flock` (ENOLCK, EOPNOTSUPP). There, the process that creates the file
`<name>.held` has the lock, and touches it while it works. Another process takes it over if the owner has
ended, or has not touched it for STALE seconds.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from lark.errors import LarkError
from lark.reading.untrusted import readable_object
from lark.store.alive import exit_code

log = logging.getLogger(__name__)

UNSUPPORTED = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL})
"""What `flock` raises on file systems without locks."""
BEAT, STALE = 10.0, 120.0
"""Seconds between two touches of a lock file, and without one until it counts as left behind."""
POLL = 0.5


@contextlib.contextmanager
def locked(path: Path, what: object) -> Iterator[None]:
    """Hold the lock at `path`; wait if another process has it. `what` names what it protects, for messages."""
    with path.open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            log.info("%s: waiting for another run (%s) that is making it", what, handle.read().strip())
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            with _held(path.with_name(f"{path.name}.held"), what):
                yield
            return
        handle.seek(0)
        handle.truncate()
        handle.write(f"process {os.getpid()} on {socket.gethostname()}")
        handle.flush()
        yield


def holder(path: Path) -> str | None:
    """The process that holds the lock at `path`, for messages; None if it is free. Does not wait."""
    try:
        with path.open() as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return path.read_text(encoding="utf-8").strip() or "another process"
    except OSError as error:  # also if there is no such file
        return _file_holder(path.with_name(f"{path.name}.held")) if error.errno in UNSUPPORTED else None
    return None


def _file_holder(path: Path) -> str | None:
    """The process that holds a lock file, unless it has ended or has not touched the file for long."""
    owner = readable_object(path)
    try:
        is_stale = time.time() - path.stat().st_mtime > STALE
    except FileNotFoundError:
        return None
    if owner is None or is_stale or _ended(owner):
        return None
    return f"process {owner.get('process')} on {owner.get('host')}"


@contextlib.contextmanager
def _held(path: Path, what: object) -> Iterator[None]:
    """Hold a lock file, and touch it until the end."""
    token = _take(path, what)
    stop = threading.Event()
    thread = threading.Thread(target=_touch, args=(path, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        if (readable_object(path) or {}).get("token") == token:  # not if another process took it over
            path.unlink(missing_ok=True)


def _touch(path: Path, stop: threading.Event) -> None:
    while not stop.wait(BEAT):
        with contextlib.suppress(OSError):
            os.utime(path)


def _take(path: Path, what: object) -> str:
    """Create the lock file; return the token in it. Waits while another process holds it."""
    own = {"token": uuid.uuid4().hex, "process": os.getpid(), "host": socket.gethostname()}
    seen: tuple[object, float] = (None, 0.0)
    waiting = False
    while True:
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            pass
        else:
            with os.fdopen(handle, "w") as file:
                file.write(json.dumps(own))
            return str(own["token"])
        state = _state(path)
        if state != seen[0]:
            seen = (state, time.monotonic())
        owner = readable_object(path) or {}
        if _ended(owner) or time.monotonic() - seen[1] > STALE:
            _remove(path, owner.get("token"))
            continue
        if not waiting:
            log.info("%s: waiting for another run (process %s on %s) that is making it",
                     what, owner.get("process", "?"), owner.get("host", "?"))  # fmt: skip
            waiting = True
        time.sleep(POLL)


def _state(path: Path) -> object:
    """Changes whenever the owner touches the file. Clocks of other machines are not compared."""
    try:
        return path.stat().st_mtime_ns, path.stat().st_ino
    except FileNotFoundError:
        return None


def _ended(owner: dict[str, object]) -> bool:
    """Whether the owner is a process of this machine that has ended, even if its parent has not asked for
    its exit code yet.
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
    if number == os.getpid():
        return True  # of an earlier process with the same number: this one does not have the lock yet
    return exit_code(number) is not None


def _remove(path: Path, token: object) -> None:
    """Remove a lock that was left behind. Of several processes that find it, one does."""
    claim = path.with_name(
        f"{path.name}.{token if isinstance(token, str) and token.isalnum() else 'unreadable'}"
    )
    try:
        os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        time.sleep(POLL)
        with contextlib.suppress(OSError):  # of a process that was killed while it removed the lock
            if time.time() - claim.stat().st_mtime > STALE:
                claim.unlink()
        return
    try:
        if (readable_object(path) or {}).get("token") == token:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise LarkError(
            f"{path}: a lock that was left behind cannot be removed ({error.strerror}). Remove it."
        ) from error
    finally:
        claim.unlink(missing_ok=True)
