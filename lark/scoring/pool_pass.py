"""One pass of the student over the pool: the shards that are missing, and how a process computes them.

The passes differ only in what they do with a shard's rows (`ShardScorer`). Shards that an earlier run
finished are skipped, and each is written when it is complete (lark/work/sharding.py). The pipeline merges
them (lark/scoring/merging.py).
"""

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa

from lark.errors import LarkError
from lark.models.chat import ChatFormat, Encoded
from lark.models.load import load_chat
from lark.pool import trajectories as pools
from lark.pool.trajectories import KEY
from lark.scoring import shards
from lark.scoring.forward import LoadedStudent, batches
from lark.scoring.shards import Shards
from lark.scoring.sources import TOKENS
from lark.scoring.taken import Taken
from lark.scoring.token_files import write_shard
from lark.scoring.tokens import TrajectoryTokens
from lark.store.part_files import write_part
from lark.work.devices import start_torch
from lark.work.operation import Job
from lark.work.sharding import Do, Progress, Shard, Work

Rows = Sequence[Mapping[str, Any]]
Advance = Callable[[float], object]
"""Advances the progress bar by a number of tokens."""
Content: TypeAlias = pa.Table | list[TrajectoryTokens]
ShardScorer = Callable[[Rows, Sequence[Encoded], Advance], Mapping[str, Content]]
"""Maps a shard's rows and their tokens to the content of one file per output."""


def pass_over(
    job: Job,
    cut: Shards,
    label: str,
    scorer: Callable[[LoadedStudent], ShardScorer],
    offsets: bool = False,
    partial: Mapping[str, Shards] | None = None,
    gradients: bool = False,
    fused: bool = False,
) -> Work:
    """One pass of the student over the pool. `partial`: the shards of outputs that have only some of them.
    `offsets`: the scorer needs the characters of tokens. `gradients`: it needs gradients of hidden states.
    `fused`: it only reads the results of the forward pass, so `scoring.liger` applies.
    """
    pool = job.inputs["pool"] / pools.FILE
    ranges = {f"{rows.start}-{rows.stop}": rows for rows in cut.rows}
    cuts = dict.fromkeys(job.outputs, cut) | dict(partial or {})
    taken = {output: Taken(folder) for output, folder in job.outputs.items()}
    bounds = {}
    for output in job.outputs:
        bounds[output] = [(rows.start, rows.stop) for rows in cuts[output].rows]

    def missing_files(wanted: Sequence[Shard]) -> dict[range, dict[str, Path]]:
        """The files that each of these shards lacks, by output."""
        files: defaultdict[range, dict[str, Path]] = defaultdict(dict)
        requested = {ranges[shard.name] for shard in wanted}
        for output, folder in job.outputs.items():
            parts = requested & set(cuts[output].rows)
            for rows in cuts[output].missing(output, folder, parts):
                files[rows][output] = folder / shards.name(output, rows)
        return files

    def missing(wanted: Sequence[Shard]) -> list[Shard]:
        files = missing_files(wanted)
        return [shard for shard in wanted if ranges[shard.name] in files]

    @contextlib.contextmanager
    def load() -> Iterator[Do]:
        settings = job.config.student
        device = start_torch(job)

        @cache
        def loaded() -> tuple[ChatFormat, ShardScorer]:
            """Not before some row has to be computed: all may be copied."""
            chat = load_chat(job.weights, settings, job.config.pool.turns == "last")
            fuses = fused and job.config.scoring.liger
            return chat, scorer(LoadedStudent.load(job.weights, settings, device, gradients, fuses))

        def compute(numbers: Sequence[int], part: range, progress: Progress) -> Mapping[str, Content]:
            chat, score_shard = loaded()
            read = cut.read(pool, part, pools.TEXT_COLUMNS)
            rows = [read[number - part.start] for number in numbers]
            encoded = chat.encode_many(rows, settings.max_length, offsets)
            return score_shard(rows, encoded, progress.update)

        def do(wanted: Sequence[Shard], progress: Progress) -> None:
            files = missing_files(wanted)
            # In the order of the pool, whose row groups are read one after the other.
            for part in sorted(files, key=lambda rows: rows.start):
                numbers = {output: cuts[output].with_work(part) for output in files[part]}
                new = [taken[output].missing(rows) for output, rows in numbers.items()]
                computed = sorted(set().union(*new))
                contents = compute(computed, part, progress) if computed else {}
                for output, path in files[part].items():
                    write = _write_tokens if output == TOKENS.name else _write_table
                    write(path, taken[output], numbers[output], computed, contents.get(output))

        yield do

    def describe(shard: Shard) -> str:
        return shards.named(cut.read(pool, ranges[shard.name], KEY))

    work = cut.without(_copied(cuts, taken))
    return Work(
        [Shard(name, work.tokens_in(rows), work.cost_of(rows)) for name, rows in ranges.items()],
        missing,
        load,
        lambda done: {"shards": bounds, "tokens_per_second": done.rate},
        describe,
        label,
        "tok",
    )


def _copied(cuts: Mapping[str, Shards], taken: Mapping[str, Taken]) -> np.ndarray:
    """[N] True for rows that no output needs from the student."""
    copied = np.ones(len(next(iter(cuts.values())).tokens), dtype=bool)
    for output, part in cuts.items():
        needed = part.tokens > 0
        needed[list(taken[output].rows)] = False
        copied &= ~needed
    return copied


def _write_table(path: Path, taken: Taken, rows: Sequence[int], computed: Sequence[int], table: Any) -> None:
    """Write the file of a shard, with the rows that are copied and those that were computed."""
    write_part(taken.completed(rows, computed, table), path)


def _write_tokens(
    path: Path, taken: Taken, rows: Sequence[int], computed: Sequence[int], trajectories: Any
) -> None:
    """The same for statistics of tokens. Of the computed rows, only those of the output's questions have
    them.
    """
    requested = set(rows)
    own = [row for row in computed if row in requested]
    write_shard(path, *taken.completed_tokens(rows, own, trajectories or []))


@contextlib.contextmanager
def naming(rows: Rows, batch: Sequence[int]) -> Iterator[None]:
    """Add the names of a batch's trajectories to an error."""
    try:
        yield
    except LarkError as error:
        names = ", ".join(f"{rows[i]['question_id']}/{rows[i]['candidate_id']}" for i in batch[:5])
        end = "…" if len(batch) > 5 else "."
        raise LarkError(
            f"{error} This occurred in a batch of {len(batch)} trajectories: {names}{end}"
        ) from error


def in_batches(
    student: LoadedStudent, encoded: Sequence[Encoded], usable: Sequence[int], budget: int, advance: Advance
) -> Iterator[list[int]]:
    """Rows of each batch of the trajectories `usable`. The progress bar advances when a batch is done."""
    lengths = [len(encoded[row].ids) for row in usable]
    for places in batches(lengths, budget, padded=not student.packs):
        yield [usable[place] for place in places]
        advance(sum(lengths[place] for place in places))


def id_table(rows: Rows, encoded: Sequence[Encoded], **columns: Iterable[Any]) -> pd.DataFrame:
    """The columns that all tables of a pass have in common, and further ones."""
    ids = {name: [row[name] for row in rows] for name in KEY}
    n_tokens = [e.n_response for e in encoded]
    truncated = [e.truncated for e in encoded]
    return pd.DataFrame({**ids, "n_tokens": n_tokens, "truncated": truncated, **columns})


def as_arrow(table: pd.DataFrame) -> pa.Table:
    return pa.Table.from_pandas(table, preserve_index=False)
