"""Several machines in one run. Every node runs the same command; the first one leads, the others lend it their processes.

Only node 0 reads the pool, selects, holds the store's locks and decides what is to be done. The others connect to it
(`hardware.rendezvous`) and wait. For each stage that runs on all nodes it tells them the artifact's folder (on a disk that
all see) and a port; they start the same torchrun with their own node rank, and report how it ended. So a failure anywhere
ends the stage everywhere, and a node that disappears is noticed at once and not when a collective times out.
"""

import json
import logging
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lark.errors import LarkError
from lark.runtime.machine import Machine

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 600
"""How long nodes wait for one another at the start."""


def host_and_port(rendezvous: str) -> tuple[str, int]:
    host, _, port = rendezvous.rpartition(":")
    return host.strip("[]"), int(port)


class Line:
    """A connection on which each message is a line of JSON."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._received = b""

    def fileno(self) -> int:
        return self.connection.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        try:
            self.connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            log.debug("a message to a node that is gone: %s", message)  # whoever reads from it next is told

    def receive(self) -> dict[str, Any] | None:
        """The next message; waits for it. None when the other side is gone."""
        while b"\n" not in self._received:
            try:
                chunk = self.connection.recv(65536)
            except TimeoutError:
                raise
            except OSError:
                return None
            if not chunk:
                return None
            self._received += chunk
        line, self._received = self._received.split(b"\n", maxsplit=1)
        return dict(json.loads(line))

    def close(self) -> None:
        self.connection.close()


class Leader:
    """Node 0's side."""

    def __init__(self, machine: Machine, patience: float = PATIENCE_SECONDS) -> None:
        assert machine.rendezvous is not None
        self.machine = machine
        self.host, port = host_and_port(machine.rendezvous)
        self.followers: dict[int, Line] = {}
        try:
            self.server = socket.create_server((_interface(self.host), port))
        except OSError as error:
            raise LarkError(
                f"hardware.rendezvous={machine.rendezvous} cannot be opened on this node ({error.strerror}): it must be a free "
                "port of the node with hardware.node=0."
            ) from error
        self._gather(patience)

    def _gather(self, patience: float) -> None:
        deadline = time.monotonic() + patience
        while missing := sorted(set(range(1, self.machine.nodes)) - set(self.followers)):
            log.info("nodes     waiting for node %s at %s", ", ".join(map(str, missing)), self.machine.rendezvous)
            self.server.settimeout(max(0.1, deadline - time.monotonic()))
            try:
                line = Line(self.server.accept()[0])
                line.connection.settimeout(10)  # a stranger that says nothing must not hold up the others
                hello = line.receive()
            except TimeoutError:
                if time.monotonic() < deadline:
                    continue
                self.server.close()
                raise LarkError(
                    f"Node {', '.join(map(str, missing))} of hardware.nodes={self.machine.nodes} did not come within "
                    f"{patience:.0f} s: start the same command there with hardware.node=<its number>."
                ) from None
            if not hello or hello.get("node") not in missing:
                line.close()
                continue
            if hello["processes"] != self.machine.processes:
                self.followers[hello["node"]] = line
                self.close(failed=True)
                raise LarkError(
                    f"Node {hello['node']} has {hello['processes']} processes, this one {self.machine.processes}: set the same "
                    "hardware.processes on every node."
                )
            line.connection.settimeout(None)
            self.followers[hello["node"]] = line

    def start(self, folder: Path, processes: int | None, gpus: int = 1) -> str:
        """Have every node start the worker of this artifact; returns host:port where their processes meet."""
        with socket.create_server((_interface(self.host), 0)) as probe:
            endpoint = f"{self.host}:{probe.getsockname()[1]}"
        self._tell({"run": str(folder), "endpoint": endpoint, "processes": processes, "gpus": gpus})
        return endpoint

    def stop(self) -> None:
        """End the worker on the other nodes."""
        self._tell({"stop": True})

    def close(self, failed: bool = False) -> None:
        """Let the other nodes go."""
        self._tell({"end": "failed" if failed else "finished"})
        for line in self.followers.values():
            line.close()
        self.server.close()

    def _tell(self, message: Mapping[str, Any]) -> None:
        for line in self.followers.values():
            line.send(message)


def join(machine: Machine, patience: float = PATIENCE_SECONDS) -> Line:
    """Another node's side: connect to node 0, which may not have started yet."""
    assert machine.rendezvous is not None
    deadline = time.monotonic() + patience
    log.info("nodes     node %d of %d joins %s", machine.node, machine.nodes, machine.rendezvous)
    while True:
        try:
            connection = socket.create_connection(host_and_port(machine.rendezvous), timeout=10)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise LarkError(
                    f"hardware.rendezvous={machine.rendezvous} does not answer ({error}): "
                    "is node 0 running there, and the port open?"
                ) from error
            time.sleep(0.5)
    connection.settimeout(None)
    line = Line(connection)
    line.send({"node": machine.node, "processes": machine.processes})
    return line


def _interface(host: str) -> str:
    """Where to listen: a loopback address only if that was asked for, since a machine's own name may mean loopback to itself."""
    return host if host in ("localhost", "::1") or host.startswith("127.") else ""
