"""Compare an artifact's files with its manifest, so that no result is made from wrong bytes.

A finished artifact is reused without being read, as long as the sizes and times of its files are those in
its manifest (`damage`). A file that was changed without changing either is noticed by its checksum when it
is about to be read (`verify`). Its artifact is marked as damaged, and the pipeline rebuilds it: in the same
run, or in the next one.
"""

import contextlib
import re
from pathlib import Path, PurePosixPath

from lark.errors import DamagedError
from lark.store.checksums import checksum
from lark.store.manifest import DAMAGED, MANIFEST, FileStamp, Manifest, edit_manifest, readable_manifest

CARD = "README.md"
"""Describes a published artifact. Users edit it, so it has no checksum."""
UNSTAMPED = (MANIFEST, CARD, "log.txt", "job.json")
"""Files without a checksum: they change after the artifact is finished, or say nothing about its content."""
LONGEST_SHOWN_NAME = 100
"""Characters of a file's name in a message."""


def stamps(folder: Path) -> dict[str, FileStamp]:
    """Size, time and SHA-256 of every file of a finished artifact."""
    by_name: dict[str, FileStamp] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in UNSTAMPED:
            stat = path.stat()
            by_name[path.relative_to(folder).as_posix()] = (stat.st_size, stat.st_mtime_ns, checksum(path))
    return by_name


def damage(folder: Path, manifest: Manifest, file: str = "") -> str | None:
    """A phrase for how the files of a finished artifact differ from its manifest; None if they do not.

    `file`: the one that its kind must have, or parts of it. A file whose size and time match the manifest
    is not read; if only the time differs, its checksum is compared.
    """
    if not any(is_part(name, file) for name in manifest.files):
        return f"{MANIFEST} does not list {file or 'any file'}"
    for name, stamp in manifest.files.items():
        harm = _file_damage(folder, name, stamp)
        if harm is not None:
            return harm
    return None


def is_part(name: str, file: str) -> bool:
    """True if `name` is `file` or one of its parts (`trajectories-00000.parquet`). An empty `file` matches
    any name.
    """
    stem, suffix = map(re.escape, (PurePosixPath(file).stem, PurePosixPath(file).suffix))
    return not file or name == file or bool(re.fullmatch(f"{stem}-[0-9]+{suffix}", name))


def _file_damage(folder: Path, name: str, stamp: FileStamp) -> str | None:
    path = folder / name
    size, time, digest = stamp
    shown = name if len(name) < LONGEST_SHOWN_NAME else f"{name[:LONGEST_SHOWN_NAME]}…"
    try:
        if not path.is_file():
            return f"{shown} is missing"
        stat = path.stat()
        if stat.st_size != size:
            return f"{shown} has {stat.st_size} bytes instead of {size}"
        has_changed = stat.st_mtime_ns != time and checksum(path) != digest
        return f"{shown} has changed" if has_changed else None
    except OSError as error:  # also a name that no file can have
        return f"{shown} cannot be read ({error.strerror})"


def verify(folder: Path, *names: str, under: str = "") -> None:
    """Raise DamagedError unless the files of a finished artifact have the content that they had when it was
    made.

    `names`: compare only these. Files in subfolders are compared only if `under` names theirs: a
    checkpoint's snapshots are large and seldom used. A folder without a manifest is not an artifact, and
    nothing is known about its files.
    """
    manifest = readable_manifest(folder)
    if manifest is None or not manifest.finished:
        return
    for name, (_, _, digest) in manifest.files.items():
        if PurePosixPath(name).parent != PurePosixPath(under) or (names and name not in names):
            continue
        change = _change(folder / name, digest)
        if change is not None:
            harm = f"{name} {change}"
            with contextlib.suppress(OSError):  # on a read-only disk, it is only reported
                edit_manifest(folder, status=DAMAGED, error=harm)
            raise DamagedError(f"{folder}: {harm} since the artifact was made.", folder)


def _change(path: Path, digest: str) -> str | None:
    """A phrase for how the file differs from its stamp; None if it does not."""
    try:
        return None if checksum(path) == digest else "has changed"
    except FileNotFoundError:
        return "has been removed"
    except OSError as error:
        return f"has become unreadable ({error.strerror})"
