"""The process that counts the tokens of every trajectory."""

import contextlib
from collections.abc import Iterator, Sequence
from functools import cache

import pyarrow as pa

from lark.models.load import load_chat
from lark.pool import trajectories as pools
from lark.pool.trajectories import KEY
from lark.scoring import shards, sources
from lark.scoring.pool_pass import as_arrow, id_table
from lark.scoring.taken import Taken
from lark.store.part_files import intact, write_part
from lark.work.operation import Job
from lark.work.sharding import Do, Progress, Shard, Work, in_shards


@in_shards
def lengths(job: Job) -> Work:
    """Tokens of every trajectory under the student's tokenizer and chat template. A shard is a row group of
    the pool.
    """
    path = job.inputs["pool"] / pools.FILE
    table = sources.LENGTHS_TABLE
    groups = {shards.name(table.name, rows): rows for rows in pools.group_rows(path)}

    def missing(wanted: Sequence[Shard]) -> list[Shard]:
        keys = pa.Table.from_pandas(pools.frame(path, KEY), schema=pa.schema(dict.fromkeys(KEY, pa.string())))
        if intact(job.folder / table.file, lambda merged: shards.is_lengths(merged, keys)):
            return []

        def is_done(shard: Shard) -> bool:
            rows = groups[shard.name]
            part = keys.slice(rows.start, len(rows))
            return intact(job.folder / shard.name, lambda stored: shards.is_lengths(stored, part))

        return [shard for shard in wanted if not is_done(shard)]

    taken = Taken(job.folder)

    @contextlib.contextmanager
    def load() -> Iterator[Do]:
        student = job.config.student
        chat = cache(lambda: load_chat(job.weights, student, job.config.pool.turns == "last"))

        def lengths_of(numbers: Sequence[int], group: range) -> pa.Table:
            read = shards.read_rows(path, group, pools.TEXT_COLUMNS)
            rows = [read[number - group.start] for number in numbers]
            encoded = chat().encode_many(rows, student.max_length)
            n_prompt = [len(e.ids) - e.n_response for e in encoded]
            return as_arrow(id_table(rows, encoded, n_prompt=n_prompt))

        def do(wanted: Sequence[Shard], progress: Progress) -> None:
            for shard in wanted:
                group = groups[shard.name]
                new = taken.missing(group)
                computed = lengths_of(new, group) if new else None
                write_part(taken.completed(group, new, computed), job.folder / shard.name)
                progress.update(len(new))

        yield do

    bounds = [(rows.start, rows.stop) for rows in groups.values()]
    sizes = {name: len(taken.missing(rows)) for name, rows in groups.items()}
    return Work(
        [Shard(name, size, size) for name, size in sizes.items()],
        missing,
        load,
        lambda done: {"shards": bounds},
        lambda shard: shards.named(shards.read_rows(path, groups[shard.name], KEY)),
        "tokenising",
        "traj",
    )
