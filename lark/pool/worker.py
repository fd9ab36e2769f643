"""Reading the groups of a large pool as shards, on the nodes of a Ray cluster. The pool's files must be on
the shared disk.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lark.pool.group_reports import has_report, read_report, report_files, write_report
from lark.pool.partition import GroupReport, Starts, groups, merged, part_of, read_all, read_group
from lark.reading.untrusted import readable_object
from lark.store.store import write_text
from lark.work.launch import run_worker
from lark.work.operation import Job
from lark.work.sharding import Do, Progress, Shard, Work, in_shards

STARTS = "starts.json"
"""The numbers that each group starts with, for the processes that read the groups."""
TARGET = f"{__name__}:read_groups"


@in_shards
def read_groups(job: Job) -> Work:
    """Read the groups that STARTS names. A shard is a group of files."""
    pool = job.config.pool
    split = groups(pool)
    starts = _read_starts(job.folder)

    def is_missing(shard: Shard) -> bool:
        number = int(shard.name)
        return not has_report(part_of(job.folder, number), starts[number])

    def missing(shards: Sequence[Shard]) -> list[Shard]:
        return [shard for shard in shards if is_missing(shard)]

    @contextlib.contextmanager
    def load() -> Iterator[Do]:
        def do(shards: Sequence[Shard], progress: Progress) -> None:
            for shard in shards:
                number = int(shard.name)
                part = part_of(job.folder, number)
                report = read_group(pool, split[number], part, starts[number])
                write_report(report, part, starts[number])
                progress.update(shard.size)

        yield do

    def named(shard: Shard) -> str:
        return ", ".join(map(str, split[int(shard.name)]))

    shards = [_shard(number, split[number]) for number in starts]
    return Work(shards, missing, load, lambda done: {}, named, "reading", "B")


def _shard(number: int, files: Sequence[Path]) -> Shard:
    size = sum(file.stat().st_size for file in files)
    return Shard(str(number), size, size)


def _read_starts(folder: Path) -> dict[int, dict[str, int]]:
    stored = readable_object(folder / STARTS) or {}
    return {int(number): start for number, start in stored.items()}


def write_parts_on_cluster(job: Job, split: Sequence[Sequence[Path]]) -> dict[str, Any]:
    """Read the groups on the cluster and write their parts; return the summary of the pool. Resumes from
    finished groups.
    """
    pool = job.config.pool

    def read_on_nodes(starts: Starts) -> list[GroupReport]:
        as_objects = {number: dict(start) for number, start in starts.items()}
        write_text(job.folder / STARTS, json.dumps(as_objects))
        run_worker(replace(job, on_cpu=True), TARGET, 1)
        return [read_report(part_of(job.folder, number), pool) for number in starts]

    reports = read_all(len(split), read_on_nodes)
    counts = merged(pool, reports)
    (job.folder / STARTS).unlink(missing_ok=True)
    for number in range(len(split)):
        for file in report_files(part_of(job.folder, number)):
            file.unlink(missing_ok=True)
    return counts
