"""The processors that this process may use: GPUs, and the instructions of the CPU. Asks the driver and the
kernel, because run.py does not import torch.
"""

import os
import re
import shutil
import subprocess
from functools import cache
from itertools import takewhile
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16"})
"""Flags of the kernel for instructions that multiply bfloat16 numbers and add the products in float32."""


@cache
def visible_gpus() -> int:
    """Number of GPUs that this process may use."""
    return len(gpu_ids())


def gpu_ids() -> list[str]:
    """GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    present = [str(number) for number in range(_present_gpus())]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or visible.strip() == "all":
        return present
    named = [gpu.strip() for gpu in visible.split(",")]
    # CUDA reads the list up to the first invalid entry.
    return list(takewhile(lambda gpu: gpu not in ("", "-1"), named))[: len(present)]


def _present_gpus() -> int:
    if shutil.which("nvidia-smi") is None:  # some containers have a driver without nvidia-smi
        return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    if listing.returncode != 0:
        return 0
    return sum(line.startswith("GPU ") for line in listing.stdout.splitlines())


@cache
def cpu_multiplies_bfloat16() -> bool:
    """Whether the CPU has instructions for products of bfloat16 numbers. Without them, such products take
    three to four times as long as those of float32.
    """
    try:
        text = CPU_INFO.read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        return False
    flags = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return flags is not None and not BFLOAT16.isdisjoint(flags[1].split())
