"""The work of an operation on a Ray cluster. A step's worker process leads; actors on the nodes do the work.

Shards: there are as many actors as the cluster has room for, more when nodes join. Each loads what it needs once, and then gets
one shard after the other (lark/runtime/dispatch.py). Shards and their results are files on the shared disk, the same as on one
machine; only names pass through Ray. If a node or a process is lost, its shards go to others. A shard that fails three times
ends the step, and finished shards are kept.
"""

import contextlib
import logging
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from lark.errors import LarkError
from lark.runtime.actor import Actor, work_of
from lark.runtime.cluster import alive, connect
from lark.runtime.dispatch import ATTEMPTS, Dispatch
from lark.runtime.failures import Failure, RemoteError
from lark.runtime.gang import run_together
from lark.runtime.operation import Counts, Job
from lark.runtime.sharding import Bar, Done, Shard, Together, Work

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""Time between two looks at which nodes there are."""
WAITING_SECONDS = 60.0
"""After this time without any actor, the log says what is awaited."""
GONE = "its node has died"
"""A part of Ray's message."""


def run_on_cluster(function: Callable[[Job], Counts], job: Job, target: str) -> Counts:
    """Do the work of a job's function on the cluster. Called in the worker process of the step."""
    ray = connect(job.machine.cluster)
    if isinstance(function, Together):
        return run_together(ray, job, target)
    return _Crew(ray, job, target, work_of(function, job)).run()


@dataclass
class _Member:
    """An actor, as the leader sees it."""

    handle: Any
    name: str
    loaded: bool = False
    shards: list[Shard] = field(default_factory=list)


