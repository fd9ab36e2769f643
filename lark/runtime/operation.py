"""One kind of step, as everything else sees it: what it is called, what runs it, what it costs, what can go wrong.

An `Operation` is declared beside the code that does the work (`lark/<package>/operations.py`) and listed in operations.py; a
`Step` is an operation with its artifacts in the plan of one run; a `Job` is what the code is given to do. The pipeline, the
planner, the workers and the experiments act on these objects and never compare an operation's name.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lark.config import Config
from lark.runtime.machine import Machine
from lark.runtime.store import Artifact

if TYPE_CHECKING:
    from lark.planner.estimates import Estimate, Planner

Counts = Mapping[str, Any]
"""What a step reports for the manifest of an artifact; by label (`Mapping[str, Counts]`) where the step has labels."""
Settings = Mapping[str, Any]
"""A few settings of the command line: `{"hardware.zero": 2}`."""


@dataclass(frozen=True)
class Job:
    """What the code of an operation is asked to do. The same in this process and in workers."""

    operation: str
    folder: Path
    """Of the first artifact to make: job file, log, errors. A resumed job finds there what an earlier one finished."""
    outputs: Mapping[str, Path]
    """Folders of the artifacts to make, by label; those that are finished already are not in it."""
    inputs: Mapping[str, Path]
    """Folders of the artifacts that the step depends on, by name."""
    weights: str
    """Where the step's model is: a folder or a hub id. Empty where it has none."""
    config: Config
    machine: Machine
    gpus: int = 1
    """GPUs of each process. 0: the processes see each other's, and each uses the one of its local rank."""
    rank: int = 0
    world: int = 1

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def device(self) -> str:
        """Where this process's model goes."""
        if self.machine.device == "cpu":
            return "cpu"
        return "cuda:0" if self.gpus else f"cuda:{os.environ.get('LOCAL_RANK', '0')}"


def _one_gpu(config: Config) -> int:
    return 1


@dataclass(frozen=True)
class Operation:
    """One kind of step: all that the pipeline, the planner and the command line know about it."""

    name: str
    """In logs, in plans, and for `force=`."""
    stage: str
    """What `stages=` calls it."""
    run: Callable[[Job], Counts] | str
    """Called in this process, or "package.module:function", imported and called in workers."""
    processes: Literal["one", "all", "sharing"] = "all"
    """one: a single process. all: every process works on its own share. sharing: as all, but several GPUs can hold one model."""
    gpus: Callable[[Config], int] = _one_gpu
    """GPUs of each process (see `Job.gpus`)."""
    collect: Callable[[Job, Counts], Counts] | None = None
    """In this process, when every worker is done: put their shards together. Returns the counts with what it adds."""
    check: Callable[[Config, Machine], None] | None = None
    """Before anything runs: packages, files, settings that cannot work. Raises LarkError."""
    preview: Callable[[Config, Mapping[str, Path]], None] | None = None
    """When the first of its inputs is there, long before it runs: what can be known to be wrong from that. Raises LarkError."""
    notice: Callable[[Config, Counts, bool], None] | None = None
    """Afterwards: log what the user should know. The last argument: whether it was made just now."""
    forget: Callable[[Path], None] | None = None
    """Before it is forced: drop what is kept outside of the artifact's folder."""
    curve: str = ""
    """A JSON-lines file in its folder that is mirrored to W&B while it runs."""
    cost: Callable[["Planner", "Step"], "Estimate | None"] | None = None
    """What a step takes: FLOPs, seconds, memory, disk. None: next to nothing."""
    remedies: Callable[[Config, Machine, int], Iterator[Settings]] | None = None
    """Settings that may make it fit, least intrusive first; given the tokens of the longest trajectory."""


@dataclass(frozen=True)
class Step:
    """An operation with its artifacts, in the plan of one run."""

    operation: Operation
    artifacts: tuple[Artifact, ...]
    """Made together, in one go."""
    weights: str | Artifact = ""
    """Where its model comes from. In no fingerprint: the model's identity is in the artifacts' `depends`."""
    labels: tuple[str, ...] = ()
    """One for each artifact when the step makes several: benchmark names, or the outputs of a scoring pass."""
    model: Literal["", "base", "trained"] = ""
    """Which student an evaluation is about."""
    purpose: str = ""
    """The analysis that asked for it (`analysis.name`), also a name for `force=`."""
    apart: bool = field(default=False)
    """Whether each artifact has its own inputs, which are then named with its label: `generations:aime24`."""

    @property
    def stage(self) -> str:
        return self.operation.stage

    @property
    def title(self) -> str:
        """In plans: evaluating the base model is not evaluating a trained student."""
        return f"{self.operation.name} (base model)" if self.model == "base" else self.operation.name

    @cached_property
    def key(self) -> tuple[str, ...]:
        """Tells it from other steps, of other runs as well."""
        return (self.operation.name, *(artifact.fingerprint for artifact in self.artifacts))

    @cached_property
    def inputs(self) -> Mapping[str, Artifact]:
        if not self.apart:
            return self.artifacts[0].inputs
        pairs = zip(self.artifacts, self.labels, strict=True)
        return {f"{name}:{label}": source for artifact, label in pairs for name, source in artifact.inputs.items()}

    @cached_property
    def needs(self) -> tuple[Artifact, ...]:
        """Every artifact that must be there before it runs."""
        sources = [source for artifact in self.artifacts for source in artifact.inputs.values()]
        return (*sources, *([self.weights] if isinstance(self.weights, Artifact) else []))
