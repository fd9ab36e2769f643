"""Rows that finished artifacts already have, copied before a pass begins: a pool that grows is scored only
where it is new.

Which artifacts. Those of the same kind and version with the same `depends` (student, prompt, settings), made
from another pool (lark/store/siblings.py); the newest first. Their files, and the pool's that they were made
from, must have the checksums of their manifests: a damaged or deleted one is passed over, and its rows are
computed.

Which rows. Those whose content is the same (lark/scoring/contents.py): ids, places, teachers and the rest
of the pool do not matter. `REUSE` (lark/scoring/sources.py) has the key of each table. Almost all results
belong to one conversation. `gram` and `exact` have g*, in which every candidate of a question counts, so a
question is taken over as a whole, if its set of candidates is the same.

What is the same. A row has the same result in any batch up to rounding (decision 15), so the artifact is
that of a fresh pass and has its fingerprint. It counts the rows that were taken over, and from where.

What is not. `scoring.reuse=false` computes everything; so does a step that is forced. A row of an
interrupted artifact is not taken over.
"""

import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lark.config import Config
from lark.errors import LarkError, first_line
from lark.pool.trajectories import KEY
from lark.scoring import tokens
from lark.scoring.contents import Chat, RowKeys, contents
from lark.scoring.shards import question_order
from lark.scoring.sources import REUSE, Reuse
from lark.scoring.taken import ROW, SOURCE, TAKEN
from lark.store.integrity import verify
from lark.store.manifest import readable_manifest
from lark.store.siblings import description, siblings, siblings_of
from lark.store.store import Artifact, atomic
from lark.work.operation import Job

log = logging.getLogger(__name__)

ROWS = 1024
"""Rows of a row group of `taken.parquet`."""
Ids = tuple[str, str]


@dataclass(frozen=True)
class SourceArtifact:
    """A finished artifact, and the pool that it was made from."""

    folder: Path
    pool: Path
    turns: str
    """`pool.turns` of that pool."""

    @classmethod
    def of(cls, folder: Path) -> "SourceArtifact | None":
        """None if its rows cannot be identified: its pool is not there, or not the one that it was made
        from.
        """
        manifest = readable_manifest(folder)
        if manifest is None or "pool" not in manifest.inputs:
            return None
        pool = folder.parents[1] / manifest.inputs["pool"]
        made = readable_manifest(pool)
        inputs = description(folder).get("inputs", {})
        if made is None or not made.finished or made.fingerprint != inputs.get("pool"):
            return None
        # A pool that was made again may have other rows, if a hub has changed.
        if made.started > manifest.started:
            return None
        return cls(folder, pool, description(pool).get("depends", {}).get("turns", "all"))

    @property
    def name(self) -> str:
        return f"{self.folder.parent.name}/{self.folder.name}"

    def contents(self, reuse: Reuse, instruction: str | None) -> RowKeys:
        """The rows that it has."""
        rows = contents(self.pool, reuse.by, Chat(instruction, self.turns == "last"))
        return rows.of_questions(tokens.places(self.folder)) if reuse.of_tokens else rows


class Wanted:
    """The rows of an output that have not been found yet, by content."""

    def __init__(self, rows: RowKeys, order: np.ndarray, questions: Collection[str] | None = None) -> None:
        """`order`: the rows in the order of the pass. `questions`: those that the output has; None: all."""
        self.rows = rows
        self.numbers = np.argsort(order)
        self.places: defaultdict[bytes, list[int]] = defaultdict(list)
        for place, (question, key) in enumerate(zip(rows.question_ids, rows.keys, strict=True)):
            if questions is None or question in questions:
                self.places[key].append(place)

    @classmethod
    def of(cls, job: Job, reuse: Reuse) -> "Wanted":
        rows = contents(job.inputs["pool"], reuse.by, Chat.of(job.config))
        if reuse.whole_questions:
            return cls(rows, question_order(rows.question_ids))
        questions = None
        if reuse.of_tokens:
            questions = rows.first_questions(job.config.scoring.token_questions)
        return cls(rows, np.arange(len(rows)), questions)

    def take(self, source: RowKeys) -> dict[Ids, list[int]]:
        """The places of the rows that a source has, by the source's ids. They are no longer wanted."""
        pairs = zip(source.ids, source.keys, strict=True)
        return {ids: self.places.pop(key) for ids, key in pairs if key in self.places}

    def named(self, table: pa.Table, places: Sequence[int], source: str) -> pa.Table:
        """Rows of a source as rows of this pool."""
        names = (self.rows.question_ids, self.rows.candidate_ids)
        ids = {}
        for name, column in zip(KEY, names, strict=True):
            ids[name] = pa.array([column[place] for place in places], pa.string())
        others = {name: table[name] for name in table.column_names if name not in KEY}
        numbers = pa.array(self.numbers[list(places)], pa.int64())
        return pa.table({ROW: numbers, SOURCE: [source] * len(places), **ids, **others})


