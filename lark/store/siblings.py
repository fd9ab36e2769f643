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
from lark.store.store import CONFIG, Artifact

Identity = tuple[Any, Mapping[str, Any]]


def siblings(folder: Path, but: Collection[str] = (), unfinished: bool = False) -> list[Path]:
    """Folders of other artifacts of the same kind and version, and with the same `depends` but for these
    keys; the newest first. `unfinished`: also those of interrupted runs.
    """
    return _siblings(folder, _identity(folder, but), but, unfinished)


def siblings_of(artifact: Artifact, outputs: Path, but: Collection[str] = ()) -> list[Path]:
    """The same for an artifact that is planned, and perhaps not made yet."""
    config = artifact.config()
    return _siblings(outputs / artifact.folder, _without(config, but), but)


def _siblings(
    folder: Path, wanted: Identity | None, but: Collection[str], unfinished: bool = False
) -> list[Path]:
    if wanted is None or not folder.parent.is_dir():
        return []
    started: dict[Path, str] = {}
    for other in folder.parent.iterdir():
        if other == folder or _identity(other, but) != wanted:
            continue
        manifest = readable_manifest(other)
        if manifest is not None and (manifest.finished or unfinished):
            started[other] = manifest.started
    return sorted(started, key=lambda other: (started[other], other.name), reverse=True)


def description(folder: Path) -> Mapping[str, Any]:
    """The content of `config.yaml`; empty if it is missing or damaged."""
    try:
        values = yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return values if isinstance(values, dict) else {}


def _identity(folder: Path, but: Collection[str]) -> Identity | None:
    """The version and `depends` of an artifact; None if its description is missing or damaged."""
    try:
        return _without(description(folder), but)
    except (KeyError, AttributeError):
        return None


def _without(config: Mapping[str, Any], but: Collection[str]) -> Identity:
    return config["version"], {key: value for key, value in config["depends"].items() if key not in but}
