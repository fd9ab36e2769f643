"""Sentences for what the file system refuses: a full or read-only disk, removed folders, files in the place
of folders.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from lark.errors import LarkError

LONGEST_SHOWN_PATH = 400
"""Characters of a path in a message."""
FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NOT_WRITTEN = ("PytorchStreamWriter failed writing", "inline_container.cc")
"""Parts of PyTorch's messages when it could not write a whole checkpoint. It does not say why: the disk was
full.
"""
ELSEWHERE = "or choose another folder with outputs=<folder>"
_FORBIDDEN = f"permission denied, or read-only. Change its permissions, {ELSEWHERE}"
_IS_A_FILE = f"there is a file where a folder is expected. Move it away, {ELSEWHERE}"
_TOO_MANY = "too many open files. Raise the limit (ulimit -n)"
MEANINGS = {
    errno.EROFS: _FORBIDDEN,
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.EISDIR: f"there is a folder where a file is expected. Move it away, {ELSEWHERE}",
    errno.ENOTDIR: _IS_A_FILE,
    errno.EEXIST: _IS_A_FILE,
    errno.ENOTEMPTY: _IS_A_FILE,
    errno.ENOENT: (
        "it does not exist, or was removed while the run was working. Run the same command again to resume"
    ),
    errno.ELOOP: "links point to each other. Remove them",
    errno.ENAMETOOLONG: "the name is too long. Choose a shorter one",
    errno.EIO: f"the disk reports an error. Check it, {ELSEWHERE}",
    errno.ESTALE: (
        "the network file system has lost it. Check the mount, and run the same command again to resume"
    ),
    errno.EMFILE: _TOO_MANY,
    errno.ENFILE: _TOO_MANY,
}
"""Numbers of errors, and what they mean here."""


@contextlib.contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Report what the file system refuses without a stack trace. `folder`: the outputs. No partial file has
    a final name, so the run can be resumed.
    """
    try:
        yield
    except OSError as error:
        sentence = disk_error(error, folder)
        if sentence is None:
            raise
        raise LarkError(sentence) from error


def disk_error(error: BaseException, folder: Path) -> str | None:
    """A sentence for an error of the file system; None if it is of another kind (such as the network's)."""
    if isinstance(error, Exception) and is_disk_full(error):
        return no_space(folder)
    if not isinstance(error, OSError) or error.filename is None or error.errno is None:
        return None
    # Of a renaming: its target, which is the file that the user knows.
    name = error.filename2 or error.filename
    path = os.fsdecode(name) if isinstance(name, str | bytes) else str(name)
    if not folder.exists() and Path(path).is_relative_to(folder):
        return removed(folder)
    if len(path) > LONGEST_SHOWN_PATH:
        path = f"{path[:LONGEST_SHOWN_PATH]}…"
    meaning = MEANINGS.get(error.errno) or error.strerror or str(error)
    return f"{path}: {meaning}."


def is_disk_full(error: Exception) -> bool:
    """True if the disk is full. Libraries in other languages (safetensors, Arrow, PyTorch) report it only
    in the message.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in FULL_DISK
    return any(part in str(error) for part in (*map(os.strerror, FULL_DISK), *NOT_WRITTEN))


def no_space(folder: Path) -> str:
    return (
        f"No space left on the disk while writing {folder}. Free some and run the same command again to"
        " resume."
    )


def removed(folder: Path) -> str:
    return (
        f"{folder} was removed while the run was working, and what it contained is lost. Run the same command"
        " again."
    )
