"""Trackers (Weights & Biases, trackio) as a mirror of the local files (`metrics.jsonl`, `summary.json`),
which are authoritative.
"""

import contextlib
import hashlib
import importlib.util
import logging
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lark.config import Config, Tracking
from lark.errors import LarkError
from lark.names import override_key
from lark.reading.untrusted import parse_object
from lark.store.store import Store
from lark.work.operation import Step
from lark.work.tracked_run import Description, TrackedRun, open_run

log = logging.getLogger(__name__)
FOLLOW_SECONDS = 2.0


LONGEST_GROUP = 128
"""Characters of a group's name that W&B accepts."""
SAME_SWEEP = ("tracking", "hardware", "outputs", "stages", "force", "dry_run", "hydra")
"""Settings that do not make a sweep another one: they change no result."""


def is_sweep(arguments: Sequence[str]) -> bool:
    """Whether a command line asks for a sweep: -m, or --multirun, which Hydra lets users shorten."""
    flags = [argument for argument in arguments if argument.startswith("-")]
    return any(flag == "-m" or (len(flag) > 3 and "--multirun".startswith(flag)) for flag in flags)


def with_sweep_group(arguments: list[str]) -> list[str]:
    """The command line, with a W&B group for a sweep (`-m`) that has none. Experiments name theirs in their
    file.

    The name shows what is swept. A checksum of all settings tells sweeps apart without showing the others,
    such as paths. The same command always gets the same name, so repeating a finished sweep adds no runs.
    """
    settings = sorted(argument for argument in arguments if "=" in argument and not argument.startswith("-"))
    keys = {override_key(setting) for setting in settings}
    if not is_sweep(arguments) or keys & {"experiment", "tracking.group"}:
        return arguments
    relevant = [
        setting for setting in settings if re.split(r"[./=]", setting.lstrip("+"))[0] not in SAME_SWEEP
    ]
    checksum = hashlib.sha256("\n".join(relevant).encode()).hexdigest()[:6]
    swept = [argument for argument in arguments if argument in relevant and SEVERAL.search(argument)]
    name = re.sub(r"[^\w.,=+ ()-]", "_", " ".join(swept))[: LONGEST_GROUP - len(checksum) - 1]
    return [*arguments, f"tracking.group='{name or 'sweep'} {checksum}'"]


SEVERAL = re.compile(r"=(?![\[{'\"]).*[,(]|=['\"].*['\"],")
"""A setting with several values: a list with commas, or a function such as range(1,4). Not a single value
in brackets or quotes.
"""


class Tracker:
    """One run of the tracking service per pipeline run, opened when there is something to log; nothing with
    tracking=none.
    """

    def __init__(
        self,
        tracking: Tracking,
        folder: Path,
        outputs: Path,
        name: str = "",
        settings: Mapping[str, Any] | None = None,
        tags: Sequence[str] = (),
    ) -> None:
        """`folder`: of the run; `outputs`: of all artifacts. `settings` and `tags`: by which the service
        filters runs.
        """
        self.tracking = tracking
        self.folder = folder
        # demo/lark-B3: student and run
        name = name or f"{folder.parent.name}/{folder.name}"
        self.description = Description(name, settings or {}, tags, outputs)
        self.enabled = tracking.mode != "none"
        package = "trackio" if tracking.mode == "trackio" else "wandb"
        if self.enabled and importlib.util.find_spec(package) is None:
            log.warning(
                "%s is not installed: curves and tables go to local files only (tracking=none hides this"
                " warning)",
                package,
            )
            self.enabled = False
        self._run: TrackedRun | None = None

    @property
    def run(self) -> TrackedRun:
        if self._run is None:
            self._run = open_run(self.tracking, self.folder, self.description)
        return self._run

    def log(self, values: Mapping[str, Any]) -> None:
        if self.enabled and values:
            self.run.log(values)

    def summarise(self, values: Mapping[str, float]) -> None:
        """Log results as scalars, and show them in the list of runs."""
        if self.enabled and values:
            self.run.log(values)
            self.run.summarise(values)

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        if self.enabled:
            self.run.table(name, columns, rows)

    def image(self, name: str, path: Path) -> None:
        if self.enabled:
            self.run.image(name, path)

    @contextlib.contextmanager
    def follow(self, path: Path, prefix: str) -> Iterator[None]:
        """Mirror the lines of a metrics.jsonl while it is being written by a worker."""
        if not self.enabled:
            yield
            return
        stop = threading.Event()
        self.run  # noqa: B018  # opened here: it must not be started from the thread
        thread = threading.Thread(target=self._follow, args=(path, prefix, stop), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _follow(self, path: Path, prefix: str, stop: threading.Event) -> None:
        """Log new lines by step, not by file position: a resumed training rewrites the end of the file."""
        logged = -1
        while True:
            last = stop.wait(FOLLOW_SECONDS)
            if path.exists():
                for line in path.read_bytes().splitlines(keepends=True):
                    values = _parsed(line)
                    if values["step"] > logged:
                        logged = values["step"]
                        self.log({f"{prefix}/{key}": value for key, value in values.items()})
            if last:
                return

    @property
    def already_tracked(self) -> bool:
        """True if a run that produced nothing new can skip the tracker: it has no group, or its group
        already has it.
        """
        group = self.tracking.group
        if group is None:
            return True
        if not self._groups_file.is_file():
            return False
        return group in self._groups_file.read_text(encoding="utf-8", errors="replace").splitlines()

    @property
    def _groups_file(self) -> Path:
        return self.folder / ".tracked"

    def finish(self) -> None:
        if self._run is not None:
            self._run.finish()
            if not self.already_tracked:
                with self._groups_file.open("a", encoding="utf-8") as handle:
                    handle.write(f"{self.tracking.group}\n")


def run_tags(config: Config) -> list[str]:
    """The tags of a run, by which it is found: student, method, budget and pool."""
    tags = [f"student={config.student.name}", f"method={config.method.key}"]
    if config.weighting_name is None:  # it selects nothing
        return tags
    return [*tags, f"budget={config.budget.name.removeprefix('B')}", f"pool={config.pool.label}"]


def tracked_counts(step: Step, store: Store) -> dict[str, float]:
    """The numbers of a step's manifests: `selection/trajectories`, `metrics/base/aime24/problems`, …"""
    labels = step.labels or ("",) * len(step.artifacts)
    numbers = {}
    for artifact, label in zip(step.artifacts, labels, strict=True):
        kind = artifact.kind.name
        parts = [kind, step.model, step.teacher, "" if label == kind else label]
        place = "/".join(part for part in parts if part)
        for name, value in store.manifest(artifact).counts.items():
            if isinstance(value, int | float):
                numbers[f"{place}/{name}"] = value
    return numbers


def _parsed(line: bytes) -> dict[str, Any]:
    """The values of a step; an earlier step than any other if the line is incomplete or damaged."""
    try:
        values = parse_object(line, "") if line.endswith(b"\n") else {}
    except LarkError:
        values = {}
    return values if isinstance(values.get("step"), int) else {"step": -1}
