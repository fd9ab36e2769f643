"""The union of all trials' steps, each once, with the steps that must be finished before it.

Pure: nothing is read or started.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

from lark.names import file_name
from lark.work.operation import Step


@dataclass(frozen=True)
class Vertex:
    """A step in the graph of a sweep."""

    name: str
    """Unique in its graph; also a file name."""
    step: Step
    trial: int
    """The trial whose configuration makes it."""
    trials: tuple[int, ...]
    """All trials that need it."""
    after: tuple[str, ...]
    """Names of the vertices that must be finished before it starts."""


def graph(trials: Sequence[Sequence[Step]]) -> list[Vertex]:
    """The graph of the trials' steps, each vertex after those it depends on.

    A step whose artifacts are all made by another one (scores by a pass that also measures entropy) is left
    to that one. If two passes share only some artifacts, the second one comes after the first and makes the
    rest.
    """
    unique: dict[tuple[str, ...], Step] = {}
    first_trial: dict[tuple[str, ...], int] = {}
    for number, steps in enumerate(trials):
        for step in steps:
            unique.setdefault(step.key, step)
            first_trial.setdefault(step.key, number)
    largest = [step for step in unique.values() if not _is_within_another(step, unique.values())]
    makers = _makers(largest)
    users = _users(trials, makers)
    vertices = {}
    for step in largest:
        name = _name(step)
        number = first_trial[step.key]
        needed_by = tuple(sorted(users[name] | {number}))
        vertices[name] = Vertex(name, step, number, needed_by, _after(step, makers))
    # Trials are in order, but a larger step of a later trial can be what an earlier one needs.
    order = TopologicalSorter({name: vertex.after for name, vertex in vertices.items()})
    return [vertices[name] for name in order.static_order()]


def _makers(steps: Iterable[Step]) -> dict[Path, list[str]]:
    """The names of the steps that make each folder."""
    makers: dict[Path, list[str]] = defaultdict(list)
    for step in steps:
        for artifact in step.artifacts:
            makers[artifact.folder].append(_name(step))
    return makers


def _users(trials: Sequence[Sequence[Step]], makers: Mapping[Path, Sequence[str]]) -> dict[str, set[int]]:
    """The trials that need each step."""
    users: dict[str, set[int]] = defaultdict(set)
    for number, steps in enumerate(trials):
        for step in steps:
            for artifact in step.artifacts:
                users[makers[artifact.folder][0]].add(number)
    return users


def _is_within_another(step: Step, others: Iterable[Step]) -> bool:
    """True if another step makes everything that `step` makes, and more."""
    return any(_folders(step) < _folders(other) for other in others)


def _folders(step: Step) -> set[Path]:
    return {artifact.folder for artifact in step.artifacts}


def _name(step: Step) -> str:
    digest = hashlib.sha256(" ".join(step.key).encode()).hexdigest()[:8]
    return file_name(f"{step.operation.name}-{step.artifacts[0].name}-{digest}")


def _after(step: Step, makers: Mapping[Path, Sequence[str]]) -> tuple[str, ...]:
    needed = [makers[source.folder][0] for source in step.needs if source.folder in makers]
    for artifact in step.artifacts:
        sharing = makers[artifact.folder]
        needed += sharing[: sharing.index(_name(step))]
    return tuple(dict.fromkeys(needed))


def remaining(
    after: Mapping[str, Sequence[str]], seconds: Mapping[str, float], done: Iterable[str] = ()
) -> dict[str, float]:
    """For each step, the time from its start to the end of the longest chain of unfinished steps after it.

    `after`: names of the steps that each depends on, each after those it depends on.
    """
    finished = set(done)
    longest = dict.fromkeys(after, 0.0)
    for name in reversed(list(after)):
        if name not in finished:
            longest[name] += seconds[name]
        for earlier in after[name]:
            longest[earlier] = max(longest[earlier], longest[name])
    return longest
