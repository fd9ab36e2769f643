"""Runs as their folders record them: `steps.jsonl` (lark/work/record.py), or, of an older version, the log."""

import json
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lark.explorer.listing import FOLDER, Key
from lark.explorer.progress import tail
from lark.work.record import RECORD_FILE

LOG = "lark.log"
STEP = re.compile(
    r"INFO lark\.(?:runtime|pipeline)\.pipeline: (?P<step>\S.*?)\s+(?P<took>[\d.]+ s|reused)\s+(?P<where>\S.*)$"
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
    """What a log says instead of naming several artifacts."""


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
        be one of ours.
        """
        if self.ended or self.host != socket.gethostname():
            return False
        try:
            return b"run.py" in (PROCESSES / str(self.process) / "cmdline").read_bytes()
        except OSError:
            return False


def read_runs(folder: Path) -> list[RunRecord]:
    """The runs of one folder, the last one first."""
    found = _recorded(folder / RECORD_FILE)
    return found or _logged(folder / LOG)


def _recorded(path: Path) -> list[RunRecord]:
    runs: dict[str, list[dict[str, Any]]] = {}
    for line in tail(path, LARGEST).split("\n"):
        try:
            values = json.loads(line)
            runs.setdefault(str(values["run"]), []).append(values)
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # the last line of a process that was killed, or a file that someone edited
    return [run for lines in reversed(runs.values()) if (run := _run(lines)) is not None]


def _run(lines: list[dict[str, Any]]) -> RunRecord | None:
    by_event: dict[str, list[dict[str, Any]]] = {}
    for values in lines:
        by_event.setdefault(str(values.get("event")), []).append(values)
    start, end = by_event.get("start", [{}])[0], by_event.get("end", [None])[-1]
    plan = [step for step in _list(start.get("plan")) if isinstance(step, dict)]
    done = {
        str(values.get("step")): _done(values) for values in by_event.get("step", [])
    }  # a step made again counts once
    error = None if end is None else end.get("error")
    return RunRecord(
        started=str(start.get("time", lines[0].get("time", ""))),
        typed=tuple(map(str, _list(start.get("typed")))),
        plan=tuple(str(step.get("step")) for step in plan),
        planned=_keys([folder for step in plan for folder in _list(step.get("artifacts"))]),
        steps=tuple(done.values()),
        changed=str(lines[-1].get("time", "")),
        ended=end is not None,
        error=None if error is None else str(error),
        process=_int(start.get("process")),
        host=str(start.get("host", "")),
    )


def _done(values: dict[str, Any]) -> Done:
    seconds, made = values.get("seconds"), _keys(_list(values.get("made")))
    took = float(seconds) if isinstance(seconds, int | float) and made else None
    return Done(str(values.get("step")), took, made, _keys(_list(values.get("reused"))))


def _logged(path: Path) -> list[RunRecord]:
    """The last run of a log. A step whose name occurs again belongs to a later run."""
    steps: dict[str, Done] = {}
    started = ""
    for line in tail(path, 65_536).split("\n"):
        match = STEP.search(line)
        if match is None:
            continue
        if match["step"] in steps:
            steps = {}
        if not steps:
            started = line[:19].replace(" ", "T")
        keys, is_reused = _keys([match["where"].strip()]), match["took"] == "reused"
        seconds = None if is_reused else float(match["took"].removesuffix(" s"))
        where = "" if keys else match["where"].strip()
        steps[match["step"]] = Done(
            match["step"], seconds, () if is_reused else keys, keys if is_reused else (), where
        )
    try:
        changed = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(path.stat().st_mtime))
    except OSError:
        return []
    return [RunRecord(started or changed, None, (), (), tuple(steps.values()), changed, None)]


def _keys(folders: list[Any]) -> tuple[Key, ...]:
    return tuple(_found(folders))


def _found(folders: list[Any]) -> Iterator[Key]:
    for folder in folders:
        kind, _, name = str(folder).partition("/")
        match = FOLDER.fullmatch(name)
        if match:
            yield kind, match["fingerprint"]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _int(value: Any) -> int:
    return value if isinstance(value, int) else 0
