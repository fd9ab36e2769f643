"""`manifest.json`, parsed into a typed object. A manifest of another shape is damaged, and so is its
artifact.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from lark.errors import LarkError
from lark.reading.untrusted import described, read_object

MANIFEST = "manifest.json"
DAMAGED = "damaged"
"""Status of an artifact whose files have changed. It is rebuilt from scratch (lark/store/integrity.py)."""
LONGEST = 1e12
"""Seconds that an artifact can take. Any other number was not recorded by us."""
FileStamp = tuple[int, int, str]
"""Size, time of the last change in nanoseconds, and SHA-256 of a file."""


@dataclass(frozen=True)
class Manifest:
    """What an artifact's manifest records. Without a readable manifest, every field is empty."""

    status: str = ""
    """started, failed, finished or damaged."""
    kind: str = ""
    fingerprint: str = ""
    error: str | None = None
    """Why the artifact could not be made."""
    counts: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Folders of its inputs, relative to the outputs."""
    files: Mapping[str, FileStamp] = field(default_factory=dict)
    seconds: float = 0.0
    """How long it took; 0 if that is not recorded."""

    @property
    def finished(self) -> bool:
        return self.status == "finished"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an artifact. Raises LarkError if it is missing, cannot be read or has another shape."""
    path = folder / MANIFEST
    values = read_object(path)
    _require(path, "status", values.get("status"), str)
    for key in ("counts", "inputs", "files"):
        _require(path, key, values.get(key, {}), dict)
    for key in ("kind", "fingerprint"):
        _require(path, key, values.get(key, ""), str)
    if values["status"] == "finished" and "files" not in values:
        raise LarkError(f"{path}: a finished artifact has no list of its files.")
    for name, stamp in values.get("files", {}).items():
        _check_file(path, name, stamp)
    error, seconds = values.get("error"), values.get("seconds")
    return Manifest(
        values["status"],
        values.get("kind", ""),
        values.get("fingerprint", ""),
        None if error is None else str(error),
        values.get("counts", {}),
        {name: str(where) for name, where in values.get("inputs", {}).items()},
        {name: (stamp[0], stamp[1], stamp[2]) for name, stamp in values.get("files", {}).items()},
        float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < LONGEST else 0.0,
    )


def _require(path: Path, key: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise LarkError(f"{path}: `{key}` must be {described(kind())}, not {described(value)}.")


def _check_file(path: Path, name: str, stamp: object) -> None:
    """Refuse a file outside of the artifact's folder, and anything that is not size, time and checksum."""
    inside = (
        name
        and not PurePosixPath(name).is_absolute()
        and ".." not in PurePosixPath(name).parts
        and "\0" not in name
    )
    right = isinstance(stamp, list) and [type(part) for part in stamp] == [int, int, str]
    if not (inside and right):
        raise LarkError(
            f"{path}: the entry {name[:60]!r} of `files` is not the size, time and checksum of a file."
        )
