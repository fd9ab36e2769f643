"""A SLURM job of several nodes: its nodes become a Ray cluster. SLURM starts the same command on every node.

Node 0 starts Ray and runs the pipeline. The others join it and wait until it has finished. The cluster's token is in a file in
the outputs folder, which only its owner can read; when node 0 removes the file, the others leave.
"""

import atexit
import contextlib
import logging
import os
import re
import secrets
import socket
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

from lark.errors import LarkError
from lark.runtime.cluster import LOCAL, MODE, STORE_BYTES, TOKEN, Cluster, require_ray, settings, wait_for
from lark.runtime.machine import job_nodes, usable_cores, visible_gpus
from lark.runtime.process import ROOT, die_with_parent

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 600
"""How long nodes wait for each other at the start."""


def several_nodes() -> bool:
    """Whether this process belongs to a SLURM job of several nodes."""
    return (job_nodes() or 1) > 1


def is_follower() -> bool:
    """Whether this is a node of such a job other than node 0."""
    return several_nodes() and _node() > 0


def _node() -> int:
    node = os.environ.get("SLURM_NODEID", "")
    if not node.isdigit():
        raise LarkError(
            "This SLURM job has several nodes, but SLURM_NODEID is not set: start the command with srun, once per node."
        )
    return int(node)


@cache
def lead(outputs: Path) -> Cluster:
    """Start Ray on node 0 and wait for the other nodes. It ends with this process."""
    require_ray()
    file, nodes = _token_file(outputs), job_nodes() or 1
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    os.environ[MODE], os.environ[TOKEN] = "token", secrets.token_hex(32)
    host, port = _address()
    ray = _start("--head", f"--node-ip-address={host}", f"--port={port}", "--include-dashboard=false")
    draft = file.with_suffix(".part")
    with os.fdopen(os.open(draft, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w") as handle:
        handle.write(os.environ[TOKEN])
    draft.replace(file)
    atexit.register(_end, ray, file)
    log.info("cluster   Ray on %d nodes of SLURM job %s", nodes, os.environ.get("SLURM_JOB_ID", "?"))
    return wait_for(f"{host}:{port}", nodes, PATIENCE_SECONDS)


def follow(outputs: Path) -> None:
    """Join the cluster of node 0, and stay until it has finished."""
    require_ray()
    file, (host, port) = _token_file(outputs), _address()
    deadline, ray, joined = time.monotonic() + PATIENCE_SECONDS, None, False
    own = [f"--node-ip-address={host}"] if host.startswith("127.") else []
    try:
        while True:
            if file.is_file() and ray is None:
                os.environ[MODE], os.environ[TOKEN] = "token", file.read_text(encoding="utf-8")
                ray = _start(f"--address={host}:{port}", *own)
            elif ray is not None and not file.exists():
                return
            elif ray is not None and ray.poll() is not None:  # node 0 is not ready yet, or was lost
                ray = None
            elif ray is not None and not joined:
                joined, deadline = True, time.monotonic() + PATIENCE_SECONDS
            if ray is None and time.monotonic() > deadline:
                raise LarkError(f"Node 0 of this SLURM job ({host}:{port}) does not answer: see its log.")
            time.sleep(1)
    finally:
        if ray is not None:
            _stop(ray)


def _start(*arguments: str) -> "subprocess.Popen[bytes]":
    """Start Ray's processes on this node. They end with the process that is returned."""
    limits = [f"--num-cpus={usable_cores()}", f"--num-gpus={visible_gpus()}", f"--object-store-memory={STORE_BYTES}"]
    if _address()[0].startswith("127."):
        os.environ |= LOCAL
    env = {**os.environ, **settings()}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats", *limits, *arguments]
    return subprocess.Popen(
        command, env=env, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, preexec_fn=die_with_parent,  # noqa: PLW1509  # the child only calls prctl
    )  # fmt: skip


def _end(ray: "subprocess.Popen[bytes]", file: Path) -> None:
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)
    _stop(ray)


def _stop(ray: "subprocess.Popen[bytes]") -> None:
    ray.terminate()
    try:
        ray.wait(20)
    except subprocess.TimeoutExpired:
        ray.kill()
        ray.wait()


def _token_file(outputs: Path) -> Path:
    """A file of this start of this job: a job that is submitted again after its time limit gets another token."""
    job, start = os.environ.get("SLURM_JOB_ID", "0"), os.environ.get("SLURM_RESTART_COUNT", "0")
    return outputs / ".locks" / f"ray-{job}-{start}.token"


def _address() -> tuple[str, int]:
    """The first node of this job, and a port that differs between jobs."""
    listed = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST") or "localhost"
    port = 20000 + int(os.environ.get("SLURM_JOB_ID", "0")) % 10000
    try:
        return socket.gethostbyname(first_host(listed)), port
    except OSError as error:
        raise LarkError(
            f"SLURM's node list is {listed}, but {first_host(listed)} has no address ({error.strerror})."
        ) from error


def first_host(nodelist: str) -> str:
    """`gpu[03-07,12],big1` -> `gpu03`: the first of SLURM's compressed list of nodes."""
    match = re.match(r"([^,\[]*)(?:\[([^\]\-,]+)[^\]]*\])?([^,\[]*)", nodelist)
    assert match is not None  # the pattern matches the empty string
    return "".join(part or "" for part in match.groups())
