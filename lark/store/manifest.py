"""`manifest.json`, parsed into a typed object in this one place.

The store trusts only a manifest whose every entry has the right shape (`read_manifest`): any other is
damaged, and so is its artifact. Pages and cards show what they can of any manifest (`readable_manifest`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lark.errors import LarkError
from lark.reading.untrusted import read_object, readable_object
from lark.store.checks import check_manifest, is_stamp
from lark.store.writing import write_text

MANIFEST = "manifest.json"
DAMAGED = "damaged"
"""Status of an artifact whose files have changed. It is rebuilt from scratch (lark/store/integrity.py)."""
LONGEST_SECONDS = 1e12
"""The longest time that an artifact can take. Any other number was not recorded by us."""
FileStamp = tuple[int, int, str]
"""Size, time of the last change in nanoseconds, and SHA-256 of a file."""
NO_STAMP: FileStamp = (0, 0, "")
"""The stamp of a file whose stamp is damaged. No file has it."""


@dataclass(frozen=True)
class Manifest:
    """The record of how an artifact was made. Without a readable manifest, every field is empty."""

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
    started: str = ""
    """When it was started, as a text that can be sorted."""
    git: str | None = None
    """Revision of the code that made it."""
    versions: Mapping[str, Any] = field(default_factory=dict)
    """Versions of the packages that made it."""

    @property
    def finished(self) -> bool:
        return self.status == "finished"

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Manifest":
        """The manifest with these entries. Entries of another type count as missing."""
        error = values.get("error")
        git = values.get("git")
        return cls(
            status=_text(values.get("status")),
            kind=_text(values.get("kind")),
            fingerprint=_text(values.get("fingerprint")),
            error=None if error is None else str(error),
            counts=_mapping(values.get("counts")),
            inputs={name: str(folder) for name, folder in _mapping(values.get("inputs")).items()},
            files={name: _stamp(stamp) for name, stamp in _mapping(values.get("files")).items()},
            seconds=_seconds(values.get("seconds")),
            started=_text(values.get("started")),
            git=git if isinstance(git, str) else None,
            versions=_mapping(values.get("versions")),
        )


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < LONGEST_SECONDS else 0.0


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _stamp(value: Any) -> FileStamp:
    return tuple(value) if is_stamp(value) else NO_STAMP


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an artifact. Raises LarkError if it is missing, cannot be read or has another shape."""
    path = folder / MANIFEST
    values = read_object(path)
    check_manifest(path, values)
    return Manifest.of(values)


def own_manifest(folder: Path) -> Manifest:
    """The manifest of the artifact whose folder this is; empty if it is missing or damaged, or if it is
    another artifact's.
    """
    try:
        manifest = read_manifest(folder)
    except LarkError:
        return Manifest()
    is_its_own = manifest.fingerprint in ("", folder.name.rpartition("-")[2])
    return manifest if is_its_own else Manifest()


def readable_manifest(folder: Path) -> Manifest | None:
    """The manifest of an artifact, without entries of another shape; None if it is missing or damaged."""
    values = readable_object(folder / MANIFEST)
    return None if values is None else Manifest.of(values)


def edit_manifest(folder: Path, **entries: object) -> None:
    """Change some entries of an artifact's manifest. The others are kept as they are."""
    values = readable_object(folder / MANIFEST) or {}
    write_text(folder / MANIFEST, json.dumps({**values, **entries}, indent=2) + "\n")
