"""The artifacts of a store: found by listing its folders, addressed by kind and fingerprint, never by a path from outside.

Nothing is written, not even a lock: a run may be going on in the same store.
"""

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lark.explorer.cache import Cache, stamp
from lark.explorer.locks import holder, locked
from lark.explorer.problems import PageError, reading
from lark.reading.untrusted import readable_object
from lark.runtime.entry import REPORTS
from lark.runtime.manifest import DAMAGED, MANIFEST

FOLDER = re.compile(r"(?P<name>.*)-(?P<fingerprint>[0-9a-f]{12})")
NOT_KINDS = frozenset({"runs", "report", "bench", REPORTS})
QUIET_SECONDS = 120
"""An unfinished artifact without a lock on this machine whose files changed this recently is being made on another one."""
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Key = tuple[str, str]
"""Kind and fingerprint of an artifact."""


@dataclass(frozen=True, eq=False)
class Entry:
    """One artifact as its manifest describes it."""

    kind: str
    name: str
    fingerprint: str
    folder: Path
    manifest: Mapping[str, Any] = field(repr=False)
    problem: str | None = None
    """Why the manifest could not be read."""

    @property
    def key(self) -> Key:
        return self.kind, self.fingerprint

    @property
    def finished(self) -> bool:
        return self.manifest.get("status") == "finished"

    @property
    def counts(self) -> Mapping[str, Any]:
        found = self.manifest.get("counts")
        return found if isinstance(found, dict) else {}

    @property
    def inputs(self) -> dict[str, Key]:
        """Kind and fingerprint of each input."""
        listed = self.manifest.get("inputs")
        found = {}
        for label, folder in (listed if isinstance(listed, dict) else {}).items():
            kind, _, name = str(folder).partition("/")
            match = FOLDER.fullmatch(name)
            if match:
                found[label] = (kind, match["fingerprint"])
        return found

    def file(self, name: str) -> Path:
        return self.folder / name


class Listing:
    """All artifacts of a store, listed again for each request; manifests that did not change are not read again."""

    def __init__(self, root: Path, cache: Cache) -> None:
        self.root, self.cache = root, cache
        self.entries: dict[Key, Entry] = {entry.key: entry for entry in self._scan()}
        self.derived: dict[str, Any] = {}
        """What was computed from this listing, so that it is computed once."""

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries.values())

    def of(self, kind: str) -> list[Entry]:
        """The artifacts of one kind, newest first."""
        return sorted((entry for entry in self if entry.kind == kind), key=started, reverse=True)

    def get(self, kind: str, fingerprint: str) -> Entry:
        entry = self.entries.get((kind, fingerprint))
        if entry is None:
            raise PageError(f"There is no {kind} {fingerprint} in this store (any more).")
        return entry

    def input(self, entry: Entry, label: str) -> Entry | None:
        return self.entries.get(entry.inputs.get(label, ("", "")))

    def used_by(self, entry: Entry) -> list[Entry]:
        return [other for other in self if entry.key in other.inputs.values()]

    def config(self, entry: Entry) -> dict[str, Any]:
        """Content of the artifact's config.yaml: version, depends, inputs."""
        path = entry.file("config.yaml")

        def read() -> dict[str, Any]:
            with reading(path), path.open(encoding="utf-8") as handle:
                try:
                    values = yaml.load(handle, Loader=Loader)
                except (yaml.YAMLError, RecursionError) as error:
                    raise ValueError("it is not YAML") from error
                if not isinstance(values, dict) or not isinstance(values.get("depends"), dict):
                    raise ValueError("it is not an artifact's configuration")
                return values

        return self.cache.get(("config", path), stamp(path), read)

    def state(self, entry: Entry) -> str:
        """finished, running, failed, damaged, interrupted, or unreadable."""
        status = entry.manifest.get("status")
        if entry.problem or status in ("finished", "failed", DAMAGED):
            return "unreadable" if entry.problem else str(status)
        lock = self.root / ".locks" / f"{entry.kind}-{entry.fingerprint}.lock"
        return "running" if locked(lock) or _is_changing(entry.folder) else "interrupted"

    def worker(self, entry: Entry) -> str:
        """Which process is making the artifact."""
        return holder(self.root / ".locks" / f"{entry.kind}-{entry.fingerprint}.lock")

    def _scan(self) -> Iterator[Entry]:
        if not self.root.is_dir():
            raise PageError(f"The store {self.root.name} does not exist (any more).")
        with reading(self.root, f"The store {self.root.name}"):
            kinds = sorted(p for p in self.root.iterdir() if p.name not in NOT_KINDS and not p.name.startswith("."))
        for kind in kinds:
            try:
                folders = sorted(kind.iterdir()) if kind.is_dir() else []
            except OSError:
                continue
            for folder in folders:
                match = FOLDER.fullmatch(folder.name)
                if match and folder.is_dir():
                    yield self._entry(kind.name, match["name"], match["fingerprint"], folder)

    def _entry(self, kind: str, name: str, fingerprint: str, folder: Path) -> Entry:
        path = folder / MANIFEST

        def read() -> Entry:
            if not path.exists():
                return Entry(kind, name, fingerprint, folder, {}, f"{kind}/{folder.name} has no manifest (yet).")
            manifest = readable_object(path)
            if manifest is None:
                return Entry(kind, name, fingerprint, folder, {}, f"The manifest of {kind}/{folder.name} is damaged.")
            manifest.pop("files", None)  # checksums: long, and of no use here
            return Entry(kind, name, fingerprint, folder, manifest)

        return self.cache.get(("manifest", path), stamp(path), read)


def started(entry: Entry) -> str:
    """When the artifact was started, as a text that can be sorted."""
    return str(entry.manifest.get("started", ""))


def _is_changing(folder: Path) -> bool:
    try:
        newest = max((path.stat().st_mtime for path in folder.iterdir()), default=0.0)
    except OSError:
        return False
    return time.time() - newest < QUIET_SECONDS
