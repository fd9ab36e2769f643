"""A process on a node of a Ray cluster that does shards. The step's worker process leads it
(lark/cluster/crew.py).
"""

import contextlib
import json
import logging
import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lark.cluster.relay import Relay
from lark.errors import LarkError
from lark.printing import log_to
from lark.store.store import write_text
from lark.work.entry import prepare
from lark.work.failures import failure_of
from lark.work.heartbeat import start_remote
from lark.work.launch import JOB, read_job
from lark.work.operation import Counts, Job, imported
from lark.work.process import ROOT, for_actor
from lark.work.sharding import Do, InShards, Progress, Shard, Work, WorkDone

UNDIVIDED_RESULT = ".whole.json"
"""Result of a function that is not divided, until the leader reads it."""

Outcome = dict[str, Any]
"""The answer of an actor: `warnings`, and `failure` (of `WorkerFailure`) with its `trace` if it failed."""


def work_of(function: Callable[[Job], Counts], job: Job) -> Work:
    """The work of a function in shards; one shard if it cannot be divided."""
    if isinstance(function, InShards):
        return function.work(job)
    file = job.folder / UNDIVIDED_RESULT

    def do(shards: Sequence[Shard], progress: Progress) -> None:
        write_text(file, json.dumps(dict(function(replace(job, actor=""))), default=str))
        progress.update(1)

    def counts(done: WorkDone) -> Counts:
        result = dict(json.loads(file.read_text(encoding="utf-8")))
        file.unlink()
        return result

    return Work(
        shards=[Shard("all")],
        missing=list,
        load=lambda: contextlib.nullcontext(do),
        counts=counts,
        describe=lambda shard: "all of it",
        label=job.operation,
        unit="step",
    )


def _check_shared(folder: Path) -> None:
    """Refuse outputs that this node does not see."""
    if not (folder / JOB).is_file():
        raise LarkError(
            f"{folder} is not visible on {socket.gethostname()}: `outputs` must be a folder on a"
            " file system that all nodes of the cluster share."
        )


class Actor:
    """A process on a node. Its class becomes a Ray actor in `crew.py`."""

    def __init__(self) -> None:
        self.do: Do | None = None
        self.shards: dict[str, Shard] = {}
        self.stack = contextlib.ExitStack()
        self.folder = Path()
        self.busy = False
        self.alone = False
        """True if it does all of the work, so that its messages are the step's and are passed on at once."""

    def load(self, folder: str, name: str) -> Outcome:
        """Load what the work in this folder needs."""
        self.folder = Path(folder)
        with self._outcome() as outcome:
            prepare()
            log_to(level=logging.WARNING)
            _check_shared(self.folder)
            job, target = read_job(self.folder / JOB)
            start_remote(self.folder, name, job.config.hardware.silence, lambda: self.busy)
            os.environ.update(for_actor(job.machine, job.allocator, job.on_cpu))
            sys.path[:0] = [str(ROOT)] * (str(ROOT) not in sys.path)
            called = imported(target)
            self.alone = not isinstance(called, InShards)
            if self.alone:
                logging.getLogger().addHandler(Relay(self.folder))
                logging.getLogger("lark").setLevel(logging.INFO)
            work = work_of(called, replace(job, actor=name))
            self.shards = {shard.name: shard for shard in work.shards}
            self.do = self.stack.enter_context(work.load())
        return outcome

    def run(self, names: Sequence[str]) -> Outcome:
        """Do some shards."""
        with self._outcome() as outcome:
            assert self.do is not None
            self.do([self.shards[name] for name in names], _Quiet())
        return outcome

    def close(self) -> None:
        """End what `load` has started, such as an engine's processes."""
        self.stack.close()

    @contextlib.contextmanager
    def _outcome(self) -> Iterator[Outcome]:
        """Collect warnings, and describe an error. Exceptions of other libraries need not be known to the
        leader.
        """
        outcome: Outcome = {"warnings": []}
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: self.alone or outcome["warnings"].append(record.getMessage())  # type: ignore
        logging.getLogger().addHandler(handler)
        self.busy = True
        try:
            yield outcome
        except Exception as error:
            outcome |= {"failure": failure_of(error, self.folder).to_dict(), "trace": traceback.format_exc()}
        finally:
            self.busy = False
            logging.getLogger().removeHandler(handler)


class _Quiet:
    """Progress of an actor: the leader counts finished shards."""

    def update(self, size: float) -> None: ...

    def note(self, text: str) -> None: ...
