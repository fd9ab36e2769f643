"""Time and memory of calls, and their spread over rounds."""

import argparse
import ctypes
import gc
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch

T = TypeVar("T")


def with_threads(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add --threads to a parser."""
    parser.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="1: measure processor time"
    )
    return parser


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Seconds and result of a call; with one thread, of processor time, which other jobs disturb less."""
    # Chosen once: vLLM's engine changes the number of threads.
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    result = work()
    return clock() - start, result


def measure(work: Callable[[], T]) -> tuple[float, float, T]:
    """Seconds, peak MiB and result of a call. The peak is beyond the memory that the process has before."""
    # Earlier work must not count: neither memory that could be returned to the system, nor its peak.
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _process_mib("VmRSS")
    seconds, result = timed(work)
    # Not `ru_maxrss`, which cannot be reset, and which a child inherits from its parent.
    return seconds, _process_mib("VmHWM") - before, result


def _process_mib(field: str) -> float:
    return _kernel_mib("/proc/self/status", field)


def free_mib() -> float:
    """Memory that is available on this machine."""
    return _kernel_mib("/proc/meminfo", "MemAvailable")


def _kernel_mib(path: str, field: str) -> float:
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    kib = next(line.split()[1] for line in lines if line.startswith(f"{field}:"))
    return int(kib) / 1024


def in_turns(names: Iterable[str], turn: int) -> list[str]:
    """The names in an order that rotates, so that none is always measured first."""
    order = list(names)
    first = turn % len(order)
    return order[first:] + order[:first]


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, lowest and highest value."""
    return median(values), min(values), max(values)


def ratios(seconds: Sequence[float], reference: Sequence[float]) -> tuple[float, float, float]:
    """The spread of the ratios within each round."""
    return spread([mine / other for mine, other in zip(seconds, reference, strict=True)])
