"""The folder of a submitted sweep. The store records what became of each step: this only says what to make.

outputs/runs/sweeps/<experiment>-<scale>-<digest>/
    graph.json                     the steps, with the configuration of each trial; written by `submit`
    logs/<step>.log                output of the step, started by Ray
    logs/<step>/<job>_0_log.out    output of the step as a SLURM job, among submitit's files
    driver.lock                    held by the process that has given the steps to Ray, as long as it works
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.harness.sweep import Sweep
from experiments.submission.checks import require_intact
from experiments.submission.graph import SweepStep
from lark.config import Config, from_dict
from lark.reading.untrusted import readable_object
from lark.secrets import redact
from lark.store.locks import holder
from lark.store.manifest import MANIFEST, Manifest, edit_manifest, own_manifest
from lark.store.store import damage, lock_file, write_text

SWEEPS = Path("runs") / "sweeps"
GRAPH = "graph.json"
DRIVER = "driver.lock"


class Submission:
    """A submitted sweep."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outputs = folder.parents[len(SWEEPS.parts)]
        graph = readable_object(folder / GRAPH) or {}
        require_intact(folder, graph.pop("digest", None) == _digest(graph))
        self.title: str = graph["title"]
        self.arguments: list[str] = graph["arguments"]
        self.place: str = graph["place"]
        """ray or slurm."""
        self.address: str | None = graph["address"]
        """host:port of the Ray cluster; None if the driver starts one, and with SLURM."""
        self.trials: list[dict[str, Any]] = graph["trials"]
        """Their configurations."""
        self.steps = {step["name"]: _sweep_step(step) for step in graph["steps"]}

    @property
    def jobs(self) -> dict[str, str]:
        """The latest SLURM job of each step: submitit keeps the script of each job."""
        scripts = sorted(self.folder.glob("logs/*/*_submission.sh"), key=lambda file: file.lstat().st_mtime)
        return {script.parent.name: script.name.partition("_")[0] for script in scripts}

    @property
    def driver(self) -> str | None:
        """The process that has given the steps to Ray, if it works."""
        return holder(self.folder / DRIVER)

    def config(self, step: SweepStep) -> Config:
        return from_dict(self.trials[step.trial])

    def log_file(self, step: SweepStep) -> Path:
        """The output of a step."""
        logs = self.folder / "logs"
        job = self.jobs.get(step.name) if self.place == "slurm" else None
        return logs / f"{step.name}.log" if job is None else logs / step.name / f"{job}_0_log.out"

    def finished(self, step: SweepStep) -> bool:
        """True if all artifacts of the step are there and intact."""
        return all(_is_finished(self.outputs / artifact) for artifact in step.artifacts)

    def unfinished(self) -> list[SweepStep]:
        return [step for step in self.steps.values() if not self.finished(step)]

    def has_inputs(self, step: SweepStep) -> bool:
        return all(self.finished(self.steps[name]) for name in step.after)

    def maker(self, step: SweepStep) -> str | None:
        """The process that is making the step's artifacts: it holds their locks."""
        locks = [lock_file(self.outputs, Path(artifact)) for artifact in step.artifacts]
        return next(filter(None, map(holder, locks)), None)

    def attempts(self, step: SweepStep) -> list[tuple[Manifest, float]]:
        """The latest attempts at the step's artifacts, and when the manifest of each was written."""
        attempts = []
        for artifact in step.artifacts:
            folder = self.outputs / artifact
            manifest = own_manifest(folder)
            if manifest.status:
                attempts.append((manifest, (folder / MANIFEST).stat().st_mtime))
        return attempts

    def error(self, step: SweepStep) -> str | None:
        """Why the latest attempt at a step failed, if it did."""
        errors = [manifest.error for manifest, _ in self.attempts(step) if manifest.status == "failed"]
        return next((error or "the reason is unknown" for error in errors), None)

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


def folder_of(sweep: Sweep) -> Path:
    """The folder of a sweep. Settings that cannot change a result are not part of its name."""
    digest = hashlib.sha256(json.dumps(sorted(sweep.overrides)).encode()).hexdigest()[:6]
    return sweep.store.root / SWEEPS / f"{sweep.title}-{sweep.scale}-{digest}"


def write_graph(folder: Path, sweep: Sweep, steps: Sequence[SweepStep], address: str | None) -> None:
    (folder / "logs").mkdir(exist_ok=True)
    configs = [trial.config for trial in sweep.trials]
    values = {
        "title": sweep.title,
        "arguments": sweep.arguments,
        "place": configs[0].hardware.cluster,
        "address": address,
        "trials": [asdict(config) for config in configs],
        "steps": [asdict(step) for step in steps],
    }
    graph = json.loads(json.dumps(values, default=str))
    write_text(folder / GRAPH, json.dumps({**graph, "digest": _digest(graph)}, indent=1) + "\n")


def _digest(graph: dict[str, Any]) -> str:
    # With the fields of a step: the graph of another version of this code does not match.
    fields = sorted(SweepStep.__dataclass_fields__)
    return hashlib.sha256(json.dumps([fields, graph], sort_keys=True).encode()).hexdigest()[:16]


def _sweep_step(values: dict[str, Any]) -> SweepStep:
    """A step from its JSON, in which tuples are lists."""
    for name in ("after", "key", "artifacts"):
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
    manifest = own_manifest(folder)
    return manifest.finished and damage(folder, manifest) is None