def take_over(job: Job) -> None:
    """Copy the rows that other artifacts have into the folders of the job's outputs (`Operation.prepare`)."""
    for output, folder in job.outputs.items():
        (folder / TAKEN).unlink(missing_ok=True)
        reuse = REUSE.get(output)
        if reuse is None or not job.config.scoring.reuse:
            continue
        others = siblings(folder, reuse.but)
        # Usually there are none, and the pool is not read.
        if any(map(SourceArtifact.of, others)):
            wanted = Wanted.of(job, reuse)
            tables = _copies(wanted, reuse, others, job.config.student.instruction)
            _report(job.operation, len(wanted.rows), _write(tables, folder / TAKEN))


def new_rows(artifacts: Sequence[Artifact], config: Config, rows: Callable[[], RowKeys]) -> np.ndarray | None:
    """[N] For a plan: the rows that a pass computes for these artifacts, because finished ones do not have
    them. `rows` reads the pool's conversations. None: all rows.

    Nothing is verified here: a damaged artifact is noticed when its rows are copied.
    """
    if not config.scoring.reuse:
        return None
    others: list[tuple[Reuse, list[Path]]] = []
    for artifact in artifacts:
        manifest = readable_manifest(config.outputs_path / artifact.folder)
        if manifest is not None and manifest.finished:
            continue
        reuse = REUSE.get(artifact.kind.name)
        folders = siblings_of(artifact, config.outputs_path, reuse.but) if reuse is not None else []
        if reuse is None or not folders:
            return None
        others.append((reuse, folders))
    conversations = rows()
    is_new = np.zeros(len(conversations), dtype=bool)
    for reuse, folders in others:
        is_new[_missing(conversations, reuse, folders, config)] = True
    return is_new


def _missing(rows: RowKeys, reuse: Reuse, others: Sequence[Path], config: Config) -> list[int]:
    """The rows that no source has."""
    questions = rows.first_questions(config.scoring.token_questions) if reuse.of_tokens else None
    wanted = Wanted(rows.by(reuse.by), np.arange(len(rows)), questions)
    for source in filter(None, map(SourceArtifact.of, others)):
        with contextlib.suppress(LarkError, OSError, pa.ArrowException, KeyError):
            wanted.take(source.contents(reuse, config.student.instruction))
    return list(chain.from_iterable(wanted.places.values()))


def _write(tables: Iterator[pa.Table], path: Path) -> Counter[str]:
    """Write the copied rows; return their number by source."""
    counts: Counter[str] = Counter()
    first = next(tables, None)
    if first is None:
        return counts
    with (
        atomic(path) as draft,
        pq.ParquetWriter(draft, first.schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        for table in chain([first], tables):
            # Tables of other origin have other types of text.
            writer.write_table(table.cast(first.schema), row_group_size=ROWS)
            counts.update(table[SOURCE].to_pylist())
    return counts


def _report(operation: str, rows: int, counts: Counter[str]) -> None:
    if counts:
        names = ", ".join(counts)
        log.info("%s: %d of %d trajectories are taken over from %s", operation, counts.total(), rows, names)


def _copies(
    wanted: Wanted, reuse: Reuse, others: Sequence[Path], instruction: str | None
) -> Iterator[pa.Table]:
    """The rows that are found, source by source."""
    for source in filter(None, map(SourceArtifact.of, others)):
        if not wanted.places:
            return
        try:
            verify(source.folder)
            verify(source.pool)
            yield from _from(source, reuse, wanted, instruction)
        except (LarkError, OSError, pa.ArrowException, KeyError) as error:
            log.warning("%s: no rows are taken over (%s)", source.name, first_line(error))


def _from(
    source: SourceArtifact, reuse: Reuse, wanted: Wanted, instruction: str | None
) -> Iterator[pa.Table]:
    rows = source.contents(reuse, instruction)
    if reuse.of_tokens:
        yield from _token_rows(source, wanted, wanted.take(rows))
        return
    table = pq.read_table(source.folder / reuse.kind.file, page_checksum_verification=True)
    # Without one of a question's candidates, its others would be computed as if that did not exist.
    if not set(reuse.columns) <= set(table.column_names) or len(table) != len(rows):
        return
    selected = _selected(table.select([*KEY, *reuse.columns]), wanted, wanted.take(rows), source)
    if selected is not None:
        yield selected


def _token_rows(
    source: SourceArtifact, wanted: Wanted, places: Mapping[Ids, list[int]]
) -> Iterator[pa.Table]:
    """Question by question: the statistics of all tokens may not fit into memory."""
    for question in dict.fromkeys(question for question, _ in places):
        for table in tokens.read_tables(source.folder, question):
            rows = _selected(table, wanted, places, source)
            if rows is not None:
                yield rows


def _selected(
    table: pa.Table, wanted: Wanted, places: Mapping[Ids, list[int]], source: SourceArtifact
) -> pa.Table | None:
    """The rows of a source's table that are taken over; None if none are."""
    indices: list[int] = []
    targets: list[int] = []
    ids = zip(*(table[name].to_pylist() for name in KEY), strict=True)
    for index, key in enumerate(ids):
        # Equal rows of this pool have one row of the source.
        for place in places.get(key, ()):
            indices.append(index)
            targets.append(place)
    return wanted.named(table.take(indices), targets, source.name) if indices else None
