"""Read a large pool of many files in several processes, into one Parquet file for each group of source files.

Groups are consecutive files of about PART_BYTES, so the parts and their order depend on the files alone,
not on the number of processes. Each group is read by the loop that reads a whole pool (`read.Reading`), and
the parts together have the trajectories of one process, in its order: a pool in one file is the case of one
group. What concerns several groups is checked here: a question's text, candidates that appear twice, and the
numbers of trajectories without a candidate_id or rollout. A group whose numbers depend on earlier groups is
read a second time.
"""

import os
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from lark import config as conf
from lark.errors import LarkError
from lark.pool import trajectories as pools
from lark.pool.checks import check_fields_used
from lark.pool.cleaning import Tally
from lark.pool.files import table_files
from lark.pool.formats import file_rows
from lark.pool.read import Reading, finish, read
from lark.pool.source import SourceReader
from lark.pool.summary import Summary
from lark.work.machine import usable_cores
from lark.work.process import die_with_parent

PART_BYTES = 64_000_000
"""Size of the source files of a part. A pool that is smaller is in one file."""
Files = Sequence[Path]
Starts = Mapping[int, Mapping[str, int]]
"""Groups to read, and of each the numbers that the trajectories of its questions start with."""


def groups(pool: conf.Pool) -> list[list[Path]]:
    """The pool's files in groups, each the source of one part. Empty: one process reads the pool."""
    # Votes, samples and the like depend on all trajectories before the first can be written.
    is_changed = pool.labels == "vote" or pool.decontaminate or pool.noise_share > 0
    if pool.format != "rows" or pool.questions is not None or is_changed:
        return []
    split: list[list[Path]] = []
    size = PART_BYTES
    for file in table_files(pool).files:
        if size >= PART_BYTES:
            split.append([])
            size = 0
        split[-1].append(file)
        size += file.stat().st_size
    return split if len(split) > 1 else []


@dataclass
class GroupReport:
    """The report of a process on the group of files that it has read."""

    tally: Tally
    summary: Summary
    counts: Counter[str]
    """Trajectories of each question, also those that are left out."""
    numbered: set[str]
    """Questions whose candidates or rollouts are numbered."""
    texts: dict[str, int]
    """The hash of each question's text."""
    keys: np.ndarray
    """[rows] hashes of the trajectories' ids, also of those that are left out."""
    missing: set[str] = field(default_factory=set)
    """Names in pool.fields whose column no row has."""
    questions: set[str] = field(default_factory=set)
    """Ids of all questions, if pool.ids names those to read."""


def read_group(pool: conf.Pool, files: Files, path: Path, start: Mapping[str, int]) -> GroupReport:
    """Read some files and write their part. `start`: trajectories of their questions in earlier groups."""
    tally = Tally()
    source = SourceReader(pool, tally, start)
    reading = Reading(pool, tally)
    summary = Summary(pool, tally)
    trajectories = source.trajectories(file_rows(files, tally.empty, pool))
    pools.write_part(reading.kept(trajectories), path, summary)
    return GroupReport(
        tally=tally,
        summary=summary,
        counts=source.counts - Counter(start),
        numbered=source.numbered,
        texts=reading.texts,
        keys=np.fromiter(reading.keys, np.uint64),
        missing=source.missing,
        questions=reading.questions,
    )


def write_parts(
    pool: conf.Pool, split: Sequence[Files], folder: Path, processes: int | None = None
) -> dict[str, Any]:
    """Read the groups in processes of this machine and write their parts; return the summary of the pool."""
    for stale in pools.parts(folder / pools.FILE):
        stale.unlink(missing_ok=True)
    count = min(processes or usable_cores(), len(split))
    # Not forked: threads of pyarrow may hold locks that a copy of this process would wait for.
    with ProcessPoolExecutor(count, get_context("spawn"), _prepare, (os.getpid(),)) as executor:

        def read_groups(starts: Starts) -> list[GroupReport]:
            futures = []
            for number, start in starts.items():
                part = part_of(folder, number)
                futures.append(executor.submit(read_group, pool, split[number], part, start))
            return [future.result() for future in futures]  # the error of the first file comes first

        try:
            reports = read_all(len(split), read_groups)
        except BaseException:
            executor.shutdown(cancel_futures=True)
            raise
    return merged(pool, reports)


def _prepare(parent: int) -> None:
    die_with_parent()
    if os.getppid() != parent:  # it ended before
        os._exit(1)


def part_of(folder: Path, number: int) -> Path:
    return folder / pools.part_name(number)


def read_all(count: int, read_groups: Callable[[Starts], list[GroupReport]]) -> list[GroupReport]:
    """Read all groups with `read_groups`, and again those whose numbers depend on earlier ones."""
    reports = read_groups({number: {} for number in range(count)})
    starts = _renumbered(reports)
    if starts:
        for number, report in zip(starts, read_groups(starts), strict=True):
            reports[number] = report
    return reports


def _renumbered(reports: Sequence[GroupReport]) -> dict[int, dict[str, int]]:
    """Groups to read again because an earlier group has some of their questions, and the number at which
    each question continues.
    """
    before: Counter[str] = Counter()
    starts: dict[int, dict[str, int]] = {}
    for number, report in enumerate(reports):
        if any(before[question] for question in report.numbered):
            common = before.keys() & report.counts.keys()
            starts[number] = {question: before[question] for question in common}
        before.update(report.counts)
    return starts


def merged(pool: conf.Pool, reports: Sequence[GroupReport]) -> dict[str, Any]:
    """Check what concerns several groups; return the summary of the pool."""
    _check_across(pool, reports)
    tally = Tally()
    tally.count_files(table_files(pool))
    summary = Summary(pool, tally)
    missing = set(pool.fields)
    questions: set[str] = set()
    for report in reports:
        tally.merge(report.tally)
        summary.merge(report.summary)
        missing &= report.missing
        questions |= report.questions
    check_fields_used(pool, missing)
    finish(pool, tally, questions)
    return {**pools.described(summary, tally, pool), "parts": len(reports)}


def _check_across(pool: conf.Pool, reports: Sequence[GroupReport]) -> None:
    """Refuse a question with two texts, and a candidate that appears twice, in different groups."""
    texts: dict[str, int] = {}
    has_two_texts = False
    for report in reports:
        for question, text in report.texts.items():
            has_two_texts |= texts.setdefault(question, text) != text
    keys = np.concatenate([report.keys for report in reports])
    if has_two_texts or len(np.unique(keys)) < len(keys):
        # The reports have no lines. The loop over the whole pool stops at the first error and names its line.
        deque(read(pool), maxlen=0)
        raise LarkError(
            f"pool.path={pool.path}: a file has changed while it was read. Run the same command again."
        )
