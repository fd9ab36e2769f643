"""The demo's student behind an endpoint on this machine, for as long as a command runs.

Run as: python -m lark.demo.serve python run.py … teacher.endpoint.endpoint={endpoint}

`{endpoint}` in the command becomes the address. The model is called demo. The server is `vllm serve`, as it
is in a cluster.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from lark.demo.vllm_server import serving

MODEL = Path(__file__).parent / "student"


def main(command: list[str]) -> int:
    """Run a command beside the server; return its exit code."""
    if not command:
        sys.exit("usage: python -m lark.demo.serve <command with {endpoint}>")
    sys.stderr.write("starting `vllm serve` with the demo's student, which takes a minute …\n")
    with tempfile.TemporaryDirectory() as folder, serving(MODEL, Path(folder) / "vllm.log") as endpoint:
        return subprocess.call([word.replace("{endpoint}", endpoint) for word in command])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
