"""Writing files so that they are complete or absent, whenever the process is killed."""

import contextlib
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A draft path to write to. It is renamed to `path` when it is complete and on disk, or removed after
    an error.
    """
    # The machine and the process, because several may write the same file on a shared disk.
    draft = path.with_name(f".{path.name}.{socket.gethostname()[:40]}-{os.getpid()}.part")
    try:
        yield draft
        with draft.open("rb") as handle:
            os.fsync(handle.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with atomic(path) as draft:
        draft.write_text(text, encoding="utf-8")


def remove(folder: Path) -> None:
    """Remove a folder. Of a link to a folder on another disk, only the link."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder)
