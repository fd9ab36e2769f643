"""Refusals of the store: outputs that cannot be written, locks that cannot be removed, and manifests of
another shape.
"""

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from lark.errors import LarkError


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


MANIFEST_TYPES = {
    "status": str,
    "kind": str,
    "fingerprint": str,
    "counts": dict,
    "inputs": dict,
    "files": dict,
}
"""Types of the entries of a manifest that the store relies on."""


def check_manifest(path: Path, values: Mapping[str, Any]) -> None:
    """Refuse a manifest whose entries have other types than those that are written."""
    for key, kind in MANIFEST_TYPES.items():
        _require(isinstance(values.get(key, kind()), kind), path, key)
    _require("status" in values, path, "status")
    _require("files" in values or values["status"] != "finished", path, "files")
    for name, stamp in values.get("files", {}).items():
        _require(is_inside(name) and is_stamp(stamp), path, "files")


def _require(is_sound: bool, path: Path, key: str) -> None:
    if not is_sound:
        raise LarkError(f"{path}: the entry `{key}` is damaged.")


def is_inside(name: str) -> bool:
    """True if a file of this name is in the folder that it is relative to."""
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts and "\0" not in name


def is_stamp(stamp: object) -> bool:
    """True for the size, time and checksum of a file."""
    return isinstance(stamp, list) and [type(part) for part in stamp] == [int, int, str]
