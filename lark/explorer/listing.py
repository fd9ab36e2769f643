"""The artifacts of a store: found by listing its folders, addressed by kind and fingerprint, never by a
path from outside.

Nothing is written, not even a lock: a run may be going on in the same store.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from lark.explorer.cache import Cache, stamp
from lark.explorer.locks import locked, locked_inodes
from lark.explorer.problems import PageError, reading
from lark.reading.untrusted import read_yaml
from lark.store.alive import is_fresh
from lark.store.locks import lock_file
from lark.store.manifest import DAMAGED, MANIFEST, Manifest, readable_manifest
from lark.work.entry import REPORTS

FOLDER = re.compile(r"(?P<name>.*)-(?P<fingerprint>[0-9a-f]{12})")
NOT_KINDS = frozenset({"runs", "report", "bench", "trackio", REPORTS})
QUIET_SECONDS = 120
"""An unfinished artifact without a lock on this machine whose files changed this recently is being made on
another one.
"""
EXPANSION = 8
"""Bytes in memory per byte of a manifest."""
T = TypeVar("T")
Key = tuple[str, str]
"""Kind and fingerprint of an artifact."""


def folder_key(folder: str) -> Key | None:
    """Kind and fingerprint of an artifact's folder, `pool/demo-0123456789ab`; None for another folder."""
    kind, _, name = folder.partition("/")
    match = FOLDER.fullmatch(name)
    return (kind, match["fingerprint"]) if match else None


@dataclass(frozen=True, eq=False)
class Entry:
    """One artifact as its manifest describes it."""

    kind: str
    name: str
    fingerprint: str
    folder: Path
    manifest: Manifest = field(repr=False)
    problem: str | None = None
    """Why the manifest could not be read."""
    nbytes: int = 1000
    """Approximate size in memory, for the cache."""

    @property
    def key(self) -> Key:
        return self.kind, self.fingerprint

    @property
    def finished(self) -> bool:
        return self.manifest.finished

    @property
    def counts(self) -> Mapping[str, Any]:
        return self.manifest.counts

    @cached_property
    def inputs(self) -> dict[str, Key]:
        """Kind and fingerprint of each input."""
        keys = {label: folder_key(folder) for label, folder in self.manifest.inputs.items()}
        return {label: key for label, key in keys.items() if key is not None}

    def file(self, name: str) -> Path:
        return self.folder / name


class Listing:
    """All artifacts of a store, listed again for each request; manifests that did not change are not read
    again.
    """

    def __init__(self, root: Path, cache: Cache) -> None:
        self.root, self.cache = root, cache
        self.entries: dict[Key, Entry] = {entry.key: entry for entry in self._scan()}
        self.derived: dict[str, Any] = {}
        """Values of `once`."""

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

    def once(self, name: str, make: Callable[[], T]) -> T:
        """A value that is computed once for this listing."""
        if name not in self.derived:
            self.derived[name] = make()
        return self.derived[name]

    @cached_property
    def _users(self) -> dict[Key, list[Entry]]:
        users: dict[Key, list[Entry]] = {}
        for entry in self:
            for key in set(entry.inputs.values()):
                users.setdefault(key, []).append(entry)
        return users

    def used_by(self, entry: Entry) -> list[Entry]:
        """The artifacts that were made from this one."""
        return self._users.get(entry.key, [])

    @cached_property
    def _locked(self) -> frozenset[str] | None:
        return locked_inodes()

    def config(self, entry: Entry) -> dict[str, Any]:
        """Content of the artifact's config.yaml: version, depends, inputs."""
        path = entry.file("config.yaml")
        with reading(path):
            values = self.cache.get(("config", path), stamp(path), lambda: read_yaml(path))
            if not (isinstance(values, dict) and isinstance(values.get("depends"), dict)):
                raise ValueError("it is not an artifact's configuration")
            return values

    def state(self, entry: Entry) -> str:
        """finished, running, failed, damaged, interrupted, or unreadable."""
        status = entry.manifest.status
        if entry.problem:
            return "unreadable"
        if status in ("finished", "failed", DAMAGED):
            return status
        lock = lock_file(self.root, entry.folder)
        return "running" if locked(lock, self._locked) or _is_changing(entry.folder) else "interrupted"

    def _scan(self) -> Iterator[Entry]:
        if not self.root.is_dir():
            raise PageError(f"The store {self.root.name} does not exist (any more).")
        with reading(self.root, f"The store {self.root.name}"):
            folders = sorted(self.root.iterdir())
        for kind in folders:
            if kind.name in NOT_KINDS or kind.name.startswith("."):
                continue
            for name in _folders(kind):
                match = FOLDER.fullmatch(name)
                if match:
                    yield self._entry(kind.name, match["name"], match["fingerprint"], kind / name)

    def _entry(self, kind: str, name: str, fingerprint: str, folder: Path) -> Entry:
        path = folder / MANIFEST

        def unreadable(problem: str) -> Entry:
            return Entry(kind, name, fingerprint, folder, Manifest(), problem)

        def read() -> Entry:
            if size < 0:
                return unreadable(f"{kind}/{folder.name} has no manifest (yet).")
            manifest = readable_manifest(folder)
            if manifest is None:
                return unreadable(f"The manifest of {kind}/{folder.name} is damaged.")
            short = replace(manifest, files={})  # checksums: long, and of no use here
            return Entry(kind, name, fingerprint, folder, short, nbytes=EXPANSION * size)

        version = stamp(path)
        _, size = version[0]
        return self.cache.get(("manifest", path), version, read)


def _folders(kind: Path) -> list[str]:
    """Names of the folders of a kind. `scandir` knows which are folders without asking for each."""
    try:
        with os.scandir(kind) as inside:
            return sorted(item.name for item in inside if item.is_dir())
    except OSError:
        return []


def started(entry: Entry) -> str:
    """When the artifact was started, as a text that can be sorted."""
    return entry.manifest.started


def _is_changing(folder: Path) -> bool:
    try:
        return any(is_fresh(path, QUIET_SECONDS) for path in folder.iterdir())
    except OSError:
        return False
