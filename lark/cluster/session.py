"""The process that connects a run to a Ray cluster, and starts a local one in a private folder that it
removes at the end.

Ray's default folder is /tmp/ray. Ray makes it writable for everyone and never removes what is in it.

Run as: python -m lark.cluster.session <address>           report on a cluster
        python -m lark.cluster.session local <outputs>     start one, which runs until the input ends
"""

import json
import logging
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lark.cluster.nodes import LOOPBACK, STORE_BYTES, alive, settings
from lark.errors import first_line
from lark.processors import visible_gpus
from lark.work.machine import usable_cores
from lark.work.process import die_with_parent

LONGEST_SOCKET = "r/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
"""The longest path of a socket below the folder."""


def make_folder(outputs: Path | None = None) -> Path:
    """Make a folder that only its owner can enter: below `outputs`, or a temporary one if `outputs` cannot
    hold sockets.
    """
    if outputs is not None and (folder := _made(outputs, ".ray-")) is not None:
        return folder
    folder = _made(Path(tempfile.gettempdir()), "lark-ray-")
    return Path(tempfile.mkdtemp(prefix="lark-ray-", dir="/tmp")) if folder is None else folder


def _made(parent: Path, prefix: str) -> Path | None:
    """A new private folder; None if it cannot be made or cannot hold sockets."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent.absolute()))
    except OSError:
        return None
    if _holds_sockets(folder):
        return folder
    remove_folder(folder)
    return None


def _holds_sockets(folder: Path) -> bool:
    """True if Ray's sockets can be in a folder: their paths are limited to 107 bytes, and some file systems
    have no sockets.
    """
    with socket.socket(socket.AF_UNIX) as probe:
        path = folder / ("s" * len(LONGEST_SOCKET))
        try:
            probe.bind(str(path))
        except OSError:
            return False
        path.unlink()
    return True


def ray_root(folder: Path) -> str:
    """Ray's own root. Ray makes it and all folders in it writable for everyone, but only its owner can
    enter `folder`.
    """
    return str(folder / "r")


def remove_folder(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def main(address: str, outputs: Path | None) -> int:
    """Report on a cluster. With `outputs`, start it on this machine: it runs until the input ends."""
    parent = os.getppid()
    die_with_parent()
    if outputs is not None:  # not killed at once, so that the folder of a local cluster is removed
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        die_with_parent(signal.SIGTERM)
    os.environ.update(settings())
    import ray  # noqa: PLC0415

    folder = None if outputs is None else make_folder(outputs)
    try:
        described = _described(ray, address, folder)
        sys.stdout.write(json.dumps(described) + "\n")
        sys.stdout.flush()
        if folder is not None and "error" not in described:
            _wait_for_end(parent)
    finally:
        ray.shutdown()
        if folder is not None:
            remove_folder(folder)
    return 0


def _wait_for_end(parent: int) -> None:
    """Wait until the input or the parent ends. Signals would abort Ray's shutdown after that, and leave the
    folder.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    ended: list[Any] = []
    while not ended and os.getppid() == parent:
        ended, _, _ = select.select([sys.stdin], [], [], 1.0)  # nothing is ever written to it


def _described(ray: Any, address: str, folder: Path | None) -> dict[str, Any]:
    """The address and the nodes of a cluster, or the error. With `folder`, start it there."""
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if folder is None:
            ray.init(address, **quiet)
        else:
            ray.init(
                address, num_cpus=usable_cores(), num_gpus=visible_gpus(), include_dashboard=False,
                object_store_memory=STORE_BYTES, _node_ip_address=LOOPBACK, _temp_dir=ray_root(folder),
                **quiet,
            )  # fmt: skip
        nodes = [asdict(node) for node in alive(ray.nodes())]
        return {"address": ray.get_runtime_context().gcs_address, "nodes": nodes}
    except Exception as error:
        return {"error": first_line(error)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else None))
