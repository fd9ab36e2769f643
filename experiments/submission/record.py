"""The folder of a submitted sweep. The store records what became of each step: this only says what to make.

outputs/runs/sweeps/<experiment>-<scale>-<digest>/
    graph.json       the steps, with the configuration of each trial; written by `submit`
    logs/<step>.log  output of the step
    driver.lock      held by the process that has given the steps to Ray, as long as it works
    jobs.json        the SLURM job of each step
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lark.config import Config, from_dict
from lark.errors import LarkError
from lark.reading.untrusted import readable_object
from lark.secrets import redact
from lark.store.locks import holder
from lark.store.manifest import MANIFEST, Manifest, edit_manifest, read_manifest
from lark.store.store import damage, lock_file, write_text

SWEEPS = Path("runs") / "sweeps"
GRAPH = "graph.json"
JOBS = "jobs.json"
DRIVER = "driver.lock"
NO_EFFECT = ("outputs", "tracking", "hardware", "hydra")
"""Groups of settings that cannot change a result."""


@dataclass(frozen=True)
class SweepStep:
    """A step of a submitted sweep, as graph.json has it."""

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
class Attempt:
    """The latest attempt at an artifact, by its manifest."""

    manifest: Manifest
    started: float
    ended: float

    @property
    def failed(self) -> bool:
        return self.manifest.status == "failed"


class Submission:
    """A submitted sweep."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        values = _read_graph(folder)
        self.title: str = values["title"]
        self.arguments: list[str] = values["arguments"]
        self.place: str = values["place"]
        """ray or slurm."""
        self.address: str | None = values["address"]
        """host:port of the Ray cluster; None if the driver starts one, and with SLURM."""
        self.launcher: dict[str, Any] = values["launcher"]
        self.trials: list[dict[str, Any]] = values["trials"]
        self.steps = {step["name"]: _sweep_step(step) for step in values["steps"]}

    @property
    def outputs(self) -> Path:
        return self.folder.parents[len(SWEEPS.parts)]

    @property
    def jobs(self) -> dict[str, str]:
        return jobs_of(self.folder)

    @property
    def driver(self) -> str | None:
        """The process that has given the steps to Ray, if it works."""
        return holder(self.folder / DRIVER)

    def config(self, step: SweepStep) -> Config:
        return from_dict(self.trials[step.trial]["config"])

    def log_file(self, step: SweepStep) -> Path:
        """The output of a step. A SLURM job writes to submitit's file."""
        job = self.jobs.get(step.name) if self.place == "slurm" else None
        return self.folder / "logs" / (f"{step.name}.log" if job is None else f"{job}_0_log.out")

    def finished(self, step: SweepStep) -> bool:
        """True if all artifacts of the step are there and intact."""
        return all(_is_finished(self.outputs / artifact) for artifact in step.artifacts)

    def unfinished(self) -> list[SweepStep]:
        return [step for step in self.steps.values() if not self.finished(step)]

    def unfinished_jobs(self) -> dict[str, str]:
        """The SLURM jobs of unfinished steps."""
        jobs = self.jobs
        if not jobs:
            return {}  # without a look at all artifacts
        return {step.name: jobs[step.name] for step in self.unfinished() if step.name in jobs}

    def has_inputs(self, step: SweepStep) -> bool:
        return all(self.finished(self.steps[name]) for name in step.after)

    def maker(self, step: SweepStep) -> str | None:
        """The process that is making the step's artifacts: it holds their locks."""
        locks = [lock_file(self.outputs, Path(artifact)) for artifact in step.artifacts]
        return next(filter(None, map(holder, locks)), None)

    def attempts(self, step: SweepStep) -> list[Attempt]:
        """The latest attempts at the step's artifacts. Times are those of the file system."""
        attempts = []
        for artifact in step.artifacts:
            folder = self.outputs / artifact
            try:
                manifest = read_manifest(folder)
                written = (folder / MANIFEST).stat().st_mtime
            except (LarkError, OSError):
                continue
            attempts.append(Attempt(manifest, written - manifest.seconds, written))
        return attempts

    def fail(self, step: SweepStep, reason: str) -> None:
        """Record why a step failed, where the store could not: it was not planned, or its node was lost."""
        if self.maker(step) is not None:
            return  # another run is making it
        for artifact in step.artifacts:
            folder = self.outputs / artifact
            if _is_finished(folder):
                continue
            folder.mkdir(parents=True, exist_ok=True)
            identity = {"kind": folder.parent.name, "fingerprint": folder.name.rpartition("-")[2]}
            edit_manifest(folder, **identity, status="failed", error=redact(reason))


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


def folder_of(outputs: Path, title: str, scale: str, arguments: Sequence[str]) -> Path:
    """The folder of a sweep. Settings that cannot change a result are not part of its name."""
    relevant = sorted(argument for argument in arguments if _group(argument) not in NO_EFFECT)
    digest = hashlib.sha256(json.dumps(relevant).encode()).hexdigest()[:6]
    return outputs / SWEEPS / f"{title}-{scale}-{digest}"


def _group(argument: str) -> str:
    """`hardware` of `+hardware.threads=2` and `hardware/x=y`."""
    return re.split(r"[=./]", argument.lstrip("+~"))[0]


def write_graph(folder: Path, steps: Sequence[SweepStep], **values: Any) -> None:
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    graph = json.loads(json.dumps({**values, "steps": [asdict(step) for step in steps]}, default=str))
    write_text(folder / GRAPH, json.dumps({**graph, "digest": _digest(graph)}, indent=1) + "\n")


def _read_graph(folder: Path) -> dict[str, Any]:
    graph = readable_object(folder / GRAPH) or {}
    if graph.pop("digest", None) != _digest(graph):
        raise LarkError(
            f"{folder / GRAPH} is damaged or of another version: submit the sweep again. Finished steps are"
            " kept."
        )
    return graph


def _digest(graph: dict[str, Any]) -> str:
    # With the fields of a step: the graph of another version of this code does not match.
    fields = sorted(SweepStep.__dataclass_fields__)
    return hashlib.sha256(json.dumps([fields, graph], sort_keys=True).encode()).hexdigest()[:16]


def _sweep_step(values: dict[str, Any]) -> SweepStep:
    """A step from its JSON, in which tuples are lists."""
    for name in ("trials", "after", "key", "artifacts"):
        values[name] = tuple(values[name])
    return SweepStep(**values)


def submitted(outputs: Path, title: str | None = None) -> list[Path]:
    """The folders of submitted sweeps, the latest last; their graphs may be damaged. `title`: only those of
    this experiment.
    """
    graphs = sorted((outputs / SWEEPS).glob(f"*/{GRAPH}"), key=lambda file: file.stat().st_mtime)
    folders = [file.parent for file in graphs]
    return [folder for folder in folders if title is None or folder.name.rsplit("-", 2)[0] == title]


def _is_finished(folder: Path) -> bool:
    try:
        manifest = read_manifest(folder)
    except LarkError:
        return False
    is_its_own = folder.name.endswith(manifest.fingerprint)
    return manifest.finished and is_its_own and damage(folder, manifest) is None
