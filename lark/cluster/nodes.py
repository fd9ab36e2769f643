"""A Ray cluster: reach one that exists, or start one on this machine. Only hardware=ray and SLURM jobs of
several nodes use it.

The run itself does not import Ray. A process of its own (lark/cluster/session.py) connects to the cluster
and prints what it consists of; for a local cluster, it starts Ray and ends it when the run ends. Each
step's worker connects separately (lark/cluster/crew.py).

Ray executes code that it receives, so its ports must not be open to others: authentication by a token is
on, the dashboard is off, and a local cluster listens on loopback only. Nothing is read from the network
except through Ray.
"""

import atexit
import contextlib
import logging
import os
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lark.cluster.checks import (
    ADDRESS,
    AUTH_TOKEN,
    no_such_device,
    refusal,
    require_answer,
    require_ray,
    require_room,
    too_few_nodes,
)
from lark.config import Hardware
from lark.config.checks import cluster_address
from lark.errors import LarkError, first_line
from lark.reading.untrusted import parse_object
from lark.work.machine import Machine
from lark.work.process import ROOT, die_with_parent, python_path

log = logging.getLogger(__name__)

AUTH_MODE = "RAY_AUTH_MODE"
LOOPBACK = "127.0.0.1"
STORE_BYTES = 100 * 2**20
"""Ray's object store. Shards are files; only their names pass through Ray."""
CONNECT_SECONDS = 180
"""How long the start of a cluster, or the connection to one, may take."""
POLL_SECONDS = 1.0
"""Time between two looks at which nodes there are."""
WAITING_SECONDS = 60.0
"""After this time without room for a process, the log says what is awaited."""
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_TRAIN_V2_ENABLED": "1",
    # How long Ray Train waits for the room that it has asked for before it counts the nodes again. While it
    # waits for a node that was lost, training does not continue on those that are left.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "30",
}


@dataclass(frozen=True)
class Node:
    """The resources of a machine that Ray may use."""

    cpus: int
    gpus: int


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster at one time; nodes may join and leave."""

    address: str
    nodes: tuple[Node, ...]
    own: bool = False
    """True if the run itself has started it. No other node can join it then."""


ALLOW_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Lets Ray use a loopback address. Otherwise it replaces the address by the machine's own, at which a local
cluster does not listen.
"""


def settings() -> dict[str, str]:
    """Environment variables of processes that use Ray: authentication is on, unless the user has turned it
    off.
    """
    return {name: os.environ.get(name, value) for name, value in {**QUIET, AUTH_MODE: "token"}.items()}


def address_of(hardware: Hardware) -> str | None:
    """host:port of the cluster that the settings or the environment name. None: one that the run starts
    itself.
    """
    if hardware.address is not None:
        return hardware.address
    named = os.environ.get(ADDRESS) or None
    if named is not None:
        cluster_address(ADDRESS, named)
    return named


REACHED: dict[str | None, Cluster] = {}
"""By address. This process has one local cluster at most, because it has one token."""


def reach(address: str | None, outputs: Path) -> Cluster:
    """Connect to a cluster. None: start one on this machine, which ends with this process and has its
    folder in `outputs`.
    """
    require_ray()
    if address not in REACHED:
        if address is None:
            os.environ |= {
                AUTH_MODE: "token",
                AUTH_TOKEN: secrets.token_hex(32),
                **ALLOW_LOOPBACK,
            }  # workers inherit them
            log.info("cluster   starting Ray on this machine")
        else:
            log.info("cluster   connecting to Ray at %s", address)
        arguments = ["local", str(outputs.absolute())] if address is None else [address]
        REACHED[address] = _reached(address, arguments)
    return REACHED[address]


