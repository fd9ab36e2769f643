"""Checkpoints to resume from. Only complete ones count."""

import contextlib
import json
import logging
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from lark.errors import LarkError
from lark.runtime.store import Kind, checksum, write_text

log = logging.getLogger(__name__)

CHECKPOINT = Kind("checkpoint", 1)
CURVE = "metrics.jsonl"
"""The numbers of every training step, beside the trained student."""

COMPLETE = "complete"
"""Written last. A checkpoint without it is incomplete and not resumed from. It lists the sizes and checksums of the others."""
SMALL = 2**26
"""Largest file, in bytes, that gets a checksum."""


@dataclass(frozen=True)
class Layout:
    """How a checkpoint is spread over files. Optimizer states sharded by DeepSpeed need the same number of processes."""

    zero: int
    world: int


def sync(checkpoint: Path) -> None:
    """Bring the files of a checkpoint to disk. Call it in every process that has written some of them.

    Files of other processes are synchronised too, which costs nothing if they have done so or run on another node. They may
    still be writing, so a file that disappears (a draft that got its final name) is skipped.
    """
    for path in checkpoint.rglob("*"):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError), path.open("rb") as handle:
            os.fsync(handle.fileno())


def seal(checkpoint: Path, layout: Layout) -> None:
    """Mark a checkpoint as complete, when all its files are on disk (`sync`). It stays valid as long as they do not change.

    Only sizes and small files are read, because the other processes wait for the one that seals.
    """
    paths = [path for path in sorted(checkpoint.rglob("*")) if path.is_file()]
    files = {path.relative_to(checkpoint).as_posix(): (path.stat().st_size, _digest(path)) for path in paths}
    write_text(checkpoint / COMPLETE, json.dumps({**asdict(layout), "files": files}))


def newest_checkpoint(folder: Path, layout: Layout) -> Path | None:
    """The newest complete checkpoint. Call `remove_unusable` first."""
    complete = [path for path in _checkpoints(folder) if (path / COMPLETE).exists()]
    if not complete:
        return None
    said = json.loads((complete[-1] / COMPLETE).read_text(encoding="utf-8"))
    written = Layout(said["zero"], said["world"])
    if written.zero != layout.zero or (layout.zero and written.world != layout.world):
        raise LarkError(
            f"{complete[-1]} was written by {written.world} processes with hardware.zero={written.zero}; {layout.world} "
            f"with hardware.zero={layout.zero} cannot resume it. Use the same hardware again, or start over with force=[train]."
        )
    return complete[-1]


def remove_unusable(folder: Path) -> None:
    """Remove checkpoints that are incomplete (the run was killed while writing) or damaged, down to the newest intact one.

    Call it from one process only.
    """
    damaged = False
    for path in reversed(_checkpoints(folder)):
        what = damage(path)
        if what is None:
            return
        log.warning("%s %s: ignored", path.name, what)
        damaged = damaged or (path / COMPLETE).exists()
        shutil.rmtree(path)
    if damaged:
        log.warning("No checkpoint is intact: training starts over")


def damage(checkpoint: Path) -> str | None:
    """Why a checkpoint cannot be resumed from, or None."""
    complete = checkpoint / COMPLETE
    if not complete.exists():
        return "is incomplete"
    try:
        files = dict(json.loads(complete.read_text(encoding="utf-8"))["files"])
    except (ValueError, KeyError, TypeError):
        return f"is damaged ({COMPLETE} cannot be read)"
    for name, (size, digest) in files.items():
        path = checkpoint / name
        if not path.is_file():
            return f"is damaged ({name} is missing)"
        if path.stat().st_size != size:
            return f"is damaged ({name} has {path.stat().st_size} bytes instead of {size})"
        if _digest(path) != digest:
            return f"is damaged ({name} has changed)"
    return None


def _digest(path: Path) -> str | None:
    """SHA-256; None for a large file, for which only the size is checked: reading a 7B student's optimizer takes minutes."""
    return checksum(path) if path.stat().st_size <= SMALL else None


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
