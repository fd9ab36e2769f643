"""Trials of a sweep side by side on one machine, where that is faster.

A small student cannot use several cores well: its matrix products are too small to share. So each core gets
a *lane*, a process with one core that takes the next trial whenever it has finished one. Lanes share the
store: what two trials need is made by one of them, while the other waits. Results do not depend on the
number of lanes, because they do not depend on the number of threads.
"""

import logging
import multiprocessing
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, NoReturn

from experiments.harness.sweep import ROOT
from lark.config import Config
from lark.models.shapes import shape_of
from lark.printing import counted, message
from lark.work import machine
from lark.work.launch import die_with_parent
from lark.work.warm import WARMTH

log = logging.getLogger(__name__)

SMALL = 20_000_000
"""Parameters of a student up to which trials run in lanes. The demo's student has one million."""
MOST = 8
"""Largest number of lanes."""
Work = Callable[[], object]


def lanes(trials: Iterable[Config]) -> int:
    """How many trials run at once: one, unless all of them train or evaluate a small student on the CPU of a
    Linux machine.
    """
    configs = list(trials)
    if sys.platform != "linux":  # the libraries of macOS do not survive a fork
        return 1
    if len(configs) < 2 or not all(_uses_one_core(config) for config in configs):
        return 1
    return min(machine.usable_cores(), len(configs), MOST)


def _uses_one_core(config: Config) -> bool:
    hardware = config.hardware
    if config.analysis.name is not None:  # it may measure time
        return False
    if hardware.threads or hardware.processes > 1 or hardware.cluster != "none":
        return False
    shape = shape_of(config.student)
    is_small = shape is not None and shape.parameters <= SMALL
    return is_small and machine.resolve(hardware, here=False).device == "cpu"


def run(command: Sequence[str], number: int) -> int:
    """Run a sweep's command in this number of lanes; return its exit code."""
    launcher = ["hydra/launcher=lanes", f"hydra.launcher.lanes={number}"] if number > 1 else []
    return subprocess.run([*command, *launcher], cwd=ROOT, check=False, preexec_fn=die_with_parent).returncode


def fork(jobs: Sequence[Work], number: int) -> bool:
    """Do all jobs in forks of this process, each with a share of the cores. Returns False if one failed."""
    WARMTH.close()  # two lanes must not use the same warm process
    counter = multiprocessing.get_context("fork").Value("i", 0)

    def next_jobs() -> Iterator[Work]:
        """The jobs that no other lane has taken."""
        while True:
            with counter.get_lock():
                place = counter.value
                counter.value += 1
            if place >= len(jobs):
                return
            yield jobs[place]

    children = []
    outputs = []
    for _ in range(number):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            _be_a_lane(next_jobs(), number, write)
        os.close(write)
        children.append(child)
        outputs.append(os.fdopen(read, "rb"))
    # Only now: a fork must not inherit threads.
    readers = [threading.Thread(target=_copy, args=pair) for pair in enumerate(outputs, 1)]
    for reader in readers:
        reader.start()
    codes = [os.waitpid(child, 0)[1] for child in children]
    for reader in readers:
        reader.join()
    return not any(codes)


def _be_a_lane(jobs: Iterator[Work], number: int, output: int) -> NoReturn:
    """Work, and end without what the parent does at its own end."""
    code = 0
    try:
        die_with_parent()
        machine.SHARED_BY = number
        for stream in (1, 2):
            os.dup2(output, stream)
        for job in jobs:
            try:
                job()
            except Exception as error:  # the parent reports what is missing, or does it
                code = 1
                sys.stderr.write(f"error: {message(error)}\n")
                log.debug("a job of a lane has failed", exc_info=True)
    except BaseException:
        code = 1
        log.debug("a lane has failed", exc_info=True)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _copy(lane: int, output: IO[bytes]) -> None:
    """Copy a lane's output line by line, so that the lines of several lanes do not mix. Updates of a bar
    are lines too.
    """
    rest = b""
    while chunk := os.read(output.fileno(), 65536):
        *lines, rest = re.split(rb"[\r\n]+", rest + chunk)
        _write(lane, lines)
    _write(lane, [rest])


def _write(lane: int, lines: Iterable[bytes]) -> None:
    text = b"".join(b"[%d] %s\n" % (lane, line) for line in lines if line.strip())
    sys.stderr.buffer.write(text)
    sys.stderr.buffer.flush()


def described(number: int) -> str:
    return "" if number == 1 else f" in {counted(number, 'lane')}, each with a share of the cores"