def _reached(address: str | None, arguments: Sequence[str]) -> Cluster:
    if address is not None:
        require_answer(address)
    env = {**os.environ, **settings(), "PYTHONPATH": python_path()}
    process = subprocess.Popen(
        [sys.executable, "-m", "lark.cluster.session", *arguments],
        env=env,
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=die_with_parent,  # noqa: PLW1509  # the child only calls prctl
    )
    atexit.register(_end, process)
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], CONNECT_SECONDS)
    line = process.stdout.readline() if ready else ""
    answer: dict[str, Any] = {"error": "it does not answer"}
    if line.strip():
        answer = parse_object(line.encode(), "Ray")
    if "error" in answer:
        _end(process)
        raise LarkError(refusal(address, str(answer["error"])))
    nodes = tuple(Node(**node) for node in answer["nodes"])
    return Cluster(answer["address"], nodes, own=address is None)


def _end(process: "subprocess.Popen[str]") -> None:
    """End a local cluster. Its processes end with the one that started them."""
    with contextlib.suppress(OSError):
        assert process.stdin is not None
        process.stdin.close()
    for end in (process.terminate, process.kill):
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            end()
    process.wait()


def machine_of(cluster: Cluster, device: str, processes: int, threads: int, workers: int) -> Machine:
    """The cluster as a machine, for plans and checks: its nodes, and the processes of the smallest of them.

    `processes` per node, `threads` per process and `workers` in total, each 0: as many as the cluster has.
    """
    if device == "auto":
        device = "cuda" if any(node.gpus for node in cluster.nodes) else "cpu"
    nodes = [node for node in cluster.nodes if (node.gpus if device == "cuda" else node.cpus)]
    if not nodes:
        raise no_such_device(device, cluster.address)
    cpus = min(node.cpus for node in nodes)
    if device == "cpu":
        threads = threads or max(1, cpus // (processes or 1))
        processes = processes or max(1, cpus // threads)
    else:
        processes = processes or min(node.gpus for node in nodes)
        threads = threads or max(1, cpus // processes)
    machine = Machine(device, processes, len(nodes), threads, cluster.address, workers)
    if cluster.own:
        there = room(nodes, threads, 1 if device == "cuda" else 0)
        require_room(there, machine)
    return machine


def connect(address: str) -> Any:
    """Connect this process to a cluster; return the module `ray`. The connection lasts until the process
    ends.
    """
    os.environ.update(settings())
    import ray  # noqa: PLC0415  # an optional package

    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=True)
    except Exception as error:  # of several types, and RuntimeError if the token is refused
        raise LarkError(refusal(address, first_line(error))) from error
    # Its threads abort the process if one of them is busy then. The cluster ends what a process has started
    # when that ends.
    atexit.unregister(ray.shutdown)
    with contextlib.suppress(AttributeError):  # not part of Ray's interface
        _shorten(ray)
    return ray


def _shorten(ray: Any) -> None:
    """Reduce Ray's messages about lost nodes to their first lines: the rest is hundreds of lines of its
    internal state.
    """
    worker: Any = ray._private.worker
    shown = worker.print_to_stdstream

    def first_lines(data: dict[str, Any], *arguments: Any, **options: Any) -> None:
        lines = [str(line).partition("\n")[0] for line in data.get("lines", [])]
        shown({**data, "lines": lines}, *arguments, **options)

    worker.print_to_stdstream = first_lines


def alive(nodes: Sequence[Mapping[str, Any]]) -> list[Node]:
    """The nodes of `ray.nodes()` that can work."""
    usable = [node["Resources"] for node in nodes if node["Alive"]]
    return [Node(int(resources.get("CPU", 0)), int(resources.get("GPU", 0))) for resources in usable]


def room(nodes: list[Node], cpus: int, gpus: int) -> int:
    """How many processes the nodes have room for, given what each needs."""
    return sum(min(node.cpus // cpus, node.gpus // gpus if gpus else node.cpus) for node in nodes)


def wait_for(address: str, nodes: int, patience: float = CONNECT_SECONDS) -> Cluster:
    """Wait until a cluster answers and has this many nodes."""
    deadline = time.monotonic() + patience
    while True:
        late = time.monotonic() > deadline
        try:
            cluster = _reached(address, [address])
        except LarkError:
            if late:
                raise
        else:
            if len(cluster.nodes) >= nodes:
                return cluster
            if late:
                raise too_few_nodes(address, len(cluster.nodes), nodes, patience)
        time.sleep(2)
