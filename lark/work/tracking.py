"""Weights & Biases as a mirror of the local files (`metrics.jsonl`, `summary.json`), which are
authoritative.
"""

import contextlib
import hashlib
import importlib.util
import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lark.config import Config
from lark.errors import LarkError
from lark.names import override_key
from lark.reading.untrusted import parse_object

log = logging.getLogger(__name__)
FOLLOW_SECONDS = 2.0


LONGEST_GROUP = 128
"""Characters of a group's name that W&B accepts."""
SAME_SWEEP = ("tracking", "hardware", "outputs", "stages", "force", "dry_run", "hydra")
"""Settings that do not make a sweep another one: they change no result."""


def with_sweep_group(arguments: list[str]) -> list[str]:
    """The command line, with a W&B group for a sweep (`-m`) that has none. Experiments name theirs in their
    file.

    The name shows what is swept. A checksum of all settings tells sweeps apart without showing the others,
    such as paths. The same command always gets the same name, so repeating a finished sweep adds no runs.
    """
    flags = [argument for argument in arguments if argument.startswith("-")]
    is_sweep = any(flag == "-m" or (len(flag) > 3 and "--multirun".startswith(flag)) for flag in flags)
    settings = sorted(argument for argument in arguments if "=" in argument and not argument.startswith("-"))
    keys = {override_key(setting) for setting in settings}
    if not is_sweep or keys & {"experiment", "tracking.group"}:
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
    """One W&B run per pipeline run, opened when there is something to log; nothing with tracking=none."""

    def __init__(self, config: Config, folder: Path, name: str | None = None) -> None:
        self.config = config
        self.folder = folder
        self.name = name or f"{folder.parent.name}/{folder.name}"  # demo/lark-B3: student and run
        self.enabled = config.tracking.mode != "none"
        if self.enabled and importlib.util.find_spec("wandb") is None:
            log.warning(
                "wandb is not installed: curves and tables go to local files only (tracking=none hides this"
                " warning)"
            )
            self.enabled = False
        self._run: Any = None

    @property
    def run(self) -> Any:
        if self._run is None:
            import wandb  # noqa: PLC0415  # takes seconds, and tracking=none must work without it

            os.environ.setdefault("WANDB_SILENT", "true")
            try:
                self._run = self._open(self.config.tracking.mode)
            except wandb.Error as error:
                if self.config.tracking.mode != "online":
                    raise
                reason = " ".join(str(error).split())
                log.warning(
                    "W&B cannot be used online (%s): logging to %s/wandb; `wandb sync` uploads it later.",
                    reason,
                    self.folder,
                )
                self._run = self._open("offline")
        return self._run

    def _open(self, mode: str) -> Any:
        import wandb  # noqa: PLC0415

        tracking = self.config.tracking
        return wandb.init(
            project=tracking.project,
            entity=tracking.entity,
            group=tracking.group,
            mode=mode,  # type: ignore[arg-type]
            name=self.name,
            config=asdict(self.config),
            dir=str(self.folder),
            reinit="finish_previous",
            # No metadata: it has the command line, and the address of the git remote, which may contain a
            # password.
            settings=wandb.Settings(
                console="off",
                x_disable_stats=True,
                silent=True,
                x_disable_meta=True,
                disable_git=True,
                disable_code=True,
            ),
        )

    def log(self, values: Mapping[str, Any]) -> None:
        if self.enabled:
            self.run.log(dict(values))

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        if self.enabled:
            import wandb  # noqa: PLC0415

            self.log({name: wandb.Table(columns=list(columns), data=[list(row) for row in rows])})

    def image(self, name: str, path: Path) -> None:
        if self.enabled:
            import wandb  # noqa: PLC0415

            self.log({name: wandb.Image(str(path))})

    @contextlib.contextmanager
    def follow(self, path: Path, prefix: str) -> Iterator[None]:
        """Mirror the lines of a metrics.jsonl while it is being written by a worker."""
        if not self.enabled:
            yield
            return
        stop = threading.Event()
        self.run  # noqa: B018  # opened here: W&B must not be started from the thread
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
        """True if a run that produced nothing new can skip W&B: it has no group, or its group already has
        it.
        """
        group = self.config.tracking.group
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
                    handle.write(f"{self.config.tracking.group}\n")


def _parsed(line: bytes) -> dict[str, Any]:
    """The values of a step; an earlier step than any other if the line is incomplete or damaged."""
    try:
        values = parse_object(line, "") if line.endswith(b"\n") else {}
    except LarkError:
        values = {}
    return values if isinstance(values.get("step"), int) else {"step": -1}
