"""The peak memory of a process: on a GPU that of its tensors, on CPU the growth of its resident memory."""

from pathlib import Path

import torch

from lark.work.machine import GIB

STATUS = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")
PEAK = "5"
"""What makes Linux forget the peak of a process's resident memory."""


class Peak:
    """Peak memory since it was made, in addition to what was in use then."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.before = 0.0
        if device == "cpu":
            RESET.write_text(PEAK, encoding="ascii")
            self.before = _status("VmRSS")
        elif torch.cuda.is_initialized():  # otherwise nothing is in use, and no GPU is chosen yet
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def gib(self) -> float:
        if self.device == "cpu":
            return _status("VmHWM") - self.before
        return torch.cuda.max_memory_allocated() / GIB


def _status(key: str) -> float:
    """A figure of this process in GiB. Linux gives it in kB."""
    lines = STATUS.read_text(encoding="ascii").splitlines()
    line = next(line for line in lines if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024 / GIB
