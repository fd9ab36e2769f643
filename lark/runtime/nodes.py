"""Runs on several machines. Every node runs the same command; node 0 leads, and the others run the processes it starts there.

Only node 0 reads the pool, selects, holds the store's locks and decides what runs. The others connect to it
(`hardware.rendezvous`) and wait. For each step that runs on all nodes, node 0 sends them the artifact's folder (on a shared
disk) and a port; they start the same torchrun with their own node rank and report its exit code. So a failure on any node ends
the step on all of them, and a lost node is noticed at once and not when a collective times out.
"""

import json
import logging
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lark.errors import LarkError
from lark.reading.untrusted import parse_object
from lark.runtime.machine import Machine

log = logging.getLogger(__name__)

LONGEST_MESSAGE = 1 << 20
"""Bytes. Longer messages are not ours."""
PATIENCE_SECONDS = 600
"""How long nodes wait for each other at the start."""


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
            log.debug("cannot send to a disconnected node: %s", message)  # the next `receive` returns None

    def receive(self) -> dict[str, Any] | None:
        """Wait for the next message and return it. None if the other side has disconnected, or is not one of ours."""
        while b"\n" not in self._received:
            if len(self._received) > LONGEST_MESSAGE:
                return None
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
        try:
            return parse_object(line, "message")
        except LarkError:
            return None

    def close(self) -> None:
        self.connection.close()


class Leader:
    """Node 0's side of the connections."""

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
                "port on the node with hardware.node=0."
            ) from error
        self._gather(patience)

    def _gather(self, patience: float) -> None:
        deadline = time.monotonic() + patience
        while missing := sorted(set(range(1, self.machine.nodes)) - set(self.followers)):
            log.info("nodes     waiting for node %s at %s", ", ".join(map(str, missing)), self.machine.rendezvous)
            self.server.settimeout(max(0.1, deadline - time.monotonic()))
            try:
                line = Line(self.server.accept()[0])
                line.connection.settimeout(10)  # an unknown client that sends nothing must not block the others
                hello = line.receive()
            except TimeoutError:
                if time.monotonic() < deadline:
                    continue
                self.server.close()
                raise LarkError(
                    f"Node {', '.join(map(str, missing))} of hardware.nodes={self.machine.nodes} did not connect within "
                    f"{patience:.0f} s: start the same command there with hardware.node=<its number>."
                ) from None
            if not hello or hello.get("node") not in missing:
                line.close()
                continue
            if hello.get("processes") != self.machine.processes:
                self.followers[hello["node"]] = line
                self.close(failed=True)
                raise LarkError(
                    f"Node {hello['node']} has {hello.get('processes')} processes, this node {self.machine.processes}: "
                    "set the same hardware.processes on every node."
                )
            line.connection.settimeout(None)
            self.followers[hello["node"]] = line

    def start(self, folder: Path, processes: int | None, gpus: int = 1) -> str:
        """Start the worker of this artifact on every node; return host:port where their processes meet."""
        with socket.create_server((_interface(self.host), 0)) as probe:
            endpoint = f"{self.host}:{probe.getsockname()[1]}"
        self._tell({"run": str(folder), "endpoint": endpoint, "processes": processes, "gpus": gpus})
        return endpoint

    def stop(self) -> None:
        """End the worker on the other nodes."""
        self._tell({"stop": True})

    def close(self, failed: bool = False) -> None:
        """Release the other nodes."""
        self._tell({"end": "failed" if failed else "finished"})
        for line in self.followers.values():
            line.close()
        self.server.close()

    def _tell(self, message: Mapping[str, Any]) -> None:
        for line in self.followers.values():
            line.send(message)


def join(machine: Machine, patience: float = PATIENCE_SECONDS) -> Line:
    """Connect to node 0, which may not have started yet, from another node."""
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
                    "check that node 0 is running there and that the port is open."
                ) from error
            time.sleep(0.5)
    connection.settimeout(None)
    line = Line(connection)
    line.send({"node": machine.node, "processes": machine.processes})
    return line


def _interface(host: str) -> str:
    """Interface to listen on: loopback only if requested, since a machine may resolve its own name to loopback."""
    return host if host in ("localhost", "::1") or host.startswith("127.") else ""
