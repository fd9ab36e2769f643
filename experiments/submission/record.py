"""The folder of a submitted sweep, which is all that its processes share: the graph, and what happened to
each step.

    outputs/runs/sweeps/<experiment>-<scale>-<digest>/
        graph.json           the steps, with the configuration of each trial; written by `submit`
        events/<step>.jsonl  when the step was started and how it ended; its process touches the file while it works
        logs/<step>.log      its output
        conductor.json       the process that starts steps (not with SLURM), which touches it; if the file is removed or names
                             another process, it ends
        jobs.json            the SLURM job of each step
        again                asks the conductor to try failed steps again

Each file has one writer, so this works on any file system that the nodes share.
"""

import contextlib
import hashlib
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from lark.config import Config, from_dict
from lark.errors import LarkError
from lark.reading.untrusted import parsed, read_object, readable_object
from lark.store.manifest import read_manifest
from lark.store.store import damage, write_text

SWEEPS = Path("runs") / "sweeps"
GRAPH, CONDUCTOR, JOBS, AGAIN = "graph.json", "conductor.json", "jobs.json", "again"
BEAT, STALE = 5.0, 60.0
"""Seconds between two touches of a file, and without one until its process counts as lost."""
LATEST = 2.0**40
"""Seconds since 1970: no time of an event is later."""

log = logging.getLogger("experiments")


@dataclass(frozen=True)
class Planned:
    """A step of a submitted sweep."""

    name: str
    title: str
    trial: int
    """The trial whose configuration makes it."""
    trials: tuple[int, ...]
    after: tuple[str, ...]
    key: tuple[str, ...]
    """`Step.key`."""
    artifacts: tuple[str, ...]
    """Folders below the outputs."""
    gpus: int
    cpus: int
    seconds: float | None
    """Estimated time; None if it is negligible or unknown."""


@dataclass(frozen=True)
class Event:
    """One attempt at a step."""

    started: float
    host: str
    process: int
    ended: float | None = None
    error: str | None = None
    """None: it succeeded, or has not ended."""

    @property
    def failure(self) -> str:
        """Why the result is missing, if it is missing and nobody is making it."""
        if self.error is not None or self.ended is None:
            return self.error or "its process was lost"
        return "its result has been removed or damaged; `submit` makes it again"


