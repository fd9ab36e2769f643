"""Artifacts that were made in the same way from other inputs: what a grown pool can take over.

Scores of 5,000 questions contain those of 500 of them, and four samples of a teacher the first two. Such
artifacts have the same `depends` and other inputs. Which of their rows may be taken over is decided by the
content of the rows, by those who read them.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from lark.store.manifest import readable_manifest
from lark.store.store import CONFIG


def siblings(folder: Path, but: Collection[str] = (), unfinished: bool = False) -> list[Path]:
    """Folders of other artifacts of the same kind and version, and with the same `depends` but for these
    keys; the newest first. `unfinished`: also those of interrupted runs.
    """
    wanted = _identity(folder, but)
    if wanted is None:
        return []
    started: dict[Path, str] = {}
    for other in folder.parent.iterdir():
        if other == folder or _identity(other, but) != wanted:
            continue
        manifest = readable_manifest(other)
        if manifest is not None and (manifest.finished or unfinished):
            started[other] = manifest.started
    return sorted(started, key=lambda other: (started[other], other.name), reverse=True)


def _identity(folder: Path, but: Collection[str]) -> tuple[Any, Mapping[str, Any]] | None:
    """The version and `depends` of an artifact; None if its description is missing or damaged."""
    try:
        description = yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8"))
        depends = description["depends"]
        return description["version"], {key: value for key, value in depends.items() if key not in but}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError):
        return None
