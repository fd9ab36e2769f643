"""The process that does an operation's heavy work. Started by launch.py, once per step, with a job file.

Run as: python -m lark.work.worker <folder>/job.json   (or the same under torchrun)
"""

import atexit
import contextlib
import json
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from lark.printing import log_to
from lark.store.disk import is_disk_full
from lark.store.store import write_text
from lark.work import heartbeat
from lark.work.devices import for_allocator, leave_group, narrow
from lark.work.entry import prepare
from lark.work.failures import failure_of
from lark.work.launch import DISK_FULL, ERROR, NOT_WRITTEN, RESULT, die_with_parent, read_job
from lark.work.operation import Job, imported

LEADER = "lark.cluster.crew:run_on_cluster"
"""The function that a worker calls on a cluster: it leads the processes of all nodes. It is named, not
imported, because work on one machine needs nothing of a cluster.
"""


def main(path: Path) -> int:
    die_with_parent()
    prepare()
    job, target = read_job(path)
    log_to(level=logging.INFO if job.is_main else logging.WARNING)
    # On CPU, its import warns about a kernel that is not used.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    beating = heartbeat.start(
        job.folder, job.rank, job.config.hardware.silence, leads=bool(job.machine.cluster)
    )
    # Before the import below, which may query CUDA.
    if job.machine.device == "cuda" and not job.machine.cluster:
        if job.gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = narrow(os.environ, job.gpus)
        os.environ.update(for_allocator(job.allocator, os.environ))
    try:
        counts = imported(LEADER)(target, job) if job.machine.cluster else imported(target)(job)
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

    Threads of PyTorch may outlive a group of processes. One that needs the interpreter while it is
    finalised aborts the process ("terminate called without an active exception"), although its work is
    finished and written.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def report(error: Exception, job: Job) -> None:
    """Write an error for launch.py. The first one counts: when one process fails, the others fail because
    they lose it.
    """
    if (job.folder / ERROR).exists():
        return
    described = {**failure_of(error, job.folder).to_dict(), "rank": job.rank}
    write_text(job.folder / ERROR, json.dumps(described))


if __name__ == "__main__":
    leave(main(Path(sys.argv[1])))
