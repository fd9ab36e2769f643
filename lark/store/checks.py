"""Refusals of the store: outputs that cannot be written, locks that cannot be removed, and manifests of
another shape.
"""

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from lark.errors import LarkError
from lark.reading.untrusted import described


def unwritable_outputs(root: Path, error: OSError) -> LarkError:
    """The error for an outputs folder that cannot be made or written."""
    places = (root / ".locks", root, *root.parents)
    obstacle = next((place for place in places if os.path.lexists(place) and not place.is_dir()), None)
    choose = "choose another folder with outputs=<folder>."
    if obstacle is None:
        return LarkError(f"outputs={root} cannot be written ({error.strerror}): {choose}")
    description = "a link that leads nowhere" if obstacle.is_symlink() else "a file"
    return LarkError(
        f"outputs={root} cannot be written ({obstacle} is {description}): remove it, or {choose}"
    )


def lock_not_removable(path: Path, error: OSError) -> LarkError:
    return LarkError(f"{path}: a lock that was left behind cannot be removed ({error.strerror}). Remove it.")


def unreadable_input(path: Path, error: OSError) -> LarkError:
    return LarkError(f"{path}: cannot be read ({error.strerror}).")


def check_manifest(path: Path, values: Mapping[str, Any]) -> None:
    """Refuse a manifest whose entries have other types than those that are written."""
    _require(path, "status", values.get("status"), str)
    for key in ("counts", "inputs", "files"):
        _require(path, key, values.get(key, {}), dict)
    for key in ("kind", "fingerprint"):
        _require(path, key, values.get(key, ""), str)
    if values["status"] == "finished" and "files" not in values:
        raise LarkError(f"{path}: a finished artifact has no list of its files.")
    for name, stamp in values.get("files", {}).items():
        _check_file(path, name, stamp)


def _require(path: Path, key: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise LarkError(f"{path}: `{key}` must be {described(kind())}, not {described(value)}.")


def _check_file(path: Path, name: str, stamp: object) -> None:
    """Refuse a file outside of the artifact's folder, and anything that is not size, time and checksum."""
    if not (is_inside(name) and is_stamp(stamp)):
        raise LarkError(
            f"{path}: the entry {name[:60]!r} of `files` is not the size, time and checksum of a file."
        )


def is_inside(name: str) -> bool:
    """True if a file of this name is in the folder that it is relative to."""
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts and "\0" not in name


def is_stamp(stamp: object) -> bool:
    """True for the size, time and checksum of a file."""
    return isinstance(stamp, list) and [type(part) for part in stamp] == [int, int, str]
