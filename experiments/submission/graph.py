"""The union of all trials' steps, each once, with the steps that must be finished before it.

Pure: nothing is read or started.
"""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter

from lark.names import file_name
from lark.work.operation import Step


@dataclass(frozen=True)
class SweepStep:
    """A step in the graph of a sweep."""

    name: str
    """Unique in its graph; also a file name."""
    title: str
    key: tuple[str, ...]
    """`Step.key`."""
    artifacts: tuple[str, ...]
    """Folders below the outputs."""
    trial: int
    """The first trial that needs it, whose configuration makes it."""
    after: tuple[str, ...]
    """Names of the steps that must be finished before it starts."""
    gpus: int = 0
    cpus: int = 1
    seconds: float | None = None
    """Estimated time; None if it is negligible or unknown."""


def graph(trials: Sequence[Sequence[Step]]) -> list[SweepStep]:
    """The graph of the trials' steps, each after those it depends on.

    A step whose artifacts are all made by another one (scores by a pass that also measures entropy) is left
    to that one. If two passes share only some artifacts, the second one comes after the first and makes the
    rest.
    """
    unique: dict[tuple[str, ...], tuple[int, Step]] = {}
    for trial, steps in enumerate(trials):
        for step in steps:
            unique.setdefault(step.key, (trial, step))
    together = [set(_folders(step)) for _, step in unique.values()]
    makers: dict[str, list[str]] = defaultdict(list)
    largest = []
    for trial, step in unique.values():
        folders = _folders(step)
        if any(set(folders) < others for others in together):
            continue
        largest.append((trial, step))
        for folder in folders:
            makers[folder].append(_name(step))
    nodes = {}
    for trial, step in largest:
        name = _name(step)
        nodes[name] = SweepStep(name, step.title, step.key, _folders(step), trial, _after(step, makers))
    # Trials are in order, but a larger step of a later trial can be what an earlier one needs.
    order = TopologicalSorter({name: node.after for name, node in nodes.items()})
    return [nodes[name] for name in order.static_order()]


def _folders(step: Step) -> tuple[str, ...]:
    return tuple(artifact.folder.as_posix() for artifact in step.artifacts)


def _name(step: Step) -> str:
    digest = hashlib.sha256(" ".join(step.key).encode()).hexdigest()[:8]
    return file_name(f"{step.operation.name}-{step.artifacts[0].name}-{digest}")


def _after(step: Step, makers: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    inputs = [source.folder.as_posix() for source in step.needs]
    needed = [makers[folder][0] for folder in inputs if folder in makers]
    for folder in _folders(step):
        sharing = makers[folder]
        needed += sharing[: sharing.index(_name(step))]
    return tuple(dict.fromkeys(needed))


def remaining(unfinished: Sequence[SweepStep]) -> dict[str, float]:
    """For each unfinished step, the time from its start to the end of the longest chain of steps after it."""
    seconds = {step.name: step.seconds or 0.0 for step in unfinished}
    longest = dict(seconds)
    for step in reversed(unfinished):
        for name in step.after:
            if name in longest:
                longest[name] = max(longest[name], seconds[name] + longest[step.name])
    return longest
