"""Operations, steps and jobs: the name of a kind of work, what runs it, what it costs and what can go
wrong.

An `Operation` is declared in `lark/pipeline/operations/<stage>.py` and listed in
`lark/pipeline/registry.py`. A `Step` is an operation with its artifacts in the plan of one run. A `Job` is
what the code is asked to do. The pipeline, the planner, the workers and the experiments use these objects
and never compare an operation's name.
"""

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lark.config import Config
from lark.store.store import Artifact, Kind
from lark.work.machine import Machine

if TYPE_CHECKING:
    from lark.planner.estimates import Estimate, Planner

Counts = Mapping[str, Any]
"""The numbers that a step reports for the manifest of an artifact; by label (`Mapping[str, Counts]`) if the
step has labels.
"""
Settings = Mapping[str, Any]
"""Command-line settings: `{"hardware.zero": 2}`."""


def imported(target: str) -> Any:
    """The function or class that "package.module:name" names."""
    module, name = target.split(":")
    return getattr(importlib.import_module(module), name)


@dataclass(frozen=True)
class Job:
    """One request to the code of an operation. The same in this process and in workers."""

    operation: str
    folder: Path
    """Folder of the first artifact to make, with the job file, log and errors. A resumed job finds finished
    parts there.
    """
    outputs: Mapping[str, Path]
    """Folders of the artifacts to make, by label, without those that are already finished."""
    inputs: Mapping[str, Path]
    """Folders of the artifacts that the step depends on, by name."""
    weights: str
    """Location of the step's model: a folder or a hub id. Empty if it has no model."""
    config: Config
    machine: Machine
    gpus: int = 1
    """GPUs per process. 0: every process sees the GPUs of all, and uses the one of its local rank."""
    on_cpu: bool = False
    """True if it needs no GPU (`Operation.on_cpu`)."""
    allocator: str = ""
    """Settings of PyTorch's GPU memory allocator (`Operation.allocator`)."""
    rank: int = 0
    world: int = 1
    actor: str = ""
    """Name of this process among the actors of a Ray cluster. Empty: it is not one of them."""

    @property
    def writer(self) -> str:
        """A part of file names that no other process of this job uses."""
        return self.actor or f"{self.rank:05d}"

    @property
    def is_main(self) -> bool:
        return self.rank == 0 and not self.actor

    @property
    def device(self) -> str:
        """Device of this process's model."""
        if self.machine.device == "cpu":
            return "cpu"
        return "cuda:0" if self.gpus else f"cuda:{os.environ.get('LOCAL_RANK', '0')}"


EXPANDABLE = "expandable_segments:True"
"""For operations whose batches have many different lengths, which would otherwise fragment a GPU's memory.
Not for engines: the GPUs of a shared model exchange memory, which such segments do not allow.
"""


def _one_gpu(config: Config) -> int:
    return 1