class Submission:
    """A submitted sweep."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            values = read_object(folder / GRAPH)
            self.title = _typed(values["title"], str)
            self.arguments = _listed(values["arguments"], str)
            self.place = _typed(values["place"], str)
            self.address: str | None = _typed(values["address"], str, type(None))
            self.launcher: dict[str, Any] = _typed(values["launcher"], dict)
            self.trials: list[dict[str, Any]] = _listed(values["trials"], dict)
            self.steps = {step.name: step for step in map(_planned, _listed(values["steps"], dict))}
        except (KeyError, TypeError, LarkError) as error:
            raise LarkError(
                f"{folder / GRAPH} is damaged or of another version: submit the sweep again. Finished steps"
                " are kept."
            ) from error

    @property
    def outputs(self) -> Path:
        return self.folder.parents[len(SWEEPS.parts)]

    def config(self, step: Planned) -> Config:
        return from_dict(self.trials[step.trial]["config"])

    def finished(self, step: Planned) -> bool:
        """Whether all of its artifacts are there and intact."""
        return all(_is_finished(self.outputs / artifact) for artifact in step.artifacts)

    def seconds(self, step: Planned) -> float:
        return step.seconds or 0.0

    def events(self, step: Planned) -> list[Event]:
        """The attempts at a step, the latest last."""
        return _events(self.event_file(step.name))

    def event_file(self, name: str) -> Path:
        return self.folder / "events" / f"{name}.jsonl"

    def log_file(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def is_running(self, step: Planned) -> bool:
        """Whether a process is working on it."""
        events = self.events(step)
        if not events or events[-1].ended is not None:
            return False
        return _is_fresh(self.event_file(step.name), events[-1].host, events[-1].process)

    def conductor(self) -> str | None:
        return conductor_of(self.folder)

    def jobs(self) -> dict[str, str]:
        return jobs_of(self.folder)


def conductor_of(folder: Path) -> str | None:
    """The process that starts the steps of a sweep, if it works."""
    owner = _owner(readable_object(folder / CONDUCTOR) or {})
    if owner is None or not _is_fresh(folder / CONDUCTOR, *owner):
        return None
    host, process = owner
    return f"process {process} on {host}"


def jobs_of(folder: Path) -> dict[str, str]:
    """The SLURM job of each step. Raises LarkError if the file is damaged: jobs must not be forgotten."""
    if not (folder / JOBS).exists():
        return {}
    jobs = readable_object(folder / JOBS)
    if jobs is None or not all(isinstance(job, str) and job.isdigit() for job in jobs.values()):
        raise LarkError(
            f"{folder / JOBS} is damaged, so it is not known which SLURM jobs the sweep has. Look for jobs"
            " whose names begin with `lark-` (`squeue --me`), cancel them or wait until they have ended,"
            " remove the file, and submit again."
        )
    return {name: str(job) for name, job in jobs.items()}


def _planned(values: dict[str, Any]) -> Planned:
    """A step from its JSON, in which tuples are lists. Raises KeyError or TypeError."""
    read: dict[str, Any] = {name: _typed(values[name], str) for name in ("name", "title")}
    read |= {name: _typed(values[name], int) for name in ("trial", "gpus", "cpus")}
    read |= {name: tuple(_listed(values[name], str)) for name in ("after", "key", "artifacts")}
    read["trials"] = tuple(_listed(values["trials"], int))
    return Planned(**read, seconds=_typed(values["seconds"], int, float, type(None)))


def _typed(value: Any, *types: type) -> Any:
    if type(value) not in types:
        raise TypeError
    return value


def _listed(value: Any, kind: type) -> list[Any]:
    return [_typed(item, kind) for item in _typed(value, list)]


def folder_of(outputs: Path, title: str, scale: str, arguments: Sequence[str]) -> Path:
    """The folder of a sweep. Settings that cannot change a result are not part of its name."""
    same = ("outputs", "tracking", "hardware", "hydra")
    kept = sorted(
        a for a in arguments if a.lstrip("+~").split("=")[0].split(".")[0].split("/")[0] not in same
    )
    digest = hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:6]
    return outputs / SWEEPS / f"{title}-{scale}-{digest}"


def write_graph(folder: Path, steps: Sequence[Planned], **values: Any) -> None:
    for part in ("events", "logs"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    text = json.dumps({**values, "steps": [asdict(step) for step in steps]}, indent=1, default=str)
    write_text(folder / GRAPH, text + "\n")


def submitted(outputs: Path, title: str | None = None) -> list[Path]:
    """The folders of submitted sweeps, the latest last. `title`: only those of this experiment. Their
    graphs may be damaged.
    """
    graphs = sorted((outputs / SWEEPS).glob(f"*/{GRAPH}"), key=lambda file: file.stat().st_mtime)
    folders = [file.parent for file in graphs]
    return [folder for folder in folders if title is None or folder.name.rsplit("-", 2)[0] == title]


@contextlib.contextmanager
def attempt(file: Path) -> Iterator[None]:
    """Record that a step has started, and how it ends; touch the file in between."""
    file.parent.mkdir(parents=True, exist_ok=True)
    _append(file, event="started", host=socket.gethostname(), process=os.getpid())
    said: str | None = None
    try:
        with touched(file):
            yield
    except BaseException as error:
        said = str(error) or type(error).__name__
        raise
    finally:
        _append(file, event="ended", error=said)


@contextlib.contextmanager
def conducting(folder: Path) -> Iterator[None]:
    """Record that this process starts the steps of a sweep, until the end. A damaged record is written
    again.
    """
    own = (socket.gethostname(), os.getpid())

    def write() -> None:
        write_text(folder / CONDUCTOR, json.dumps({"process": own[1], "host": own[0]}))

    def renew() -> bool:
        mine = is_conductor(folder)
        if mine and _owner(readable_object(folder / CONDUCTOR) or {}) is None:
            write()
        return mine

    write()
    try:
        with touched(folder / CONDUCTOR, renew):
            yield
    finally:
        if is_conductor(folder):
            (folder / CONDUCTOR).unlink(missing_ok=True)


def is_conductor(folder: Path) -> bool:
    """Whether a sweep is still this process's: not if it was stopped for so long that the sweep was
    submitted again meanwhile.
    """
    file = folder / CONDUCTOR
    owner = _owner(readable_object(file) or {})
    if owner is None:
        return file.exists()  # damaged: the conductor writes it again
    return owner == (socket.gethostname(), os.getpid())


def await_record(folder: Path) -> None:
    """Wait until a conductor, if there is one, has written its damaged record again."""
    file, deadline = folder / CONDUCTOR, time.monotonic() + 2 * BEAT
    while file.exists() and _owner(readable_object(file) or {}) is None and time.monotonic() < deadline:
        time.sleep(BEAT / 20)


@contextlib.contextmanager
def touched(file: Path, is_mine: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Touch a file until the end, as long as it is this process's."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(BEAT):
            with contextlib.suppress(OSError):
                if is_mine():
                    os.utime(file)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _append(file: Path, **values: Any) -> None:
    with file.open("a", encoding="utf-8") as handle:
        handle.write(json.dumps({"time": time.time(), **values}) + "\n")


def _events(file: Path) -> list[Event]:
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError:
        return []
    found: list[Event] = []
    for line in filter(None, lines):
        values = parsed(line)
        at = _time(values)
        if at is not None and values["event"] == "started" and (owner := _owner(values)) is not None:
            found.append(Event(at, *owner))
        elif (
            at is not None
            and values["event"] == "ended"
            and isinstance(error := values.get("error"), str | None)
        ):
            if found and found[-1].ended is None:
                found[-1] = replace(found[-1], ended=at, error=error)
        elif line is not lines[-1]:  # the last line has no end while it is being written
            _warn_damaged(file)
    return found


def _time(values: Any) -> float | None:
    """When an event was; None if it is not an event."""
    if not isinstance(values, dict) or "event" not in values:
        return None
    at = values.get("time")
    return float(at) if isinstance(at, int | float) and 0 <= at < LATEST else None


def _owner(values: Mapping[str, Any]) -> tuple[str, int] | None:
    """Host and process that a file names; None if it is damaged."""
    host, process = values.get("host"), values.get("process")
    valid = isinstance(host, str) and type(process) is int and 0 < process < 2**31
    return (str(host), int(process or 0)) if valid else None


@cache
def _warn_damaged(file: Path) -> None:
    log.warning("%s is damaged: some of its lines are not events, and are skipped.", file)


def _is_fresh(file: Path, host: str, process: int) -> bool:
    """Whether a file was touched lately, by the clock of its file system; and its process exists, if it is
    of this machine.
    """
    if host == socket.gethostname():
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
    probe = file.with_name(f".now-{socket.gethostname()[:40]}-{os.getpid()}")
    try:
        probe.touch()
        now = probe.stat().st_mtime
        probe.unlink(missing_ok=True)
        return now - file.stat().st_mtime < STALE
    except OSError:
        return False


def _is_finished(folder: Path) -> bool:
    try:
        manifest = read_manifest(folder)
    except LarkError:
        return False
    return (
        manifest.finished and folder.name.endswith(manifest.fingerprint) and damage(folder, manifest) is None
    )