class _Crew:
    """The actors of a step, and the shards that they do."""

    def __init__(self, ray: Any, job: Job, target: str, work: Work) -> None:
        self.ray, self.job, self.work = ray, job, work
        self.gpus = 0 if job.on_cpu or job.machine.device == "cpu" else max(1, job.gpus)
        self.cpus = job.machine.threads * max(1, self.gpus)
        self.calls: dict[Any, _Member] = {}
        """What is being done: the reference of each call, and its actor."""
        self.idle: list[_Member] = []
        self.started = 0
        self.said: set[str] = set()
        self.node_losses = 0

    def run(self) -> Counts:
        missing = self.work.missing(self.work.shards)
        if not missing:
            return self.work.counts(Done())
        self.queue = Dispatch(missing, self.work.many)
        sizes = {shard.name: shard.size for shard in missing}
        left, total = sum(sizes.values()), sum(shard.size for shard in self.work.shards)
        try:
            with Bar(self.work, self.work.label, max(total, left), max(total, left) - left) as bar:
                waited = time.monotonic()
                while self.queue or self.calls:
                    self._fill()
                    if any(member.loaded for member in [*self.idle, *self.calls.values()]):
                        waited = time.monotonic()
                    elif time.monotonic() - waited > WAITING_SECONDS:
                        self._say(
                            f"No process on the cluster is ready yet. Each needs {self._room()}; `ray status` shows what is free."
                        )
                    ready, _ = self.ray.wait(list(self.calls), num_returns=1, timeout=POLL_SECONDS)
                    for call in ready:
                        bar.update(sum(sizes[shard.name] for shard in self._heard(call)))
                return self.work.counts(Done(left, bar.rate))
        finally:
            self._close()

    def _room(self) -> str:
        return f"{self.gpus} GPU and {self.cpus} CPU" if self.gpus else f"{self.cpus} CPU"

    def _fill(self) -> None:
        """Give shards to idle actors, and start actors if there is room and work for more."""
        while self.idle and self.queue:
            member = self.idle.pop()
            member.shards = self.queue.take(self.started_now)
            call = member.handle.run.remote([shard.name for shard in member.shards])
            self.calls[call] = member
        wanted = self.job.machine.workers or self._slots()
        loading = sum(not member.loaded for member in self.calls.values())
        for _ in range(min(wanted - self.started_now, len(self.queue) - loading)):
            self._start()

    @property
    def started_now(self) -> int:
        return len(self.idle) + len(self.calls)

    def _slots(self) -> int:
        """How many actors the nodes that are alive have room for."""
        nodes = alive(self.ray.nodes())
        return sum(min(node.cpus // self.cpus, node.gpus // self.gpus if self.gpus else node.cpus) for node in nodes)

    def _start(self) -> None:
        self.started += 1
        name = f"{self.started:05d}-{uuid.uuid4().hex[:8]}"
        made = self.ray.remote(Actor).options(num_cpus=self.cpus, num_gpus=self.gpus, max_restarts=0, max_task_retries=0)
        member = _Member(made.remote(), name)
        self.calls[member.handle.load.remote(str(self.job.folder), name)] = member

    def _heard(self, call: Any) -> list[Shard]:
        """Handle the end of a call; return the shards that are done."""
        member = self.calls.pop(call)
        try:
            outcome = self.ray.get(call)
        except self.ray.exceptions.RayError as error:
            self._lost(member, error)
            return []
        for warning in outcome["warnings"]:
            self._say(warning)
        shards, member.shards = member.shards, []
        if "failure" in outcome:
            self._failed(member, shards, Failure(**outcome["failure"]), outcome["trace"])
            return []
        member.loaded = True
        self.idle.append(member)
        return shards

    def _failed(self, member: _Member, shards: list[Shard], failure: Failure, trace: str) -> None:
        """Try shards again in another process, since this one may be unusable after an error."""
        self.ray.kill(member.handle)
        sys.stderr.write(trace)
        if not member.loaded:
            raise RemoteError(failure)
        if (worst := self.queue.failed(self.work.missing(shards))) is not None:
            self._stop(worst, failure)
        log.warning("A shard failed and is tried again: %s", failure.message)

    def _lost(self, member: _Member, error: Exception) -> None:
        """Give the shards of an actor that has died to others: its process ended, or its node was lost."""
        missing = self.work.missing(member.shards)
        with contextlib.suppress(self.ray.exceptions.RayError):
            self.ray.kill(member.handle)  # it may only be out of reach
        gone = GONE in str(error) or isinstance(error, self.ray.exceptions.ActorUnavailableError)
        what = "a node" if gone else "a process"
        log.warning("Lost %s of the cluster; %d of its %d shards go to others.", what, len(missing), len(member.shards))
        if gone:
            self.node_losses += 1
            worst = self.queue.lost(missing)
        else:
            worst = self.queue.failed(missing)
            if not member.loaded and self.started > 3 * ATTEMPTS and not self.idle and not self.calls:
                raise LarkError(f"Processes on the Ray cluster end while they start: {str(error).splitlines()[0]}")
        if worst is not None:
            text = "A process on the cluster was killed, most likely because it ran out of memory."
            self._stop(worst, Failure(text, True, "" if not gone else None))

    def _stop(self, shard: Shard, failure: Failure) -> None:
        """End the step because of a shard."""
        times = self.queue.failures[shard.name] or self.queue.losses[shard.name]
        text = f"{failure.message} This occurred {times} times in {self.work.describe(shard)}. Finished shards are kept."
        raise RemoteError(replace(failure, message=text))

    def _say(self, warning: str) -> None:
        """Log a warning once, however many actors have it."""
        if warning not in self.said:
            self.said.add(warning)
            log.warning("%s", warning)

    def _close(self) -> None:
        """End the actors. Those that have loaded something end it themselves first."""
        closing = [member.handle.close.remote() for member in self.idle]
        with contextlib.suppress(self.ray.exceptions.RayError):
            self.ray.wait(closing, num_returns=len(closing), timeout=20) if closing else None
        for member in [*self.idle, *self.calls.values()]:
            with contextlib.suppress(self.ray.exceptions.RayError):
                self.ray.kill(member.handle)
