"""Trials of a sweep side by side on one machine, where that is faster.

A small student cannot use several cores well: its matrix products are too small to share. So each core gets
a *lane*, a process with one core that takes the next trial whenever it has finished one. Lanes share the
store: what two trials need is made by one of them, while the other waits. Results do not depend on the
number of lanes, because they do not depend on the number of threads.
"""

import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import IO, NoReturn

from experiments.harness.sweep import ROOT
from lark.config import Config
from lark.models.shapes import shape_of
from lark.printing import counted
from lark.work.launch import die_with_parent
from lark.work.machine import CLAIMS, SHARE, claim, resolve, usable_cores
from lark.work.warm import WARMTH

log = logging.getLogger(__name__)

SMALL = 20_000_000
"""Parameters of a student up to which trials run in lanes. The demo's student has one million."""
MOST = 8
"""Largest number of lanes."""
TRIAL = re.compile(rb"\t#\d+ : ")
"""How Hydra announces a trial, also one of another lane."""


def lanes(trials: Iterable[Config]) -> int:
    """How many trials run at once: one, unless all of them train or evaluate a small student on a CPU."""
    configs = list(trials)
    if len(configs) < 2 or any(config.analysis.name is not None for config in configs):
        return 1  # an analysis may measure time
    if any(
        resolve(config.hardware, here=False).device != "cpu" or config.hardware.threads for config in configs
    ):
        return 1
    if any(config.hardware.processes > 1 or config.hardware.cluster != "none" for config in configs):
        return 1
    shapes = [shape_of(config.student) for config in configs]
    small = all(shape is not None and shape.parameters <= SMALL for shape in shapes)
    return min(usable_cores(), len(configs), MOST) if small else 1


def run(command: Sequence[str], number: int) -> int:
    """Run a sweep's command in this number of lanes; return its exit code, or the first that is not 0."""
    if number == 1:
        return subprocess.run(command, cwd=ROOT, check=False, preexec_fn=die_with_parent).returncode
    with TemporaryDirectory(prefix="lark-claims-") as claims:
        started = [
            subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, **_environment(number, claims), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,  # noqa: PLW1509  # the child only calls prctl
            )
            for lane in range(number)
        ]  # fmt: skip
        readers = [_reader(process.stdout, lane) for lane, process in enumerate(started) if process.stdout]
        codes = [process.wait() for process in started]
        for reader in readers:
            reader.join()
    return next((code for code in codes if code), 0)


def fork(jobs: Sequence[Callable[[], object]], number: int) -> None:
    """Do all jobs in forks of this process, each with a share of the cores, and wait for them."""
    WARMTH.close()  # two lanes must not use the same warm process
    with TemporaryDirectory(prefix="lark-claims-") as claims:
        children, outputs = [], []
        for _ in range(number):
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                _be_a_lane(jobs, _environment(number, claims), write)
            os.close(write)
            children.append(child)
            outputs.append(os.fdopen(read, "rb"))
        readers = [
            _reader(output, lane) for lane, output in enumerate(outputs)
        ]  # only now: a fork must not inherit threads
        for child in children:
            os.waitpid(child, 0)
        for reader in readers:
            reader.join()


def _be_a_lane(jobs: Sequence[Callable[[], object]], environment: Mapping[str, str], output: int) -> NoReturn:
    """Work, and end without what the parent does at its own end."""
    try:
        die_with_parent()
        os.environ.update(environment)
        for stream in (1, 2):
            os.dup2(output, stream)
        for number, job in enumerate(jobs):
            if claim(number):
                job()
    except BaseException:  # the parent does what is missing, and reports what stops it
        log.debug("a lane has failed", exc_info=True)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _environment(number: int, claims: str) -> dict[str, str]:
    return {SHARE: str(number), CLAIMS: claims}


def _reader(output: IO[bytes], lane: int) -> threading.Thread:
    reader = threading.Thread(target=_copy, args=(output, lane), daemon=True)
    reader.start()
    return reader


def _copy(output: IO[bytes], lane: int) -> None:
    """Copy a lane's output line by line, so that the lines of several lanes do not mix. Updates of a bar
    are lines too.
    """
    rest, announced, ended = b"", b"", False
    while not ended:
        chunk = os.read(output.fileno(), 65536)
        ended = not chunk
        *complete, rest = re.split(rb"[\r\n]+", rest + (chunk or b"\n"))
        for line in filter(bytes.strip, complete):
            if TRIAL.match(line):
                announced = b"[%d] %s\n" % (lane + 1, line)  # another lane has taken it if nothing follows
                continue
            sys.stderr.buffer.write(announced + b"[%d] %s\n" % (lane + 1, line))
            announced = b""
        sys.stderr.buffer.flush()


def described(number: int) -> str:
    return "" if number == 1 else f" in {counted(number, 'lane')}, each with a share of the cores"
