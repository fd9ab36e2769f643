"""Which GPUs a process uses. Decided from the environment alone, before the code that does the work is
imported.

Some libraries query CUDA's devices when they are imported (transformers does if flash-attn is installed),
and after that CUDA_VISIBLE_DEVICES is not read again. So launch.py gives a step no more GPUs than its
processes use, each worker narrows them to its own (`narrow`), and only then is the operation's module
imported.
"""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lark.errors import LarkError, first_line, refuse
from lark.processors import gpu_ids
from lark.work.machine import GIB, driver_version

if TYPE_CHECKING:
    from lark.work.operation import Job


def for_workers(processes: int, gpus: int) -> dict[str, str]:
    """Environment variables of GPU workers: `processes` on this node, with `gpus` each (0: all see the
    same, one per process).

    Never more GPUs than the processes use: the Trainer would spread one process over all GPUs that it sees.
    """
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(gpu_ids()[: processes * max(1, gpus)]),
        # Otherwise `torch.cuda.is_available()` initialises CUDA, and forked processes can no longer use it.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }


ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Variables with the user's settings of PyTorch's GPU memory allocator; the second is the older name."""


def for_allocator(allocator: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Environment variables for an operation's allocator settings, unless the user has set them."""
    set_already = environment.get("PYTORCH_CUDA_ALLOC_CONF") or "PYTORCH_ALLOC_CONF" in environment
    return {} if set_already or not allocator else {"PYTORCH_ALLOC_CONF": allocator}


def narrow(environment: Mapping[str, str], gpus: int) -> str:
    """CUDA_VISIBLE_DEVICES of one worker: its own `gpus` of the GPUs that launch.py gave to all workers."""
    names = environment["CUDA_VISIBLE_DEVICES"].split(",")
    start = int(environment.get("LOCAL_RANK", "0")) * gpus
    return ",".join(names[start : start + gpus])


def start_torch(job: "Job") -> str:
    """Set the worker's threads and device before anything else uses them; return the device.

    It becomes the current device, because Triton launches kernels on the current device regardless of where
    their tensors are.
    """
    import torch  # noqa: PLC0415  # workers without a model also import this module

    torch.set_num_threads(job.machine.threads)
    use_device(job.device)
    return job.device


def gpu_gib(job: "Job") -> float:
    """Memory of this process's GPU, or less if `hardware.memory_gib` is less. 0 on CPU."""
    if job.device == "cpu":
        return 0.0
    import torch  # noqa: PLC0415

    present = torch.cuda.get_device_properties(job.device).total_memory / GIB
    return min(present, job.config.hardware.memory_gib or present)


def use_device(device: str) -> None:
    """Make a GPU the current device of this process. Raises LarkError if PyTorch cannot use it. Does
    nothing for "cpu".
    """
    import torch  # noqa: PLC0415

    if device == "cpu":
        return
    refuse(unusable("it is a build without CUDA") if torch.version.cuda is None else None)
    try:
        torch.cuda.set_device(device)
    except RuntimeError as error:  # the driver is too old, or the GPU does not exist
        raise LarkError(unusable(first_line(error))) from error


def unusable(reason: str) -> str:
    """Error message for GPUs that the driver reports but PyTorch cannot use."""
    import torch  # noqa: PLC0415

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    return (
        f"PyTorch cannot use the GPUs of this machine ({reason}). PyTorch {torch.__version__} was built with"
        f" {build}; the driver is {driver_version() or 'unknown'}, and CUDA 13 needs driver 580 or later."
        " Install the environment in environment.yml, or use hardware=cpu."
    )


def leave_group() -> None:
    """Leave the processes that work together, if this process is one of them. Otherwise threads of PyTorch
    may still run when the interpreter ends, and abort a process that has finished its work.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
