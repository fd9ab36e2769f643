"""The union of all trials' steps, each once, with the steps that must be finished before it. Pure: nothing
is read or started.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lark.names import file_name
from lark.work.operation import Step


@dataclass(frozen=True)
class Node:
    """A step of a sweep."""

    name: str
    """Unique in its graph; also a file name."""
    step: Step
    trial: int
    """The trial whose configuration makes it."""
    trials: tuple[int, ...]
    """All trials that need it."""
    after: tuple[str, ...]
    """Names of the nodes that must be finished before it starts."""


def graph(trials: Sequence[Sequence[Step]]) -> list[Node]:
    """The graph of the trials' steps, each node after those it depends on.

    A step whose artifacts are all made by another one (scores by a pass that also measures entropy) is left
    to that one. If two passes share only some artifacts, the second one comes after the first and makes the
    rest.
    """
    found: dict[tuple[str, ...], tuple[Step, int]] = {}
    for trial, steps in enumerate(trials):
        for step in steps:
            found.setdefault(step.key, (step, trial))
    kept = {
        key: pair
        for key, pair in found.items()
        if not any(_within(pair[0], other) for other, _ in found.values())
    }
    names = {key: _name(step) for key, (step, _) in kept.items()}
    makers: dict[Path, list[str]] = {}
    for key, (step, _) in kept.items():
        for artifact in step.artifacts:
            makers.setdefault(artifact.folder, []).append(names[key])
    users: dict[str, set[int]] = {name: set() for name in names.values()}
    for trial, steps in enumerate(trials):
        for step in steps:
            for artifact in step.artifacts:
                users[makers[artifact.folder][0]].add(trial)
    nodes = [
        Node(
            names[key],
            step,
            trial,
            tuple(sorted(users[names[key]] | {trial})),
            _after(step, names[key], makers),
        )
        for key, (step, trial) in kept.items()
    ]
    return in_order(nodes)


def _folders(step: Step) -> set[Path]:
    return {artifact.folder for artifact in step.artifacts}


def _within(step: Step, other: Step) -> bool:
    """Whether `other` makes everything that `step` makes, and more."""
    return _folders(step) < _folders(other)


def _name(step: Step) -> str:
    digest = hashlib.sha256(" ".join(step.key).encode()).hexdigest()[:8]
    return file_name(f"{step.operation.name}-{step.artifacts[0].name}-{digest}")


def _after(step: Step, name: str, makers: Mapping[Path, Sequence[str]]) -> tuple[str, ...]:
    needed = [maker for source in step.needs for maker in makers.get(source.folder, [])[:1]]
    for artifact in step.artifacts:
        sharing = makers[artifact.folder]
        needed += sharing[: sharing.index(name)]
    return tuple(dict.fromkeys(needed))


def in_order(nodes: Iterable[Node]) -> list[Node]:
    """The nodes, each after those it depends on; otherwise in their order."""
    left, done, ordered = list(nodes), set[str](), list[Node]()
    while left:
        ready = [node for node in left if done.issuperset(node.after)]
        if not ready:
            raise ValueError(f"steps depend on each other: {', '.join(node.name for node in left)}")
        ordered += ready
        done |= {node.name for node in ready}
        left = [node for node in left if node.name not in done]
    return ordered


def remaining(
    after: Mapping[str, Sequence[str]], seconds: Mapping[str, float], done: Iterable[str] = ()
) -> dict[str, float]:
    """For each node, the time from its start to the end of the longest chain of unfinished nodes that
    begins with it.

    `after`: what each node depends on, each node after those it depends on.
    """
    finished, longest = set(done), dict.fromkeys(after, 0.0)
    for name in reversed(list(after)):
        longest[name] += 0.0 if name in finished else seconds[name]
        for earlier in after[name]:
            longest[earlier] = max(longest[earlier], longest[name])
    return longest
