"""Checkpoints to resume from: complete, or not there."""

import json
import logging
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from lark.artifacts import write_text
from lark.errors import LarkError

log = logging.getLogger(__name__)

COMPLETE = "complete"
"""Written last. A checkpoint without it was not written to its end, and is never resumed from."""


@dataclass(frozen=True)
class Layout:
    """How a checkpoint is spread over files. Optimizer states that DeepSpeed sharded fit the same number of processes only."""

    zero: int
    world: int


def seal(checkpoint: Path, layout: Layout) -> None:
    """Every file is on disk: from now on the checkpoint counts."""
    for path in checkpoint.rglob("*"):
        if path.is_file():
            with path.open("rb") as handle:
                os.fsync(handle.fileno())
    write_text(checkpoint / COMPLETE, json.dumps(asdict(layout)))


def newest_checkpoint(folder: Path, layout: Layout) -> Path | None:
    """The last complete checkpoint."""
    complete = [path for path in _checkpoints(folder) if (path / COMPLETE).exists()]
    if not complete:
        return None
    written = Layout(**json.loads((complete[-1] / COMPLETE).read_text(encoding="utf-8")))
    if written.zero != layout.zero or (layout.zero and written.world != layout.world):
        raise LarkError(
            f"{complete[-1]} was written by {written.world} processes with hardware.zero={written.zero}, and cannot be "
            f"continued by {layout.world} with hardware.zero={layout.zero}: use that hardware again, or force=[train] to start "
            "anew."
        )
    return complete[-1]


def remove_incomplete(folder: Path) -> None:
    """Those of a run that was killed while it wrote. For one process alone to do."""
    for path in _checkpoints(folder):
        if not (path / COMPLETE).exists():
            log.warning("%s was not written to its end: ignored", path.name)
            shutil.rmtree(path)


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
