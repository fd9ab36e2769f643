"""Trials of a sweep side by side on one machine, where that is faster.

A small student cannot use several cores well: its matrix products are too small to share. So each core gets a *lane*, a process
of run.py that runs every n-th trial with one core. Lanes share the store: what two trials need is made by one of them, while the
other waits. Results do not depend on the number of lanes, because they do not depend on the number of threads.
"""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO

from experiments.harness.sweep import ROOT, Sweep, counted
from lark.models.shapes import shape_of
from lark.runtime.launch import die_with_parent
from lark.runtime.machine import SHARE, resolve, usable_cores

SMALL = 20_000_000
"""Parameters of a student up to which trials run in lanes. The demo's student has one million."""
MOST = 8
"""Largest number of lanes."""
TRIAL = re.compile(rb"\t#(\d+) : ")
"""How Hydra announces a trial, also one of another lane."""


def lanes(sweep: Sweep) -> int:
    """How many trials run at once: one, unless all of them train or evaluate a small student on a CPU."""
    configs = [trial.config for trial in sweep.trials]
    if len(configs) < 2 or any(config.analysis.name is not None for config in configs):
        return 1  # an analysis may measure time
    if any(resolve(config.hardware, here=False).device != "cpu" or config.hardware.threads for config in configs):
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
    started = [
        subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, SHARE: f"{lane}/{number}", "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,  # noqa: PLW1509  # the child only calls prctl
        )
        for lane in range(number)
    ]  # fmt: skip
    readers = []
    for lane, process in enumerate(started):
        readers.append(threading.Thread(target=_copy, args=(process.stdout, lane, number), daemon=True))
        readers[-1].start()
    codes = [process.wait() for process in started]
    for reader in readers:
        reader.join()
    return next((code for code in codes if code), 0)


def _copy(output: IO[bytes], lane: int, number: int) -> None:
    """Copy a lane's output line by line, so that the lines of several lanes do not mix. Updates of a bar are lines too."""
    rest, ended = b"", False
    while not ended:
        chunk = os.read(output.fileno(), 65536)
        ended = not chunk
        *complete, rest = re.split(rb"[\r\n]+", rest + (chunk or b"\n"))
        for line in complete:
            trial = TRIAL.match(line)
            if line.strip() and not (trial and int(trial[1]) % number != lane):
                sys.stderr.buffer.write(b"[%d] %s\n" % (lane + 1, line))
        sys.stderr.buffer.flush()


def described(number: int) -> str:
    return "" if number == 1 else f" in {counted(number, 'lane')}, each with a share of the cores"
