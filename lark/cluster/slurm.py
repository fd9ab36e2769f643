"""A SLURM job of several nodes: its nodes become a Ray cluster. SLURM starts the same command on every
node.

Node 0 starts Ray and runs the pipeline. The others join it and wait until it has finished. The cluster's
token is in a file in the outputs folder, which only its owner can read; when node 0 removes the file, the
others leave.
"""

import atexit
import contextlib
import json
import logging
import os
import secrets
import socket
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

from lark.cluster.checks import AUTH_TOKEN, require_ray
from lark.cluster.nodes import AUTH_MODE, STORE_BYTES, Cluster, settings, wait_for
from lark.cluster.session import make_folder, ray_root, remove_folder
from lark.errors import LarkError
from lark.processors import visible_gpus
from lark.reading.untrusted import readable_object
from lark.work.machine import job_nodes, usable_cores
from lark.work.process import ROOT, die_with_parent, python_path

log = logging.getLogger(__name__)

JOIN_SECONDS = 600
"""How long nodes wait for each other at the start."""


def several_nodes() -> bool:
    """True if this process belongs to a SLURM job of several nodes."""
    return (job_nodes() or 1) > 1


def is_follower() -> bool:
    """True if this is a node of such a job other than node 0."""
    return several_nodes() and _node() > 0


def _node() -> int:
    node = os.environ.get("SLURM_NODEID", "")
    if not node.isdigit():
        raise LarkError(
            "This SLURM job has several nodes, but SLURM_NODEID is not set: start the command with srun, once"
            " per node."
        )
    return int(node)


@cache
def lead(outputs: Path) -> Cluster:
    """Start Ray on node 0 and wait for the other nodes. It ends with this process."""
    require_ray()
    file = _file(outputs)
    nodes = job_nodes() or 1
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    os.environ |= {AUTH_MODE: "token", AUTH_TOKEN: secrets.token_hex(32)}
    host = _own_address()
    # By the job, so that two jobs on one node do not meet.
    port = 20000 + int(os.environ.get("SLURM_JOB_ID", "0")) % 10000
    folder = make_folder()
    ray = _start(folder, "--head", f"--node-ip-address={host}", f"--port={port}", "--include-dashboard=false")
    atexit.register(_end, ray, file, folder)
    draft = file.with_suffix(".part")
    with os.fdopen(os.open(draft, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w") as handle:
        handle.write(json.dumps({"address": f"{host}:{port}", "token": os.environ[AUTH_TOKEN]}))
    draft.replace(file)
    log.info("cluster   Ray on %d nodes of SLURM job %s", nodes, os.environ.get("SLURM_JOB_ID", "?"))
    return replace(wait_for(f"{host}:{port}", nodes, JOIN_SECONDS), own=True)


def follow(outputs: Path) -> None:
    """Join the cluster of node 0, and stay until it has finished."""
    require_ray()
    file = _file(outputs)
    ray = None
    deadline = time.monotonic() + JOIN_SECONDS
    folder = make_folder()
    try:
        while True:
            head = readable_object(file)
            if ray is None and head is not None:
                os.environ |= {AUTH_MODE: "token", AUTH_TOKEN: str(head["token"])}
                ray = _join(folder, str(head["address"]))
            elif ray is not None and not file.exists():
                return
            elif ray is not None and ray.poll() is not None:  # node 0 is not ready yet, or was lost
                ray = None
            elif ray is not None:
                deadline = time.monotonic() + JOIN_SECONDS
            if time.monotonic() > deadline:
                raise LarkError("Node 0 of this SLURM job does not answer: see its log.")
            time.sleep(1)
    finally:
        if ray is not None:
            _stop(ray)
        remove_folder(folder)


def _join(folder: Path, address: str) -> "subprocess.Popen[bytes]":
    """Join the cluster at an address. Several nodes on one machine share its loopback address."""
    host = address.rpartition(":")[0]
    loopback = [f"--node-ip-address={host}"] if host.startswith("127.") else []
    return _start(folder, f"--address={address}", *loopback)


def _start(folder: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    """Start Ray's processes on this node. They end with the process that is returned.

    `folder`: for their sockets and logs. Each node has its own: the outputs are shared by all nodes.
    """
    limits = [
        f"--num-cpus={usable_cores()}",
        f"--num-gpus={visible_gpus()}",
        f"--object-store-memory={STORE_BYTES}",
    ]
    env = {**os.environ, **settings(), "PYTHONPATH": python_path()}
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
    command += [*limits, f"--temp-dir={ray_root(folder)}", *arguments]
    return subprocess.Popen(
        command,
        env=env,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509  # the child only calls prctl
    )


def _end(ray: "subprocess.Popen[bytes]", file: Path, folder: Path) -> None:
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)
    _stop(ray)
    remove_folder(folder)


def _stop(ray: "subprocess.Popen[bytes]") -> None:
    ray.terminate()
    try:
        ray.wait(20)
    except subprocess.TimeoutExpired:
        ray.kill()
        ray.wait()


def _file(outputs: Path) -> Path:
    """A file of this start of this job: a job that is submitted again after its time limit gets another
    token.
    """
    job, start = os.environ.get("SLURM_JOB_ID", "0"), os.environ.get("SLURM_RESTART_COUNT", "0")
    return outputs / ".locks" / f"ray-{job}-{start}.token"


def _own_address() -> str:
    """The address at which other nodes reach this one. Its own name may lead to loopback, so the routing
    table is asked.
    """
    listed = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST") or ""
    if listed.startswith("127."):  # several nodes on one machine
        return listed
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("8.8.8.8", 53))  # sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostbyname(socket.gethostname())
