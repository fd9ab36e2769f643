"""Checkpoints to resume from: complete, or not there."""

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
"""Written last. A checkpoint without it was not written to its end, and is never resumed from. It lists the others' sizes."""
SMALL = 2**26
"""Bytes of a file that is worth a checksum."""


@dataclass(frozen=True)
class Layout:
    """How a checkpoint is spread over files. Optimizer states that DeepSpeed sharded fit the same number of processes only."""

    zero: int
    world: int


def seal(checkpoint: Path, layout: Layout) -> None:
    """Every file is on disk: from now on the checkpoint counts, as long as its files stay what they are."""
    files = {}
    for path in sorted(checkpoint.rglob("*")):
        if path.is_file():
            with path.open("rb") as handle:
                os.fsync(handle.fileno())
            files[path.relative_to(checkpoint).as_posix()] = (path.stat().st_size, _digest(path))
    write_text(checkpoint / COMPLETE, json.dumps({**asdict(layout), "files": files}))


def newest_checkpoint(folder: Path, layout: Layout) -> Path | None:
    """The last complete checkpoint. Ask when `remove_unusable` has been there."""
    complete = [path for path in _checkpoints(folder) if (path / COMPLETE).exists()]
    if not complete:
        return None
    said = json.loads((complete[-1] / COMPLETE).read_text(encoding="utf-8"))
    written = Layout(said["zero"], said["world"])
    if written.zero != layout.zero or (layout.zero and written.world != layout.world):
        raise LarkError(
            f"{complete[-1]} was written by {written.world} processes with hardware.zero={written.zero}, and cannot be "
            f"continued by {layout.world} with hardware.zero={layout.zero}: use that hardware again, or force=[train] to start "
            "anew."
        )
    return complete[-1]


def remove_unusable(folder: Path) -> None:
    """Those of a run that was killed while it wrote, and those that were damaged since, down to the newest whole one.

    For one process alone to do.
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
        log.warning("No checkpoint is whole: training starts anew")


def damage(checkpoint: Path) -> str | None:
    """Why a checkpoint cannot be resumed from, or None."""
    complete = checkpoint / COMPLETE
    if not complete.exists():
        return "was not written to its end"
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
    """SHA-256; None for a large file, of which the size must do: to read a 7B student's optimizer takes minutes."""
    return checksum(path) if path.stat().st_size <= SMALL else None


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
