"""The demo's student behind an endpoint on this machine, for as long as a command runs.

Run as: python -m lark.demo.serve python run.py … teacher.endpoint.endpoint={endpoint}

`{endpoint}` in the command becomes the address. The model is called demo. The server is `vllm serve`, as it
is in a cluster.
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
from collections.abc import Iterator
from pathlib import Path

MODEL = Path(__file__).parent / "student"
HOST = "127.0.0.1"
START_SECONDS = 600
"""vLLM compiles nothing here, but imports for a minute on two busy cores."""


@contextlib.contextmanager
def served(model: Path = MODEL, name: str = "demo", context: int = 512) -> Iterator[str]:
    """The address of a server with a model, for the time of the block."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    command = [
        str(Path(sys.executable).with_name("vllm")), "serve", str(model), "--host", HOST, "--port", str(port),
        "--served-model-name", name, "--dtype", "float32", "--max-model-len", str(context), "--enforce-eager",
        "--generation-config", "vllm",
    ]  # fmt: skip
    defaults = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
    env = {**defaults, **os.environ, "VLLM_LOGGING_LEVEL": "WARNING"}
    # Its own process group: vLLM starts an engine process, which must end with it.
    server = subprocess.Popen(command, env=env, start_new_session=True)
    try:
        _wait(server, f"http://{HOST}:{port}/health")
        yield f"http://{HOST}:{port}/v1"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _wait(server: "subprocess.Popen[bytes]", address: str) -> None:
    """Until the server answers."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if server.poll() is not None:
            sys.exit(f"error: vllm serve ended with code {server.returncode} before it was ready; see above.")
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(address, timeout=5).close()
            return
        time.sleep(1)
    sys.exit(f"error: vllm serve was not ready after {START_SECONDS} seconds.")


def main(command: list[str]) -> int:
    """Run a command beside the server; return its exit code."""
    if not command:
        sys.exit("usage: python -m lark.demo.serve <command with {endpoint}>")
    with served() as endpoint:
        return subprocess.call([word.replace("{endpoint}", endpoint) for word in command])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
