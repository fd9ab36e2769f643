"""The environment variables of a worker process, and its end with its parent."""

import ctypes
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from lark.work.devices import for_allocator, for_workers
from lark.work.machine import Machine

ROOT = Path(__file__).parents[2]

SPINS = "3000"
"""How often a waiting OpenMP thread polls before it yields its core. GNU OpenMP's default is 300,000: if
another process wants the core, each of thousands of small matrix products waits that long. The lower value
reduced 57 s to 17 s. On an idle machine it makes the demo's training 9% slower.
"""

KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "2000000000", "MALLOC_TRIM_THRESHOLD_": "8000000000"}
"""Settings of glibc on CPU: memory that was freed stays with the process. By default, large temporaries
return to the system after every use, and each of their pages faults again, which was 17% of the time of a
training step of SmolLM2. The peak is the same within 2%.
"""

ROPE = "nvidia-triton"
"""Liger's implementation of RoPE. On H100 Liger would choose another one (CuTe), so that A100 and H100
would run other code.
"""


def python_path() -> str:
    """PYTHONPATH of processes that import the packages of this repository."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def environment(
    machine: Machine, processes: int | None = None, gpus: int = 1, allocator: str = ""
) -> dict[str, str]:
    """Environment variables of workers; `processes` of them share this machine (None: as many as it has)."""
    # Only the run itself uses W&B, which sets variables of its own when it starts.
    env = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    env["PYTHONPATH"] = python_path()
    env["PYTHONUNBUFFERED"] = "1"
    env["OMP_NUM_THREADS"] = str(machine.threads)
    env["TOKENIZERS_PARALLELISM"] = "true"
    env["RAYON_NUM_THREADS"] = str(
        max(1, machine.threads * machine.processes // (processes or machine.processes))
    )
    if not sys.stderr.isatty():
        # Seconds. In a log file, every update of a bar is a new line.
        env.setdefault("TQDM_MININTERVAL", "10")
    if machine.device == "cpu" or machine.cluster:  # on a cluster, the actors have the GPUs
        env["CUDA_VISIBLE_DEVICES"] = ""
        env["DS_ACCELERATOR"] = "cpu"
        env = KEPT_MEMORY | env
        if "OMP_WAIT_POLICY" not in env:
            env.setdefault("GOMP_SPINCOUNT", SPINS)
    else:
        env |= for_workers(processes or machine.processes, gpus) | for_allocator(allocator, env)
        env.setdefault("LIGER_KERNEL_IMPL_ROPE", ROPE)
    return env


def for_actor(machine: Machine, allocator: str, on_cpu: bool) -> dict[str, str]:
    """Environment variables of a process that Ray has started, with the GPUs that Ray has given to it."""
    worker = environment(replace(machine, processes=1, cluster=""), 1)
    threads = {"OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "RAYON_NUM_THREADS"}
    if machine.device == "cpu" or on_cpu:
        names = threads | {"GOMP_SPINCOUNT", *KEPT_MEMORY}
        device = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
    else:
        names = threads | {"PYTORCH_NVML_BASED_CUDA_CHECK", "LIGER_KERNEL_IMPL_ROPE"}
        device = for_allocator(allocator, os.environ)
    return {name: value for name, value in worker.items() if name in names} | device


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Ask the kernel to signal this process when its parent ends, so that `kill -9` on a run leaves nothing
    behind.
    """
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, number)
