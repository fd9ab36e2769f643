"""Limits on time and memory for code that other people wrote: regular expressions and chat templates."""

import contextlib
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator

from lark.errors import LarkError

PAGE = resource.getpagesize()


@contextlib.contextmanager
def time_limit(seconds: float, sentence: str) -> Iterator[None]:
    """Raise LarkError(sentence) if the body takes longer.

    Regular expressions and templates check for signals while they run. Only the main thread can be
    interrupted this way, and only one limit can be in force: other threads, and bodies within another
    limit, are not limited.
    """
    is_main = threading.current_thread() is threading.main_thread()
    has_limit = signal.getitimer(signal.ITIMER_REAL)[0] > 0
    if has_limit or not is_main:
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise LarkError(sentence)

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def memory_limit(more: int) -> Iterator[None]:
    """Let the process allocate at most `more` bytes in the body; beyond that, MemoryError is raised. Only
    on Linux.
    """
    if sys.platform != "linux":
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = _mapped_pages() * PAGE + more
    if before[0] != resource.RLIM_INFINITY:
        limit = min(limit, before[0])
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _mapped_pages() -> int:
    """Pages in the address space of this process. Called for every conversation, so it avoids the overhead
    of file objects.
    """
    handle = os.open("/proc/self/statm", os.O_RDONLY)
    try:
        return int(os.read(handle, 32).split(maxsplit=1)[0])
    finally:
        os.close(handle)
