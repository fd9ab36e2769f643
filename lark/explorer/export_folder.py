"""The folder of an export: its own files, and how it is replaced. A file that no export wrote is never
removed.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from lark.errors import LarkError
from lark.printing import some
from lark.reading.untrusted import readable_object

log = logging.getLogger(__name__)

MARK = "explorer.json"
"""Lists the files of an export with their checksums."""
PAGE = "index.html"
"""Every export has it, so a list without it is not an export's."""
SHOWN = 3
"""Names of other people's files in a message."""


class Draft:
    """A folder that is being written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checksums: dict[str, str] = {}
        self.size = 0

    def write(self, name: str, content: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self.checksums[name] = hashlib.sha256(content).hexdigest()
        self.size += len(content)


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Draft]:
    """A draft that takes the place of the target when it is complete. Nothing changes after an error."""
    beside = f".{target.name}.{socket.gethostname()[:40]}-{os.getpid()}"
    draft = Draft(target.with_name(f"{beside}.part"))
    try:
        _check(target)
        draft.folder.mkdir(parents=True)
        try:
            yield draft
            draft.write(MARK, json.dumps({"files": draft.checksums}, indent=0).encode() + b"\n")
            _check(target)  # again: the pages may have taken minutes
            _exchange(draft.folder, target, target.with_name(f"{beside}.old"))
        finally:
            shutil.rmtree(draft.folder, ignore_errors=True)
    except OSError as error:
        raise LarkError(
            f"--to {target}: the folder cannot be written ({error.strerror}). Give another one."
        ) from error


def _exchange(draft: Path, target: Path, old: Path) -> None:
    """Rename the target away and the draft into its place, then remove the earlier export."""
    if not target.exists():
        draft.rename(target)
        return
    target.rename(old)
    try:
        draft.rename(target)
    except OSError:
        old.rename(target)
        raise
    _remove(old)


def _remove(old: Path) -> None:
    """Remove the files of an earlier export, and folders that are then empty. Whatever was added meanwhile
    stays.
    """
    added = others(old)
    # The files that are there, not those of the list: a list can name a file elsewhere.
    for path in old.rglob("*"):
        if path.is_file() and path.relative_to(old).as_posix() not in added:
            path.unlink()
    for folder, _, _ in os.walk(old, topdown=False):
        with contextlib.suppress(OSError):
            Path(folder).rmdir()
    if old.exists():
        log.warning("%s: kept, because it has files that no export wrote: %s.", old, some(added, SHOWN))


def _check(target: Path) -> None:
    """Refuse a file, and a folder with anything that no export wrote."""
    names = others(target)
    if target.exists() and not target.is_dir():
        problem = "this is a file. Give a folder."
    elif not names:
        return
    else:
        problem = (
            "this folder has other files, or files that were changed since they were exported:"
            f" {some(names, SHOWN)}. Give a new folder, or move them away;"
            " an unchanged earlier export is replaced."
        )
    raise LarkError(f"--to {target}: {problem}")


def others(folder: Path) -> list[str]:
    """Files, links and empty folders that no export wrote, and exported files with another content."""
    checksums = _checksums(folder)
    ours = {MARK} if checksums else set()
    names = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and not path.is_symlink():
            is_ours = any(path.iterdir())  # its files are looked at one by one
        else:
            is_ours = name in ours or checksums.get(name) == _checksum(path)
        if not is_ours:
            names.append(name)
    return names


def _checksums(folder: Path) -> dict[str, str]:
    """The list of an earlier export; empty without one."""
    files = (readable_object(folder / MARK) or {}).get("files")
    if not isinstance(files, dict) or PAGE not in files:
        return {}
    return files


def _checksum(path: Path) -> str:
    """Empty for a link, a pipe or a device, which no export writes."""
    is_plain = path.is_file() and not path.is_symlink()
    return hashlib.sha256(path.read_bytes()).hexdigest() if is_plain else ""
