"""The work of an operation on a Ray cluster. A step's worker process leads; actors on the nodes do the
work.

Shards: there are as many actors as the cluster has room for, more when nodes join. Each loads what it needs
once, and then gets one shard after the other (lark/cluster/dispatch.py). Shards and their results are files
on the shared disk, the same as on one machine; only names pass through Ray. If a node or a process is lost,
stopped or stuck, its shards go to others. A shard that fails three times ends the step, and finished shards
are kept.
"""

import contextlib
import logging
import sys
import time
import uuid
from dataclasses import dataclass, field, replace
from typing import Any

from lark.cluster.actor import Actor, work_of
from lark.cluster.dispatch import SHARD_ATTEMPTS, Dispatch
from lark.cluster.gang import run_together
from lark.cluster.losses import Losses
from lark.cluster.nodes import POLL_SECONDS, WAITING_SECONDS, alive, connect, room
from lark.cluster.relay import Tail
from lark.errors import LarkError
from lark.work.failures import RemoteError, WorkerFailure
from lark.work.heartbeat import REMOTE, Silent, Watch
from lark.work.operation import Counts, Job, imported
from lark.work.sharding import Bar, Shard, Together, Work, WorkDone

log = logging.getLogger(__name__)

GONE = "its node has died"
"""A part of Ray's message."""


def run_on_cluster(target: str, job: Job) -> Counts:
    """Do the work of a job's function on the cluster. Called in the worker process of the step."""
    ray = connect(job.machine.cluster)
    function = imported(target)
    if isinstance(function, Together) and job.machine.world > 1:  # a single process needs no others
        return run_together(ray, job, target)
    return _Crew(ray, job, target, work_of(function, job)).run()


@dataclass
class _Member:
    """An actor, as the leader sees it."""

    handle: Any
    name: str
    loaded: bool = False
    shards: list[Shard] = field(default_factory=list)
    since: float = 0.0
    """When it got its shards."""


