"""This machine: its devices, memory and packages, and the `hardware` settings resolved for it. Imports no
model code.
"""

import importlib.util
import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from lark.config import Hardware
from lark.errors import LarkError
from lark.printing import counted
from lark.processors import gpu_ids, visible_gpus

ENVIRONMENT = Path(__file__).parents[2] / "environment.yml"
GIB = 2**30
RESERVED_GIB = {"cuda": 1.5, "cpu": 0.0}
"""Memory of a device that PyTorch cannot give to tensors: CUDA's context and kernels (about 0.5 GiB),
NCCL's buffers, and gaps between allocations.
"""
FILLED = 0.9
"""Share of a GPU's memory that may be filled, by estimate, to save time. Running out of memory costs more."""
SHARED_BY = 1
"""How many processes share this machine, each with some trials of a sweep (experiments/harness/lanes.py)."""


@dataclass(frozen=True)
class Machine:
    """The hardware settings with every `auto` resolved."""

    device: str
    processes: int
    nodes: int
    threads: int
    cluster: str = ""
    """host:port of the Ray cluster that does the work. Empty: this machine does it."""
    workers: int = 0
    """Processes on the whole cluster. 0: as many as its nodes have."""
    elsewhere: bool = False
    """True if this is a plan for GPUs of another machine, whose packages are unknown."""

    @property
    def world(self) -> int:
        return self.workers or self.processes * self.nodes

    def lacks(self, module: str) -> bool:
        """True if a package, given by its import name, is known to be missing."""
        return not self.elsewhere and importlib.util.find_spec(module) is None


def pinned(package: str) -> str:
    """The package with its version in environment.yml, if it is listed there."""
    versions = re.search(rf"(?<![\w-]){package}==[\w.]+\w", ENVIRONMENT.read_text(encoding="utf-8"))
    return versions[0] if versions else package


def query_gpus(property_name: str) -> list[str]:
    """A property of each GPU that this process may use, as nvidia-smi reports it; empty if it cannot be
    queried.
    """
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", f"--query-gpu={property_name}", "--format=csv,noheader,nounits"]
    named = ["-i", ",".join(gpu_ids())] if gpu_ids() else []
    # All GPUs, if nvidia-smi does not know one by this name: it may be a part of one (MIG).
    for only in (named, []):
        listing = subprocess.run([*query, *only], capture_output=True, text=True, check=False)
        if listing.returncode == 0:
            return [line.strip() for line in listing.stdout.splitlines() if line.strip()]
    return []


def driver_version() -> str | None:
    """Version of the NVIDIA driver, or None if it cannot be queried."""
    return next(iter(query_gpus("driver_version")), None)


def memory_gib(device: str) -> float:
    """Memory of one device of this machine."""
    if device == "cuda":
        # A GPU that shares the host's memory reports "[N/A]".
        reported = [float(mib) for mib in query_gpus("memory.total") if re.fullmatch(r"[\d.]+", mib)]
        return min(reported, default=80.0 * 1024) / 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB / SHARED_BY


def room_gib(memory_gib: float) -> float:
    """Memory for tensors on a GPU of this size, where a setting is chosen so that they fill it."""
    return FILLED * memory_gib - RESERVED_GIB["cuda"]


def device_name(device: str) -> str:
    """Name of this machine's GPUs, or of its processor."""
    if device == "cuda":
        return ", ".join(dict.fromkeys(query_gpus("name"))) or "unknown GPU"
    try:
        processor = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text("utf-8"), re.M)
    except OSError:
        processor = None
    return processor[1].strip() if processor else platform.machine()


def device_count(device: str) -> int:
    """Number of GPUs, or of processor cores, that this process may use."""
    return visible_gpus() if device == "cuda" else _cores()


def usable_cores() -> int:
    """Number of CPU cores that this process may use."""
    return max(1, _cores() // SHARED_BY)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def missing_cores() -> str | None:
    """A warning if this process is bound to fewer cores than SLURM has granted to it; None if it is not."""
    granted = os.environ.get("SLURM_CPUS_PER_TASK", "")
    if not granted.isdigit() or int(granted) <= _cores():
        return None
    return (
        f"SLURM has granted {granted} cores to this task (SLURM_CPUS_PER_TASK), but it may use only"
        f" {_cores()} of them: all processes of this node share them. In SLURM 22.05 to 23.02, srun does not"
        " inherit --cpus-per-task. Add `export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK` to the job script,"
        " before srun (docs/cluster.md)."
    )


PLANNED = "<address>"
"""Takes the place of a cluster's address in plans."""


def resolve(hardware: Hardware, here: bool = True) -> Machine:
    """Resolve `auto` for this machine, and refuse hardware that it does not have, unless this is only a
    plan (`here=False`).

    In a plan for a cluster, this machine is taken for one of its nodes.
    """
    gpus = visible_gpus()
    device = hardware.device
    if device == "auto":
        device = "cuda" if gpus else "cpu"
    processes = hardware.processes or (gpus if device == "cuda" else 1) or 1
    if here and device == "cuda":
        _require_gpus(hardware.name, processes, gpus)
    threads = hardware.threads or max(1, usable_cores() // processes)
    nodes = 1
    if not here:
        nodes = ceil(hardware.workers / processes) or job_nodes(planned=True) or 1
    has_cluster = nodes > 1 and hardware.cluster != "none"
    return Machine(
        device,
        processes,
        nodes,
        threads,
        cluster=PLANNED if has_cluster else "",
        workers=hardware.workers,
        elsewhere=device == "cuda" and not gpus,
    )


def _require_gpus(hardware: str, processes: int, gpus: int) -> None:
    """Refuse more processes than this machine has GPUs."""
    if processes > gpus:
        raise LarkError(
            f"hardware={hardware} asks for {counted(processes, 'GPU')} on this machine, which has"
            f" {gpus or 'none'}: use hardware=auto, or hardware=cpu for the demo."
        )


def job_nodes(planned: bool = False) -> int | None:
    """Nodes of this SLURM job; in a plan outside a job, those that Hydra's launcher would request. None:
    unknown.
    """
    job = os.environ.get("SLURM_STEP_NUM_NODES") or os.environ.get("SLURM_JOB_NUM_NODES")
    if job is None and planned and HydraConfig.initialized():
        job = OmegaConf.select(HydraConfig.get().launcher, "nodes")
    return None if job is None else int(job)
