"""Checkpoints to resume from. Only complete ones count."""

import contextlib
import json
import logging
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lark.errors import LarkError
from lark.reading.untrusted import read_object, readable_object
from lark.store.store import Kind, checksum, remove, write_text

log = logging.getLogger(__name__)

CHECKPOINT = Kind("checkpoint", 1)
CURVE = "metrics.jsonl"
"""The numbers of every training step, beside the trained student."""
HELD_OUT = "held_out.jsonl"
"""The loss of each held-out trajectory (training.held_out.path) under the trained student."""

COMPLETE = "complete"
"""Written last. A checkpoint without it is incomplete and not resumed from. It lists the sizes and
checksums of the others.
"""
STATE = "trainer_state.json"
"""The Trainer's own state, with the number of the step."""
NAME = re.compile(r"checkpoint-(0|[1-9][0-9]{0,15})", re.ASCII)
Stamp = tuple[int, str | None]
"""Size and checksum of a file."""
SMALL = 2**26
"""Largest file, in bytes, that gets a checksum."""


@dataclass(frozen=True)
class Layout:
    """How a checkpoint is spread over files. Optimizer states sharded by DeepSpeed need the same number of
    processes.
    """

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


def seal(checkpoint: Path, layout: Layout) -> None:
    """Mark a checkpoint as complete, when all its files are on disk (`sync`). It stays valid as long as
    they do not change.

    Only sizes and small files are read, because the other processes wait for the one that seals.
    """
    write_text(checkpoint / COMPLETE, json.dumps({**asdict(layout), "files": stamps(checkpoint)}))


def stamps(folder: Path) -> dict[str, Stamp]:
    """Size and checksum of every file in a folder."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): (path.stat().st_size, _digest(path)) for path in paths}


def changed(folder: Path, files: Any) -> str | None:
    """What is wrong with the files of `stamps`, as a phrase, or None."""
    if not isinstance(files, dict) or not files or not all(_is_stamp(stamp) for stamp in files.values()):
        return "its list of files is empty or cannot be read"
    for name, (size, digest) in files.items():
        path, shown = folder / name, name if len(name) < 100 else f"{name[:100]}…"
        try:
            if not path.is_file():
                return f"{shown} is missing"
            if path.stat().st_size != size:
                return f"{shown} has {path.stat().st_size} bytes instead of {size}"
            if _digest(path) != digest:
                return f"{shown} has changed"
        except OSError as error:  # also a name that no file can have
            return f"{shown} cannot be read ({error.strerror})"
    return None


def _is_stamp(stamp: Any) -> bool:
    return (
        isinstance(stamp, list)
        and len(stamp) == 2
        and isinstance(stamp[0], int)
        and isinstance(stamp[1], str | None)
    )


def newest_checkpoint(folder: Path, layout: Layout) -> Path | None:
    """The newest complete checkpoint. Call `remove_unusable` first."""
    complete = [path for path in _checkpoints(folder) if (path / COMPLETE).exists()]
    if not complete:
        return None
    said = read_object(complete[-1] / COMPLETE)
    written = Layout(said["zero"], said["world"])
    if written.zero != layout.zero or (layout.zero and written.world != layout.world):
        raise LarkError(
            f"{complete[-1]} was written by {written.world} processes with hardware.zero={written.zero};"
            f" {layout.world} with hardware.zero={layout.zero} cannot resume it. Use the same hardware again,"
            " or start over with force=[train]."
        )
    return complete[-1]


def remove_unusable(folder: Path) -> None:
    """Remove checkpoints that are incomplete (the run was killed while writing) or damaged, down to the
    newest intact one.

    Anything else that is named like a checkpoint is left alone. Call it from one process only.
    """
    known, damaged = _checkpoints(folder), False
    for path in sorted(set(folder.glob("checkpoint-*")) - set(known)):
        log.warning("%s is not a checkpoint: ignored", path.name)
    for path in reversed(known):
        what = damage(path)
        if what is None:
            return
        log.warning("%s %s: ignored", path.name, what)
        damaged = damaged or (path / COMPLETE).exists()
        remove(path)
    if damaged:
        log.warning("No checkpoint is intact: training starts over")


def damage(checkpoint: Path) -> str | None:
    """Why a checkpoint cannot be resumed from, or None."""
    if not (checkpoint / COMPLETE).exists():
        return "is incomplete"
    said = readable_object(checkpoint / COMPLETE)
    if said is None or not isinstance(said.get("zero"), int) or not isinstance(said.get("world"), int):
        return f"is damaged ({COMPLETE} cannot be read)"
    if harm := changed(checkpoint, said.get("files")):
        return f"is damaged ({harm})"
    if STATE not in said["files"]:
        return f"is damaged ({COMPLETE} does not list {STATE})"
    step = (readable_object(checkpoint / STATE) or {}).get("global_step")
    return None if step == _step(checkpoint) else f"is damaged ({STATE} is of step {step})"


def _digest(path: Path) -> str | None:
    """SHA-256; None for a large file, for which only the size is checked: reading a 7B student's optimizer
    takes minutes.
    """
    return checksum(path) if path.stat().st_size <= SMALL else None


def _checkpoints(folder: Path) -> list[Path]:
    """Folders with the name of a checkpoint, by step."""
    found = [path for path in folder.glob("checkpoint-*") if NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=_step)


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("checkpoint-"))
