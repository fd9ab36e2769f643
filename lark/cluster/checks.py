"""Requirements on a Ray cluster: it is installed, it answers, and it has room."""

import importlib.util
import os
import socket
from pathlib import Path

from lark.errors import LarkError
from lark.printing import counted
from lark.work.machine import Machine, pinned

AUTH_TOKEN = "RAY_AUTH_TOKEN"
ADDRESS = "RAY_ADDRESS"
ANSWER_SECONDS = 10
"""How long a TCP connection to a cluster may take."""


def require_ray() -> None:
    if importlib.util.find_spec("ray") is None:
        raise LarkError(f"hardware=ray needs Ray, which is not installed: pip install {pinned('ray')}.")


def require_answer(address: str) -> None:
    """Refuse an address at which nothing listens. Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
    except OSError as error:
        raise LarkError(
            f"{_setting(address)}: nothing answers there ({error.strerror or error}). Check the address, and"
            " that the cluster is running and can be reached from this machine (docs/cluster.md)."
        ) from error


def refusal(address: str | None, why: str) -> str:
    if address is None:
        return f"Ray cannot be started on this machine ({why}). Use hardware=auto, which needs no Ray."
    return (
        f"{_setting(address)}: the Ray cluster cannot be reached ({why.partition('. ')[0]}). Something"
        " answers at this address, so the token may be wrong or missing: the cluster's token must be in"
        f" {AUTH_TOKEN} or ~/.ray/auth_token. Run this on a node of the cluster (docs/cluster.md)."
    )


def _setting(address: str) -> str:
    """The setting that an address comes from."""
    name = ADDRESS if os.environ.get(ADDRESS) == address else "hardware.address"
    return f"{name}={address}"


def too_few_nodes(address: str, there: int, nodes: int, patience: float) -> LarkError:
    return LarkError(f"The Ray cluster at {address} has {there} of {nodes} nodes after {patience:.0f} s.")


def without_result(folder: Path) -> LarkError:
    return LarkError(
        f"{folder}: the processes on the cluster have ended without a result. Run the same command again."
    )


def require_room(there: int, machine: Machine) -> None:
    """Refuse more processes than a cluster that does not grow has room for: training would wait for nodes
    forever. `there`: how many it has room for.
    """
    if machine.world > there:
        setting = f"workers={machine.workers}" if machine.workers else f"processes={machine.processes}"
        needs = counted(machine.threads, "CPU")
        if machine.device == "cuda":
            needs += " and a GPU"
        raise LarkError(
            f"hardware.{setting}: this run's own Ray cluster has room for {there} of {machine.world}"
            f" processes, with {needs} each, and no node can join it. Use fewer processes or a smaller"
            " hardware.threads, or give the hardware.address of a larger cluster."
        )


def no_such_device(device: str, address: str) -> LarkError:
    return LarkError(f"hardware.device={device}: no node of the Ray cluster at {address} has one.")
