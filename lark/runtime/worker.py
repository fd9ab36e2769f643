"""The process that does an operation's heavy work. Started by launch.py, once per step, with a job file.

Run as: python -m lark.runtime.worker <folder>/job.json   (or the same under torchrun)
"""

import atexit
import contextlib
import importlib
import json
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from lark.printing import log_to
from lark.runtime import heartbeat
from lark.runtime.crew import run_on_cluster
from lark.runtime.devices import for_allocator, leave_group, narrow
from lark.runtime.disk import is_disk_full
from lark.runtime.entry import prepare
from lark.runtime.failures import failure_of
from lark.runtime.launch import DISK_FULL, ERROR, NOT_WRITTEN, RESULT, die_with_parent, read_job
from lark.runtime.operation import Job
from lark.runtime.store import write_text


def main(path: Path) -> int:
    die_with_parent()
    prepare()
    job, target = read_job(path)
    log_to(level=logging.INFO if job.is_main else logging.WARNING)
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # on CPU, its import warns about a kernel that is not used
    beating = heartbeat.start(job.folder, job.rank, job.config.hardware.silence, leads=bool(job.machine.cluster))
    if job.machine.device == "cuda" and not job.machine.cluster:  # before the import below, which may query CUDA
        if job.gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = narrow(os.environ, job.gpus)
        os.environ.update(for_allocator(job.allocator, os.environ))
    try:
        module, name = target.split(":")
        function = getattr(importlib.import_module(module), name)
        counts = run_on_cluster(function, job, target) if job.machine.cluster else function(job)
    except Exception as error:
        try:
            report(error, job)
        except OSError as failure:  # launch.py reports it from the exit code
            return DISK_FULL if is_disk_full(failure) else NOT_WRITTEN
        traceback.print_exc()  # for the log only: launch.py shows no output after the error is written
        return 1
    if job.is_main:
        write_text(job.folder / RESULT, json.dumps(dict(counts), default=str))
    leave_group()
    beating.set()
    return 0


def leave(code: int) -> NoReturn:
    """End this process after its exit handlers, without the interpreter's finalisation.

    Threads of PyTorch may outlive a group of processes. One that needs the interpreter while it is finalised aborts the process
    ("terminate called without an active exception"), although its work is finished and written.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def report(error: Exception, job: Job) -> None:
    """Write an error for launch.py. The first one counts: when one process fails, the others fail because they lose it."""
    if (job.folder / ERROR).exists():
        return
    described = {**failure_of(error, job.folder).to_dict(), "rank": job.rank}
    write_text(job.folder / ERROR, json.dumps(described))


if __name__ == "__main__":
    leave(main(Path(sys.argv[1])))
