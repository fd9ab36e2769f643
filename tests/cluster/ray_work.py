"""Work in shards without a model, for the tests of actors. A shard is a file with the node that wrote it."""

import contextlib
import errno
import fcntl
import logging
import os
import signal
import time
from collections.abc import Iterator, Sequence

from lark.store.locks import locked
from lark.work.operation import Job
from lark.work.sharding import Do, Progress, Shard, Work, in_shards, together
from tests.training.waiting import group_timeout

COUNT = 60
log = logging.getLogger("lark.test")


@in_shards
def work(job: Job) -> Work:
    """Files in the job's folder say what happens: `slow` (each shard takes a second), `bad-<name>`,
    `deadly-<name>`, `stopped-<name>`, `stuck-<name>`, `unlockable` (shards take turns, on a file system
    that has no locks).
    """

    @contextlib.contextmanager
    def load() -> Iterator[Do]:
        import ray

        if (job.folder / "unloadable").exists():
            raise ValueError("this cannot be loaded")
        node = ray.get_runtime_context().get_node_id()
        (job.folder / f"ready-{node}").touch()

        def do(shards: Sequence[Shard], progress: Progress) -> None:
            for shard in shards:
                with (job.folder / "tried.txt").open("a") as handle:
                    handle.write(f"{shard.name}\n")
                if (job.folder / f"bad-{shard.name}").exists():
                    raise RuntimeError(f"{shard.name} cannot be done")
                with contextlib.suppress(FileNotFoundError):
                    (job.folder / f"deadly-{shard.name}").unlink()
                    os.kill(os.getpid(), signal.SIGKILL)
                with contextlib.suppress(FileNotFoundError):
                    (job.folder / f"stopped-{shard.name}").unlink()
                    os.kill(os.getpid(), signal.SIGSTOP)
                with contextlib.suppress(FileNotFoundError):
                    (job.folder / f"stuck-{shard.name}").unlink()
                    time.sleep(3600)
                if (job.folder / "slow").exists():
                    time.sleep(1)
                if (job.folder / "unlockable").exists():
                    take_turn(job)
                (job.folder / f"{shard.name}.done").write_text(node)

        yield do

    def missing(shards: Sequence[Shard]) -> list[Shard]:
        return [shard for shard in shards if not (job.folder / f"{shard.name}.done").exists()]

    listed = [Shard(f"s{number:02d}", cost=number) for number in range(COUNT)]
    return Work(
        listed,
        missing,
        load,
        lambda done: {"done": done.size},
        lambda shard: f"trajectory {shard.name}",
        "working",
        "s",
    )


def take_turn(job: Job) -> None:
    def flock(handle: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    fcntl.flock = flock  # in a process of its own
    while len(list(job.folder.glob("ready-*"))) < 2:  # two nodes compete for the lock
        time.sleep(0.05)
    with locked(job.folder / "turn", "a turn"):
        for what in ("in", "out"):
            with (job.folder / "turns.txt").open("a") as handle:
                handle.write(f"{what}\n")
            time.sleep(0.01)


def whole(job: Job) -> dict[str, str]:
    """Work that cannot be divided."""
    log.info("it is working")
    return {"said": "done", "actor": job.actor}


@together
def exchange(job: Job) -> dict[str, float]:
    """The processes add the numbers 1, 2, ..., and report how long they would wait for each other."""
    import torch

    number = torch.tensor([job.rank + 1.0])
    torch.distributed.all_reduce(number)
    return {"sum": number.item(), "timeout": group_timeout()}
