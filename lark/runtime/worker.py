"""The process that does an operation's heavy work. Started by launch.py, once per step, with a job file.

Run as: python -m lark.runtime.worker <folder>/job.json   (or the same under torchrun)
"""

import importlib
import json
import logging
import os
import sys
import traceback
from pathlib import Path

from lark.errors import LarkError, is_out_of_memory, requested_memory
from lark.runtime.devices import narrow
from lark.runtime.launch import DISK_FULL, ERROR, RESULT, die_with_parent, read_job
from lark.runtime.operation import Job
from lark.runtime.store import is_disk_full, no_space, write_text


def main(path: Path) -> int:
    die_with_parent()
    job, target = read_job(path)
    logging.basicConfig(level=logging.INFO if job.is_main else logging.WARNING, format="%(message)s", force=True)
    if job.machine.device == "cuda":  # before the import below, which may query CUDA
        if job.gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = narrow(os.environ, job.gpus)
        if job.allocator and not os.environ.get("PYTORCH_CUDA_ALLOC_CONF"):
            os.environ.setdefault("PYTORCH_ALLOC_CONF", job.allocator)
    try:
        module, function = target.split(":")
        counts = getattr(importlib.import_module(module), function)(job)
    except Exception as error:
        try:
            report(error, job)
        except OSError:  # the disk is full, which launch.py reports from the exit code
            return DISK_FULL
        traceback.print_exc()  # for the log only: launch.py shows no output after the error is written
        return 1
    if job.is_main:
        write_text(job.folder / RESULT, json.dumps(dict(counts), default=str))
    return 0


def report(error: Exception, job: Job) -> None:
    """Write an error for launch.py. The first one counts: when one process fails, the others fail because they lose it."""
    if (job.folder / ERROR).exists():
        return
    full = is_disk_full(error)
    expected = full or isinstance(error, LarkError)
    message = no_space(job.folder) if full else str(error) if expected else f"{type(error).__name__}: {error}"
    memory = requested_memory(error) if not expected and is_out_of_memory(error) else None
    described = {"message": message, "expected": expected, "memory": memory, "rank": job.rank}
    write_text(job.folder / ERROR, json.dumps(described))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