@dataclass(frozen=True)
class Operation:
    """One kind of work: everything that the pipeline, the planner and the command line know about it."""

    name: str
    """Name in logs, in plans and for `force=`."""
    stage: str
    """The stage it belongs to, as in `stages=`. Empty: none; it runs only if another step needs its
    artifact.
    """
    run: Callable[[Job], Counts] | str
    """A function that is called in this process, or "package.module:function", which is imported and called
    in workers. How the work can be divided is declared with the function: `in_shards`, `together`
    (lark/work/sharding.py), or not at all.
    """

    # Where it runs.
    processes: Literal["one", "all", "sharing"] = "all"
    """one: a single process. all: every process works on its own share. sharing: as all, but several GPUs
    can hold one model.
    """
    gpus: Callable[[Config], int] = _one_gpu
    """GPUs per process (see `Job.gpus`)."""
    on_cpu: bool = False
    """True if it needs no GPU, wherever it runs."""
    allocator: str = ""
    """PYTORCH_ALLOC_CONF of its workers on GPUs, unless the user has set it. Empty: PyTorch's default."""

    # Functions that the pipeline calls in its own process, in this order. Each is optional.
    fetch: Callable[[Config], bool] | None = None
    """Before the plan is final: downloads inputs whose content is part of fingerprints. Returns whether any
    were missing.
    """
    check: Callable[[Config, Machine], None] | None = None
    """Before anything runs: checks packages, files and settings. Raises LarkError."""
    preview: Callable[[Config, Mapping[str, Path]], None] | None = None
    """As soon as its first input exists, long before it runs: finds errors that this input shows. Raises
    LarkError.
    """
    forget: Callable[[Path], None] | None = None
    """Before it is forced: deletes what is kept outside the artifact's folder."""
    carry: Callable[[Job], None] | None = None
    """Before it runs, also if it is forced: copies what its inputs have already into the job's folders."""
    prepare: Callable[[Job], None] | None = None
    """Before it runs, unless it is forced: copies what earlier work has left into the job's folders."""
    curve: str = ""
    """While it runs: a JSON-lines file in its folder that is mirrored to W&B."""
    collect: Callable[[Job, Counts], Counts] | None = None
    """When all workers are done: merges their shards. Returns the counts, with its own added."""
    card: Callable[[Path, Counts], str] | None = None
    """Afterwards: the text of a README.md that describes its artifact to others. Not part of the artifact:
    it can be edited.
    """
    notice: Callable[[Config, Counts, bool], None] | None = None
    """Afterwards: logs what the user should know. The last argument: whether it was made in this run."""

    # For the planner.
    cost: Callable[["Planner", "Step"], "Estimate | None"] | None = None
    """Cost of a step: FLOPs, seconds, memory, disk; None if the size of its model is unknown. Without a
    function: negligible.
    """
    row_seconds: float = 0.0
    """Processor time per trajectory in the pipeline's own process: of the whole work, or of merging shards.
    Measured with responses of 20,000 characters; matters for pools of millions.
    """
    shard_rows: int = 0
    """Trajectories of a shard, if that work is divided on a cluster. 0: one process does it."""
    remedies: Callable[[Config, Machine, int], Iterator[Settings]] | None = None
    """Settings that may make it fit, least intrusive first; given the tokens of the longest trajectory."""
    settings: tuple[str, ...] = ()
    """Prefixes of the settings that it reads and that runs without it do not: `sketch`, `method.judge.path`.
    A run refuses such a setting if none of its operations reads it (lark/pipeline/unused.py).
    """

    def reads(self, setting: str) -> bool:
        """Whether a setting is one of `settings`, or below one of them."""
        return any(setting == prefix or setting.startswith(f"{prefix}.") for prefix in self.settings)


@dataclass(frozen=True)
class Step:
    """An operation with its artifacts, in the plan of one run."""

    operation: Operation
    artifacts: tuple[Artifact, ...]
    """Artifacts that are made together."""
    weights: str | Artifact = ""
    """Where its model comes from. Not part of a fingerprint: the model's identity is in the artifacts'
    `depends`.
    """
    labels: tuple[str, ...] = ()
    """One label per artifact if the step makes several: benchmark names, or the outputs of a scoring pass."""
    model: Literal["", "base", "trained"] = ""
    """The student of an evaluation."""
    teacher: str = ""
    """The teacher whose artifact it makes, in the stage `teach`."""
    heat: int = 0
    """The heat of teaching that it belongs to, from 1. 0: none; its artifact is the run's own."""
    purpose: str = ""
    """The analysis that needs it (`analysis.name`); `force=` accepts this name too."""
    apart: bool = False
    """True if each artifact has its own inputs, which are then named with its label: `generations:aime24`."""

    @property
    def stage(self) -> str:
        return self.operation.stage

    @property
    def title(self) -> str:
        """Name in plans. It distinguishes an evaluation of the base model from one of a trained student, and
        the teachers and heats from each other.
        """
        heat = f" (heat {self.heat})" if self.heat else ""
        if self.teacher:
            return f"{self.operation.name} {self.teacher}{heat}"
        if heat:
            return f"{self.operation.name}{heat}"
        return f"{self.operation.name} (base model)" if self.model == "base" else self.operation.name

    @cached_property
    def key(self) -> tuple[str, ...]:
        """Identifies the step, also among the steps of other runs."""
        return (self.operation.name, *(artifact.fingerprint for artifact in self.artifacts))

    def makes(self, kind: Kind) -> bool:
        """True if it makes artifacts of this kind."""
        return any(artifact.kind == kind for artifact in self.artifacts)

    @cached_property
    def inputs(self) -> Mapping[str, Artifact]:
        if not self.apart:
            return self.artifacts[0].inputs
        pairs = zip(self.artifacts, self.labels, strict=True)
        return {
            f"{name}:{label}": source for artifact, label in pairs for name, source in artifact.inputs.items()
        }

    @cached_property
    def needs(self) -> tuple[Artifact, ...]:
        """Every artifact that must exist before it runs."""
        sources = [source for artifact in self.artifacts for source in artifact.inputs.values()]
        return (*sources, *([self.weights] if isinstance(self.weights, Artifact) else []))
