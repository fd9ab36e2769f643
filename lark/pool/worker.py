"""Reading the groups of a large pool as shards, on the nodes of a Ray cluster. The pool's files must be on
the shared disk.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lark.pool.group_reports import has_report, paths, read_report, write_report
from lark.pool.partition import GroupReport, groups, merged, part_of, read_all, read_group
from lark.reading.untrusted import readable_object
from lark.store.store import write_text
from lark.work.launch import run_worker
from lark.work.operation import Job
from lark.work.sharding import Do, Progress, Shard, Work, in_shards

STARTS = "starts.json"
"""What the numbers of each group start with, for the processes that read them."""
TARGET = f"{__name__}:read_groups"


@in_shards
def read_groups(job: Job) -> Work:
    """Read the groups that STARTS names. A shard is a group of files."""
    pool, split = job.config.pool, groups(job.config.pool)
    starts = {int(number): start for number, start in (readable_object(job.folder / STARTS) or {}).items()}
    sizes = {number: sum(file.stat().st_size for file in split[number]) for number in starts}

    def missing(some: Sequence[Shard]) -> list[Shard]:
        return [
            shard
            for shard in some
            if not has_report(part_of(job.folder, int(shard.name)), starts[int(shard.name)])
        ]

    @contextlib.contextmanager
    def load() -> Iterator[Do]:
        def do(some: Sequence[Shard], progress: Progress) -> None:
            for shard in some:
                number = int(shard.name)
                part = part_of(job.folder, number)
                write_report(read_group(pool, split[number], part, starts[number]), part, starts[number])
                progress.update(shard.size)

        yield do

    listed = [Shard(str(number), size, size) for number, size in sizes.items()]
    return Work(
        listed,
        missing,
        load,
        lambda done: {},
        lambda shard: ", ".join(map(str, split[int(shard.name)])),
        "reading",
        "B",
    )


def write_parts_on_cluster(job: Job, split: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Read the groups on the cluster and write their parts; return the summary of the pool. Resumes from
    finished groups.
    """

    def read_some(starts: Mapping[int, Mapping[str, int]]) -> list[GroupReport]:
        write_text(job.folder / STARTS, json.dumps({number: dict(start) for number, start in starts.items()}))
        run_worker(replace(job, on_cpu=True), TARGET, 1)
        return [read_report(part_of(job.folder, number), job.config.pool) for number in starts]

    counts = merged(job.config.pool, split, read_all(len(split), read_some))
    for file in (
        job.folder / STARTS,
        *(path for n in range(len(split)) for path in paths(part_of(job.folder, n))),
    ):
        file.unlink(missing_ok=True)
    return counts
