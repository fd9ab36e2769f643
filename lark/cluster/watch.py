"""Follows training on a Ray cluster: passes its messages on, reports lost nodes, and helps Ray Train to
notice them.

With hardware.elastic, Ray Train chooses the number of processes from reservations that its coordinator, an
actor that all runs on the cluster share, updates every 20 seconds. So after a loss it would ask for a node
that no longer exists. The reservation of a run that was killed also blocks the nodes for three minutes. The
coordinator is therefore asked to update when the nodes change, and starts without reservations: live runs
renew theirs every 20 seconds.
"""

import contextlib
import logging
import os
import threading
import time
from typing import Any

from lark.cluster.nodes import POLL_SECONDS, WAITING_SECONDS, alive, room
from lark.cluster.relay import Tail
from lark.work.heartbeat import REMOTE, Watch
from lark.work.operation import Job

log = logging.getLogger(__name__)

COORDINATOR = "AutoscalingCoordinator"
"""Name and namespace of Ray's actor."""
HEALTH = "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S"
"""Seconds after which Ray Train ends processes that do not answer, and starts all of them again."""
FOREVER = 10**9


class GangWatch:
    """A thread of the step's worker process, while training runs."""

    def __init__(self, ray: Any, job: Job, fewest: int) -> None:
        self.ray, self.job, self.fewest = ray, job, fewest
        self.watch = Watch(job.folder, job.config.hardware.silence, REMOTE)
        self.tail = Tail(job.folder)
        self.nodes: set[str] | None = None
        self.short_since: float | None = None
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._follow, daemon=True, name="gang-watch")
        os.environ.setdefault(HEALTH, str(job.config.hardware.silence * 60 or FOREVER))

    def __enter__(self) -> "GangWatch":
        if self.job.config.hardware.elastic:
            self._coordinate(forget=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()
        self.tail.log(log)
        self.tail.close()
        self.watch.close()

    def _follow(self) -> None:
        checked = time.monotonic()
        while not self.stop.wait(POLL_SECONDS):
            self.tail.log(log)
            if self.watch.interval and time.monotonic() - checked > self.watch.interval:
                checked = time.monotonic()
                for silent in self.watch.silent():
                    log.warning(
                        "Training process %s. All processes start again from the newest complete checkpoint.",
                        silent,
                    )
                    self.watch.forget(silent.name)
            # Of Ray, if its connection is lost: training itself reports that.
            with contextlib.suppress(Exception):
                self._look(self.ray.nodes())

    def _look(self, listed: list[dict[str, Any]]) -> None:
        """Compare the nodes with those seen before."""
        nodes = {node["NodeID"] for node in listed if node["Alive"]}
        if self.nodes is not None and nodes != self.nodes:
            lost = len(self.nodes - nodes)
            if lost:
                log.warning("Lost %d of %d nodes of the cluster.", lost, len(self.nodes))
            if self.job.config.hardware.elastic:
                self._coordinate()
        self.nodes = nodes
        machine = self.job.machine
        self._check_room(room(alive(listed), machine.threads, 1 if machine.device == "cuda" else 0))

    def _check_room(self, there: int) -> None:
        """Warn once if there has been too little room for a while: training waits without a word."""
        if there >= self.fewest:
            self.short_since = None
        elif self.short_since is None:
            self.short_since = time.monotonic()
        elif time.monotonic() - self.short_since > WAITING_SECONDS:
            self.short_since = float("inf")  # once
            elastic = self.job.config.hardware.elastic
            hint = "" if elastic else " With hardware.elastic=true it would continue with fewer."
            log.warning(
                "Training needs room for %d processes; the cluster has room for %d. It waits for nodes to"
                " join.%s",
                self.fewest,
                there,
                hint,
            )

    def _coordinate(self, forget: bool = False) -> None:
        """Let Ray's coordinator look at the nodes again; `forget`: without the reservations that it has."""
        # It does not exist before the first training, and is not part of Ray's interface.
        with contextlib.suppress(Exception):
            actor = self.ray.get_actor(COORDINATOR, namespace=COORDINATOR)
            if forget:
                self.ray.kill(actor, no_restart=False)
            else:
                actor.get_reserved_resources.remote("lark", recompute=True)
