"""Runs as their folders record them: in `steps.jsonl` (lark/work/record.py), in older versions the log."""

import json
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lark.explorer.listing import Key, folder_key
from lark.explorer.progress import tail
from lark.store.alive import has_ended
from lark.work.record import RECORD_FILE

LOG = "lark.log"
STEP = re.compile(
    r"INFO lark\.(?:runtime|pipeline)\.pipeline: "
    r"(?P<step>\S.*?)\s+(?P<took>[\d.]+ s|reused)\s+(?P<where>\S.*)$"
)
LARGEST = 8 * 2**20
"""Bytes at the end of a record that are read: thousands of runs."""
PROCESSES = Path("/proc")


@dataclass(frozen=True)
class Done:
    """A step that was carried out."""

    step: str
    seconds: float | None
    """None: everything was reused, or the record does not say."""
    made: tuple[Key, ...] = ()
    reused: tuple[Key, ...] = ()
    where: str = ""
    """A log's words for several artifacts, which it does not name."""


@dataclass(frozen=True)
class RunRecord:
    """One run."""

    started: str
    typed: tuple[str, ...] | None
    """None: not recorded."""
    plan: tuple[str, ...]
    """Titles of all steps; empty if it is not recorded."""
    planned: tuple[Key, ...]
    """Artifacts of the plan."""
    steps: tuple[Done, ...]
    changed: str
    """Time of the last line."""
    ended: bool | None
    """None: not recorded."""
    error: str | None = None
    process: int = 0
    host: str = ""

    @property
    def is_alive(self) -> bool:
        """Whether its process is on this machine. Numbers of processes are used again, so the command must
        be one of ours. macOS has no files of processes: there, any process counts.
        """
        if self.ended or self.host != socket.gethostname():
            return False
        if not PROCESSES.is_dir():
            return not has_ended({"process": self.process, "host": self.host})
        try:
            return b"run.py" in (PROCESSES / str(self.process) / "cmdline").read_bytes()
        except OSError:
            return False


def read_runs(folder: Path) -> list[RunRecord]:
    """The runs of one folder, the last one first."""
    return _recorded(folder / RECORD_FILE) or _logged(folder / LOG)


def _recorded(path: Path) -> list[RunRecord]:
    runs: dict[str, list[dict[str, Any]]] = {}
    for line in tail(path, LARGEST).split("\n"):
        try:
            values = json.loads(line)
            runs.setdefault(str(values["run"]), []).append(values)
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # the last line of a process that was killed, or a file that someone edited
    # Runs share a folder in the order in which they started, so the last one comes last.
    return [_run(lines) for lines in reversed(runs.values())]


def _run(lines: list[dict[str, Any]]) -> RunRecord:
    start: dict[str, Any] = {}
    end: dict[str, Any] | None = None
    steps: dict[str, Done] = {}
    for values in lines:
        event = values.get("event")
        if event == "start":
            start = start or values
        elif event == "step":
            done = _done(values)
            steps[done.step] = done  # a step made again counts once
        elif event == "end":
            end = values
    plan = [step for step in _list(start.get("plan")) if isinstance(step, dict)]
    planned = []
    for step in plan:
        planned += _list(step.get("artifacts"))
    error = None if end is None else end.get("error")
    process = start.get("process")
    return RunRecord(
        started=str(start.get("time", lines[0].get("time", ""))),
        typed=tuple(map(str, _list(start.get("typed")))),
        plan=tuple(str(step.get("step")) for step in plan),
        planned=_keys(planned),
        steps=tuple(steps.values()),
        changed=str(lines[-1].get("time", "")),
        ended=end is not None,
        error=None if error is None else str(error),
        process=process if isinstance(process, int) else 0,
        host=str(start.get("host", "")),
    )


def _done(values: dict[str, Any]) -> Done:
    seconds = values.get("seconds")
    made = _keys(_list(values.get("made")))
    took = float(seconds) if isinstance(seconds, int | float) and made else None
    return Done(str(values.get("step")), took, made, _keys(_list(values.get("reused"))))


def _logged(path: Path) -> list[RunRecord]:
    """The last run of a log."""
    steps: dict[str, Done] = {}
    started = ""
    for line in tail(path, 65_536).split("\n"):
        match = STEP.search(line)
        if match is None:
            continue
        if match["step"] in steps:
            steps = {}  # a step whose name occurs again belongs to a later run
        if not steps:
            started = line[:19].replace(" ", "T")
        steps[match["step"]] = _logged_step(match)
    try:
        changed = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(path.stat().st_mtime))
    except OSError:
        return []
    return [RunRecord(started or changed, None, (), (), tuple(steps.values()), changed, None)]


def _logged_step(match: re.Match[str]) -> Done:
    where = match["where"].strip()
    keys = _keys([where])
    if keys:
        where = ""
    if match["took"] == "reused":
        return Done(match["step"], None, reused=keys, where=where)
    return Done(match["step"], float(match["took"].removesuffix(" s")), made=keys, where=where)


def _keys(folders: list[Any]) -> tuple[Key, ...]:
    """Kinds and fingerprints of folders such as `pool/demo-0123456789ab`."""
    keys = (folder_key(str(folder)) for folder in folders)
    return tuple(key for key in keys if key is not None)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
