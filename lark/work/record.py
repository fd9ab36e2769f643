"""The record of a run: `steps.jsonl` in its folder, with a line when it starts, after each step, and when
it ends.

Other programs read it, such as the explorer: which artifacts a run made or reused, how far it is, and how
it ended. Several runs can share a folder, so every line names its run. Lines are only appended. A record
that cannot be written never ends a run.
"""

import contextlib
import json
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lark.secrets import redact
from lark.store.store import Artifact
from lark.work.operation import Step

RECORD_FILE = "steps.jsonl"
LONGEST_ERROR = 2000
"""Characters of an error that are kept."""


class Record:
    """Writes the lines of one run."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / RECORD_FILE
        self.run = f"{time.strftime('%Y-%m-%dT%H:%M:%S')}-{os.getpid()}"

    def start(self, typed: Sequence[str], steps: Sequence[Step]) -> None:
        """Record the settings that were typed, and the planned steps."""
        plan = [
            {"step": step.title, "stage": step.stage, "artifacts": _folders(step.artifacts)} for step in steps
        ]
        self._write(
            event="start",
            process=os.getpid(),
            host=socket.gethostname(),
            typed=[redact(word) for word in typed],
            plan=plan,
        )

    def step(self, step: Step, made: Sequence[Artifact], seconds: float) -> None:
        """A step is done: `made` are the artifacts that did not exist."""
        folders = _folders(made)
        reused = [folder for folder in _folders(step.artifacts) if folder not in folders]
        self._write(event="step", step=step.title, seconds=round(seconds, 3), made=folders, reused=reused)

    def end(self, error: BaseException | None) -> None:
        """The run is over. An interruption (Ctrl-C) is an error without a message."""
        reason = None
        if error is not None:
            reason = redact(str(error))[:LONGEST_ERROR] or type(error).__name__
        self._write(event="end", error=reason)

    def _write(self, **values: Any) -> None:
        line = json.dumps({"run": self.run, "time": time.strftime("%Y-%m-%dT%H:%M:%S"), **values})
        with contextlib.suppress(OSError):
            if values["event"] == "start":  # later, a folder that is gone was removed on purpose
                self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as handle:
                handle.write(f"{line}\n")


def _folders(artifacts: Sequence[Artifact]) -> list[str]:
    return [artifact.folder.as_posix() for artifact in artifacts]
