"""Which GPUs a process uses. Decided from the environment alone, before the code that does the work is imported.

Libraries ask CUDA for its devices as they are imported (transformers does, where flash-attn is installed), and from then on
CUDA_VISIBLE_DEVICES is not read again. So launch.py gives a stage no more GPUs than it has processes for, each worker then
narrows them to its own (`narrow`), and only after that is the stage's module imported.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lark.errors import LarkError, first_line
from lark.runtime.machine import driver_version, gpu_ids

if TYPE_CHECKING:
    from lark.runtime.operation import Job


def for_workers(processes: int, gpus: int) -> dict[str, str]:
    """The environment of workers on GPUs: `processes` on this node, with `gpus` each (0: they share them all, one each).

    Never more GPUs than processes have use for: the Trainer would spread one process over all that it sees.
    """
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(gpu_ids()[: processes * max(1, gpus)]),
        # Otherwise `torch.cuda.is_available()` initialises CUDA, and forked processes cannot use it any more.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }


def narrow(environment: Mapping[str, str], gpus: int) -> str:
    """CUDA_VISIBLE_DEVICES of one worker: its own `gpus` of those that launch.py gave to all."""
    local, every = int(environment.get("LOCAL_RANK", "0")), environment["CUDA_VISIBLE_DEVICES"].split(",")
    return ",".join(every[local * gpus : (local + 1) * gpus])


def start_torch(job: "Job") -> str:
    """Set the worker's threads and its device, before anything else uses them; returns the device.

    The device becomes the current one, because Triton launches its kernels there wherever their tensors are.
    """
    import torch  # noqa: PLC0415  # workers without a model import this module, too

    torch.set_num_threads(job.machine.threads)
    if job.machine.device == "cpu":
        return "cpu"
    if torch.version.cuda is None:
        raise LarkError(unusable("it is a build without CUDA"))
    try:
        torch.cuda.set_device(job.device)
    except RuntimeError as error:  # a driver that is too old, a GPU that is not there
        raise LarkError(unusable(first_line(error))) from error
    return job.device


def unusable(reason: str) -> str:
    """Why the GPUs that the driver has cannot be used."""
    import torch  # noqa: PLC0415

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    return (
        f"PyTorch cannot use the GPUs of this machine ({reason}). PyTorch {torch.__version__} was built for {build}, the driver "
        f"here is {driver_version() or 'not known'}, and CUDA 13 needs 580 or later: install the environment of environment.yml, "
        "or use hardware=cpu."
    )