class _Crew:
    """The actors of a step, and the shards that they do."""

    def __init__(self, ray: Any, job: Job, target: str, work: Work) -> None:
        self.ray, self.job, self.work = ray, job, work
        self.gpus = 0 if job.on_cpu or job.machine.device == "cpu" else max(1, job.gpus)
        self.cpus = job.machine.threads * max(1, self.gpus)
        self.calls: dict[Any, _Member] = {}
        """Calls under way: the reference of each call, and its actor."""
        self.idle: list[_Member] = []
        self.started = 0
        self.logged: set[str] = set()
        self.losses = Losses()
        self.watch = Watch(job.folder, job.config.hardware.silence, REMOTE)
        self.watched = time.monotonic()
        self.tail = Tail(job.folder)

    def run(self) -> Counts:
        missing = self.work.missing(self.work.shards)
        if not missing:
            return self.work.counts(WorkDone())
        self.queue = Dispatch(missing, self.work.many)
        remaining = sum(shard.size for shard in missing)
        total = max(remaining, sum(shard.size for shard in self.work.shards))
        try:
            with Bar(self.work, self.work.label, total, total - remaining) as bar:
                self._work_off(bar)
                if self.losses.processes:
                    log.warning("%s", self.losses)
                return self.work.counts(WorkDone(remaining, bar.rate))
        finally:
            self._close()

    def _work_off(self, bar: Bar) -> None:
        """Give out shards until all are done."""
        ready_at = time.monotonic()
        while self.queue or any(member.shards for member in self.calls.values()):
            self._fill()
            if any(member.loaded for member in [*self.idle, *self.calls.values()]):
                ready_at = time.monotonic()
            elif time.monotonic() - ready_at > WAITING_SECONDS:
                self._log_once(
                    f"No process on the cluster is ready yet. Each needs {self._room()}; `ray status`"
                    " shows what is free."
                )
            ended, _ = self.ray.wait(list(self.calls), num_returns=1, timeout=POLL_SECONDS)
            for call in ended:
                bar.update(sum(shard.size for shard in self._heard(call)))
            self._listen()

    def _room(self) -> str:
        return f"{self.gpus} GPU and {self.cpus} CPU" if self.gpus else f"{self.cpus} CPU"

    def _fill(self) -> None:
        """Give shards to idle actors, and start actors if there is room and work for more."""
        while self.idle and self.queue:
            member = self.idle.pop()
            member.shards, member.since = self.queue.take(self.started_now + 1), time.monotonic()
            call = member.handle.run.remote([shard.name for shard in member.shards])
            self.calls[call] = member
        limit = self.job.machine.workers or room(alive(self.ray.nodes()), self.cpus, self.gpus)
        loading = sum(not member.loaded for member in self.calls.values())
        for _ in range(min(limit - self.started_now, len(self.queue) - loading)):
            self._start()

    @property
    def started_now(self) -> int:
        return len(self.idle) + len(self.calls)

    def _start(self) -> None:
        self.started += 1
        name = f"{self.started:05d}-{uuid.uuid4().hex[:8]}"
        made = self.ray.remote(Actor).options(
            num_cpus=self.cpus, num_gpus=self.gpus, max_restarts=0, max_task_retries=0
        )
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
            self._log_once(warning)
        if "failure" in outcome:
            self._failed(member, WorkerFailure(**outcome["failure"]), outcome["trace"])
            return []
        shards, member.shards = member.shards, []
        if member.loaded:
            self.losses.finished(time.monotonic() - member.since)
        member.loaded = True
        self.idle.append(member)
        return shards

    def _failed(self, member: _Member, failure: WorkerFailure, trace: str) -> None:
        """Try shards again in another process, since this one may be unusable after an error."""
        missing = self._end(member)
        sys.stderr.write(trace)
        if not member.loaded:
            raise RemoteError(failure)
        if (worst := self.queue.failed(missing)) is not None:
            self._stop(worst, failure, self.queue.failures[worst.name])
        log.warning("A shard failed and is tried again: %s", failure.message)

    def _lost(self, member: _Member, error: Exception) -> None:
        """Give the shards of an actor that has died to others: its process ended, or its node was lost."""
        gone = GONE in str(error) or isinstance(error, self.ray.exceptions.ActorUnavailableError)
        missing = self._end(member)
        loss = "a node" if gone else "a process"
        shards = len(member.shards)
        log.warning("Lost %s of the cluster; %d of its %d shards go to others.", loss, len(missing), shards)
        if not gone:
            self._check_start(
                member, f"Processes on the Ray cluster end while they start: {str(error).splitlines()[0]}"
            )
        text = "A process on the cluster was killed, most likely because it ran out of memory."
        if gone:
            text = "A node of the cluster was lost."
        self._return(missing, gone, WorkerFailure(text, True, "" if not gone else None))

    def _listen(self) -> None:
        """Pass on messages, and end actors that are stopped or stuck."""
        self.tail.log(log)
        if self.watch.interval is None or time.monotonic() - self.watched < self.watch.interval:
            return
        self.watched = time.monotonic()
        for silent in self.watch.silent():
            self._silent(silent)

    def _silent(self, silent: Silent) -> None:
        call = next((call for call, member in self.calls.items() if member.name == silent.name), None)
        member = next((member for member in self.idle if member.name == silent.name), None)
        if call is not None:
            member = self.calls.pop(call)
        elif member is not None:
            self.idle.remove(member)
        if member is None:
            return
        missing = self._end(member)
        limit = f"hardware.silence={self.job.config.hardware.silence:g} sets this limit in minutes"
        log.warning(
            "Process %s. It was ended, and %d of its %d shards go to others; %s.%s",
            silent,
            len(missing),
            len(member.shards),
            limit,
            f" It waited for:\n{silent.stack}" if silent.stack else "",
        )
        self._check_start(member, f"Processes on the Ray cluster do not start: process {silent}.")
        self._return(missing, not silent.stack, WorkerFailure(f"Process {silent}.", True))

    def _check_start(self, member: _Member, why: str) -> None:
        """Stop if many processes were lost before they had loaded what they need, and no other is left."""
        if not member.loaded and self.started > 3 * SHARD_ATTEMPTS and not self.idle and not self.calls:
            raise LarkError(why)

    def _end(self, member: _Member) -> list[Shard]:
        """End an actor, which may only be out of reach; return the shards that it has not done."""
        with contextlib.suppress(self.ray.exceptions.RayError):
            self.ray.kill(member.handle)
        self.watch.forget(member.name)
        missing = self.work.missing(member.shards)
        self.losses.add(time.monotonic() - member.since, len(missing), len(member.shards))
        return missing

    def _return(self, shards: list[Shard], gone: bool, failure: WorkerFailure) -> None:
        """Put shards back. `gone`: because of their machine, so they are unlikely to be the cause."""
        worst = self.queue.lost(shards) if gone else self.queue.failed(shards)
        if worst is not None:
            counts = self.queue.losses if gone else self.queue.failures
            self._stop(worst, failure, counts[worst.name])

    def _stop(self, shard: Shard, failure: WorkerFailure, times: int) -> None:
        """End the step because of a shard, after as many failures or losses."""
        text = (
            f"{failure.message} This occurred {times} times in {self.work.describe(shard)}. Finished shards"
            " are kept."
        )
        raise RemoteError(replace(failure, message=text))

    def _log_once(self, warning: str) -> None:
        """Log a warning once, however many actors have it."""
        if warning not in self.logged:
            self.logged.add(warning)
            log.warning("%s", warning)

    def _close(self) -> None:
        """End the actors. Those that have loaded something end it themselves first."""
        closing = [member.handle.close.remote() for member in self.idle]
        with contextlib.suppress(self.ray.exceptions.RayError):
            self.ray.wait(closing, num_returns=len(closing), timeout=20) if closing else None
        for member in [*self.idle, *self.calls.values()]:
            with contextlib.suppress(self.ray.exceptions.RayError):
                self.ray.kill(member.handle)
        self.tail.log(log)
        self.tail.close()
        self.watch.close()
