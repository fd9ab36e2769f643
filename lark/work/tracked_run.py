"""A run in Weights & Biases or in trackio. Imported lazily: both take seconds, and tracking=none must work
without them.
"""

import contextlib
import io
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lark.config import Tracking

log = logging.getLogger(__name__)

LONGEST_TAG = 64
"""Characters of a tag that W&B accepts."""


@dataclass(frozen=True)
class Description:
    """What a tracking service shows about a run, beside its numbers."""

    name: str
    settings: Mapping[str, Any]
    tags: Sequence[str]
    outputs: Path
    """The folder of all artifacts, for a service that keeps all runs in one place."""


class TrackedRun(Protocol):
    """A run that is being logged."""

    def log(self, values: Mapping[str, Any]) -> None: ...

    def summarise(self, values: Mapping[str, float]) -> None:
        """Show results in the list of runs."""

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None: ...

    def image(self, name: str, path: Path) -> None: ...

    def finish(self) -> None: ...


def open_run(tracking: Tracking, folder: Path, description: Description) -> TrackedRun:
    """Open a run of the service that the settings choose."""
    if tracking.mode == "trackio":
        return TrackioRun(tracking, description)
    return WandbRun(tracking, folder, description)


class WandbRun:
    """A run of Weights & Biases, online or in a file of the run's folder."""

    def __init__(self, tracking: Tracking, folder: Path, description: Description) -> None:
        import wandb  # noqa: PLC0415

        os.environ.setdefault("WANDB_SILENT", "true")
        try:
            self.run = _start_wandb(tracking.mode, tracking, folder, description)
        except wandb.Error as error:
            if tracking.mode != "online":
                raise
            reason = " ".join(str(error).split())
            log.warning(
                "W&B cannot be used online (%s): logging to %s/wandb; `wandb sync` uploads it later.",
                reason,
                folder,
            )
            self.run = _start_wandb("offline", tracking, folder, description)

    def log(self, values: Mapping[str, Any]) -> None:
        self.run.log(dict(values))

    def summarise(self, values: Mapping[str, float]) -> None:
        self.run.summary.update(dict(values))

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        import wandb  # noqa: PLC0415

        self.log({name: wandb.Table(columns=list(columns), data=[list(row) for row in rows])})

    def image(self, name: str, path: Path) -> None:
        import wandb  # noqa: PLC0415

        self.log({name: wandb.Image(str(path))})

    def finish(self) -> None:
        self.run.finish()


def _start_wandb(mode: str, tracking: Tracking, folder: Path, description: Description) -> Any:
    import wandb  # noqa: PLC0415

    return wandb.init(
        project=tracking.project,
        entity=tracking.entity,
        group=tracking.group,
        mode=mode,  # type: ignore[arg-type]
        name=description.name,
        config=dict(description.settings),
        tags=[tag[:LONGEST_TAG] for tag in description.tags],
        dir=str(folder),
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


class TrackioRun:
    """A run of trackio, in a database on this machine. It has no tags and no summary: tags are settings of
    the run, and the last value of a scalar is its result.
    """

    def __init__(self, tracking: Tracking, description: Description) -> None:
        # Before the import, which reads it. In the outputs, where all runs are together.
        os.environ.setdefault("TRACKIO_DIR", str(description.outputs / "trackio"))
        import trackio  # noqa: PLC0415

        self.service = trackio
        with _quiet():
            trackio.init(
                project=tracking.project,
                name=description.name,
                group=tracking.group,
                config={**description.settings, "tags": list(description.tags)},
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def log(self, values: Mapping[str, Any]) -> None:
        self.service.log(dict(values))

    def summarise(self, values: Mapping[str, float]) -> None:
        """Nothing: the values were logged."""

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self.log({name: self.service.Table(columns=list(columns), data=[list(row) for row in rows])})

    def image(self, name: str, path: Path) -> None:
        self.log({name: self.service.Image(str(path))})

    def finish(self) -> None:
        with _quiet():
            self.service.finish()


def _quiet() -> contextlib.AbstractContextManager[object]:
    """Hides what trackio prints about its dashboard and about uploads that there are not."""
    return contextlib.redirect_stdout(io.StringIO())
