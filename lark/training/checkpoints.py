"""Checkpoints to resume from. Only complete ones count."""

import contextlib
import json
import logging
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lark.reading.untrusted import read_object, readable_object
from lark.store.store import Kind, checksum, remove, write_text
from lark.training.checks import check_sharding

log = logging.getLogger(__name__)

CHECKPOINT = Kind("checkpoint", 1)
CURVE = "metrics.jsonl"
"""The numbers of every training step, beside the trained student."""
LOSSES = "losses.jsonl"
"""The loss and token accuracy of each trajectory in each epoch: one line per training step."""
HELD_OUT_LOSSES = "held_out.jsonl"
"""The loss and token accuracy of each held-out trajectory (training.held_out.path) under the trained student.
"""

COMPLETE = "complete"
"""Written last: a checkpoint without it is not resumed from. Lists sizes and checksums of the other files."""
STATE = "trainer_state.json"
"""The Trainer's own state, with the number of the step."""
CHECKPOINT_NAME = re.compile(r"checkpoint-(0|[1-9][0-9]{0,15})", re.ASCII)
FileStamp = tuple[int, str | None]
"""Size and checksum of a file."""
CHECKSUM_LIMIT = 2**26
"""Largest file, in bytes, that gets a checksum. Reading a 7B student's optimizer takes minutes."""


@dataclass(frozen=True)
class Sharding:
    """How a checkpoint is spread over files. A state sharded by ZeRO needs as many processes as wrote it."""

    zero: int
    world: int


def sync(checkpoint: Path) -> None:
    """Bring the files of a checkpoint to disk. Call it in every process that has written some of them.

    Files of other processes are synchronised too, which costs nothing if they have done so or run on
    another node. They may still be writing, so a file that disappears (a draft that got its final name) is
    skipped.
    """
    for path in checkpoint.rglob("*"):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError), path.open("rb") as handle:
            os.fsync(handle.fileno())


def seal(checkpoint: Path, sharding: Sharding) -> None:
    """Mark a checkpoint as complete, once all its files are on disk (`sync`) and change no more.

    Only sizes and small files are read, because the other processes wait for the one that seals.
    """
    write_text(checkpoint / COMPLETE, json.dumps({**asdict(sharding), "files": stamps(checkpoint)}))


def stamps(folder: Path) -> dict[str, FileStamp]:
    """Size and checksum of every file in a folder."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): (path.stat().st_size, _digest(path)) for path in paths}


def changed(folder: Path, files: Any) -> str | None:
    """A phrase for how the files differ from their `stamps`; None if they do not."""
    if not isinstance(files, dict) or not files or not all(map(_is_stamp, files.values())):
        return "its list of files is empty or cannot be read"
    for name, (size, digest) in files.items():
        harm = _changed_file(folder / name, size, digest)
        if harm is not None:
            shown = name if len(name) < 100 else f"{name[:100]}…"
            return f"{shown} {harm}"
    return None


def _changed_file(path: Path, size: int, digest: str | None) -> str | None:
    try:
        if not path.is_file():
            return "is missing"
        if path.stat().st_size != size:
            return f"has {path.stat().st_size} bytes instead of {size}"
        if _digest(path) != digest:
            return "has changed"
    except OSError as error:  # also a name that no file can have
        return f"cannot be read ({error.strerror})"
    return None


def _is_stamp(stamp: Any) -> bool:
    if not isinstance(stamp, list) or len(stamp) != 2:
        return False
    return isinstance(stamp[0], int) and isinstance(stamp[1], str | None)


def newest_checkpoint(folder: Path, sharding: Sharding) -> Path | None:
    """The newest complete checkpoint. Call `remove_unusable` first."""
    complete = [path for path in _checkpoints(folder) if (path / COMPLETE).exists()]
    if not complete:
        return None
    newest = complete[-1]
    record = read_object(newest / COMPLETE)
    check_sharding(newest, Sharding(record["zero"], record["world"]), sharding)
    return newest


def remove_unusable(folder: Path) -> None:
    """Remove checkpoints that are incomplete (the run was killed while writing) or damaged, down to the
    newest intact one.

    Anything else that is named like a checkpoint is left alone. Call it from one process only.
    """
    checkpoints = _checkpoints(folder)
    for path in sorted(set(folder.glob("checkpoint-*")) - set(checkpoints)):
        log.warning("%s is not a checkpoint: ignored", path.name)
    damaged = False
    for path in reversed(checkpoints):
        harm = damage(path)
        if harm is None:
            return
        log.warning("%s %s: ignored", path.name, harm)
        # An incomplete checkpoint is the usual trace of a kill; only damage deserves the warning below.
        damaged = damaged or (path / COMPLETE).exists()
        remove(path)
    if damaged:
        log.warning("No checkpoint is intact: training starts over")


def damage(checkpoint: Path) -> str | None:
    """Why a checkpoint cannot be resumed from, or None."""
    if not (checkpoint / COMPLETE).exists():
        return "is incomplete"
    record = readable_object(checkpoint / COMPLETE)
    if record is None or not isinstance(record.get("zero"), int) or not isinstance(record.get("world"), int):
        return f"is damaged ({COMPLETE} cannot be read)"
    harm = changed(checkpoint, record.get("files"))
    if harm is not None:
        return f"is damaged ({harm})"
    if STATE not in record["files"]:
        return f"is damaged ({COMPLETE} does not list {STATE})"
    state = readable_object(checkpoint / STATE) or {}
    step = state.get("global_step")
    if step != _step(checkpoint):
        return f"is damaged ({STATE} is of step {step})"
    return None


def _digest(path: Path) -> str | None:
    """SHA-256; None for a large file, of which only the size is checked."""
    return checksum(path) if path.stat().st_size <= CHECKSUM_LIMIT else None


def _checkpoints(folder: Path) -> list[Path]:
    """Folders with the name of a checkpoint, by step."""
    named = [path for path in folder.glob("checkpoint-*") if CHECKPOINT_NAME.fullmatch(path.name)]
    return sorted(filter(Path.is_dir, named), key=_step)


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("checkpoint-"))
