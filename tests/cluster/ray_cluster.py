"""A Ray cluster of several nodes on loopback, for tests. Nodes are processes of this machine."""

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Iterator
from typing import Any

import psutil

SETTINGS = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # loopback addresses are not replaced
    "RAY_TRAIN_V2_ENABLED": "1",
    # A lost node is noticed in seconds.
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "4",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # an actor less to start
}
TOKEN = secrets.token_hex(32)
"""Of all clusters of this process: Ray reads the token once."""
NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "node_ip_address": "127.0.0.1"}


class Nodes:
    """The cluster and its nodes. The head has no CPU for work, so that any other node can be killed."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {**NODE, "num_cpus": 0, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address: str = self.cluster.address
        self.nodes: list[Any] = []

    def add(self, count: int = 1) -> None:
        """Let nodes join."""
        self.nodes += [self.cluster.add_node(**NODE, wait=False) for _ in range(count)]
        self.cluster.wait_for_nodes()

    def working(self) -> Any | None:
        """A node on which an actor is doing shards."""
        for node in self.nodes:
            with contextlib.suppress(psutil.Error):
                processes = psutil.Process(node.all_processes["raylet"][0].process.pid).children()
                if any("Actor.run" in " ".join(process.cmdline()) for process in processes):
                    return node
        return None

    def kill(self, node: Any | None = None) -> None:
        """`kill -9` of a node's raylet (default: the last node's), as when its machine is lost."""
        node = node or self.nodes[-1]
        self.nodes.remove(node)
        for info in node.all_processes["raylet"]:
            os.kill(info.process.pid, signal.SIGKILL)
        self.cluster.worker_nodes.discard(node)
        time.sleep(0.1)
        node.kill_all_processes(check_alive=False, allow_graceful=False)

    def shutdown(self) -> None:
        self.cluster.shutdown()


@contextlib.contextmanager
def nodes(count: int) -> Iterator[Nodes]:
    """A cluster with this many nodes besides its head."""
    before = dict(os.environ)
    os.environ.update(SETTINGS | {"RAY_AUTH_TOKEN": TOKEN})
    try:
        started = Nodes()
        try:
            started.add(count)
            os.environ["RAY_ADDRESS"] = started.address
            yield started
        finally:
            started.shutdown()
    finally:
        os.environ.clear()
        os.environ.update(before)
