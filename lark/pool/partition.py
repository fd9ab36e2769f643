"""Read a large pool of many files in several processes, into one Parquet file for each group of source
files.

Groups are consecutive files of about PART_BYTES, so the parts and their order depend on the files alone,
not on the number of processes. The parts together have the trajectories of one process, in its order. What
concerns several groups is checked here: a question's text, candidates that appear twice, and the numbers of
trajectories without a candidate_id or rollout. A group whose numbers depend on earlier groups is read a
second time.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from lark import config as conf
from lark.errors import LarkError
from lark.pool import trajectories as pools
from lark.pool.cleaning import Filter, Tally
from lark.pool.files import table_files
from lark.pool.formats import file_rows
from lark.pool.layouts import check
from lark.pool.read import Known, Numbering, another_text, check_missing, check_named, from_rows, second_time
from lark.pool.summary import Summary
from lark.pool.trajectory import Trajectory
from lark.work.machine import usable_cores
from lark.work.process import die_with_parent

PART_BYTES = 64_000_000
"""Size of the source files of a part. A pool that is smaller is in one file."""


def groups(pool: conf.Pool) -> list[list[Path]]:
    """The pool's files in groups, each the source of one part. Fewer than two: the pool is read by one
    process.

    So are pools in which a trajectory depends on all others before it can be written: those that are
    sampled, mixed, labelled by votes, decontaminated or damaged on purpose, and other formats than files of
    rows.
    """
    whole = (
        pool.format != "rows"
        or pool.questions is not None
        or pool.labels == "vote"
        or pool.decontaminate
        or pool.noise_share
    )
    if whole:
        return []
    found: list[list[Path]] = []
    size = PART_BYTES
    for file in table_files(pool).files:
        if size >= PART_BYTES:
            found.append([])
            size = 0
        found[-1].append(file)
        size += file.stat().st_size
    return found


@dataclass
class GroupReport:
    """What one process reports about a group of files."""

    tally: Tally
    summary: Summary
    counts: Counter[str]
    """Trajectories of each question, also those that are left out."""
    numbered: set[str]
    """Questions whose candidates or rollouts are numbered."""
    texts: dict[str, tuple[int, int]]
    """Of each question, the hash of its text, and the row where it is first."""
    keys: np.ndarray
    """[rows] hashes of the trajectories' ids, also of those that are left out."""
    missing: set[str] = field(default_factory=set)
    named: set[str] = field(default_factory=set)


def read_group(pool: conf.Pool, files: Sequence[Path], path: Path, start: Mapping[str, int]) -> GroupReport:
    """Read some files and write their part. `start`: numbers of trajectories of their questions in earlier
    groups.
    """
    check(pool)
    tally = Tally()
    group = GroupReport(
        tally, Summary(pool, tally), Counter(), set(), {}, np.empty(0, np.uint64), set(pool.fields)
    )
    counter, keys = Numbering(start), list[int]()
    pools.write_part(_kept(pool, files, group, counter, keys), path, group.summary)
    group.keys, group.numbered = np.array(keys, dtype=np.uint64), counter.used
    group.counts = counter - Counter(start)
    return group


def _kept(
    pool: conf.Pool, files: Sequence[Path], group: GroupReport, counter: Numbering, keys: list[int]
) -> Iterator[Trajectory]:
    keep, known = Filter(pool, group.tally), Known()
    for where, trajectory in _located(pool, files, group.tally, counter, group.missing):
        if pool.ids:
            group.named.add(trajectory.question_id)
            if trajectory.question_id not in pool.ids:
                continue
        keeps = keep.keeps(trajectory, where)
        group.texts.setdefault(trajectory.question_id, (0, len(keys)))
        keys.append(known.add(where, trajectory))
        if keeps:
            yield trajectory
    group.texts = {question: (known.texts[question], row) for question, (_, row) in group.texts.items()}


def _located(
    pool: conf.Pool, files: Sequence[Path], tally: Tally, counter: Numbering, missing: set[str]
) -> Iterator[tuple[str, Trajectory]]:
    return from_rows(file_rows(files, tally.empty), pool, tally, counter, missing)


def write_parts(
    pool: conf.Pool, split: Sequence[Sequence[Path]], folder: Path, processes: int | None = None
) -> dict[str, Any]:
    """Read the groups in processes of this machine and write their parts; return the summary of the pool."""
    for stale in pools.parts(folder / pools.FILE):
        stale.unlink(missing_ok=True)
    count = min(processes or usable_cores(), len(split))
    with ProcessPoolExecutor(count, get_context("spawn"), _prepare, (os.getpid(),)) as executor:

        def read_some(starts: Mapping[int, Mapping[str, int]]) -> list[GroupReport]:
            asked = [
                executor.submit(read_group, pool, split[n], part_of(folder, n), start)
                for n, start in starts.items()
            ]
            return [future.result() for future in asked]  # the error of the first file comes first

        try:
            found = read_all(len(split), read_some)
        except BaseException:
            executor.shutdown(cancel_futures=True)
            raise
    return merged(pool, split, found)


def part_of(folder: Path, number: int) -> Path:
    return folder / pools.part_name(number)


def read_all(
    count: int, read_some: Callable[[Mapping[int, Mapping[str, int]]], list[GroupReport]]
) -> list[GroupReport]:
    """Read all groups, and again those whose numbers depend on earlier ones. `read_some` reads groups,
    given what their numbers start with.
    """
    found = read_some({number: {} for number in range(count)})
    again = _renumbered(found)
    for number, group in zip(again, read_some(again) if again else [], strict=True):
        found[number] = group
    return found


def merged(pool: conf.Pool, split: Sequence[Sequence[Path]], found: Sequence[GroupReport]) -> dict[str, Any]:
    """Check what concerns several groups; return the summary of the pool."""
    tally = Tally()
    tally.found(table_files(pool))
    _check_across(pool, split, found)
    summary = Summary(pool, tally)
    for group in found:
        tally.merge(group.tally)
        summary.merge(group.summary)
    Filter(pool, tally).finish()
    check_named(pool, set().union(*(group.named for group in found)))
    check_missing(pool, set.intersection(*(group.missing for group in found)))
    return {**pools.described(summary, tally, pool), "parts": len(found)}


def _prepare(parent: int) -> None:
    die_with_parent()
    if os.getppid() != parent:  # it ended before
        os._exit(1)


def _renumbered(found: Sequence[GroupReport]) -> dict[int, dict[str, int]]:
    """Groups that number trajectories of questions that earlier groups have too, with the numbers that
    those end with.
    """
    before: Counter[str] = Counter()
    again = {}
    for number, group in enumerate(found):
        if any(before[question] for question in group.numbered):
            again[number] = {question: before[question] for question in group.counts if before[question]}
        before.update(group.counts)
    return again


def _check_across(pool: conf.Pool, split: Sequence[Sequence[Path]], found: Sequence[GroupReport]) -> None:
    """Refuse a question with two texts, and a candidate that appears twice, in different groups."""
    texts: dict[str, int] = {}
    for number, group in enumerate(found):
        wrong = [
            row for question, (text, row) in group.texts.items() if texts.setdefault(question, text) != text
        ]
        if wrong:
            raise another_text(*_at(pool, split[number], min(wrong), _start(found[:number])))
    keys = np.concatenate([group.keys for group in found])
    order = np.argsort(keys, kind="stable")
    later = order[1:][keys[order[1:]] == keys[order[:-1]]]
    if len(later):
        row, number = int(later.min()), 0
        while row >= len(found[number].keys):
            row -= len(found[number].keys)
            number += 1
        raise second_time(*_at(pool, split[number], row, _start(found[:number])))


def _start(groups: Sequence[GroupReport]) -> Counter[str]:
    return sum((group.counts for group in groups), Counter[str]())


def _at(pool: conf.Pool, files: Sequence[Path], row: int, start: Mapping[str, int]) -> tuple[str, Trajectory]:
    """The trajectory in a row of a group, with its location: the files are read again up to there."""
    found = _located(pool, files, Tally(), Numbering(start), set())
    wanted = ((where, t) for where, t in found if not pool.ids or t.question_id in pool.ids)
    for number, pair in enumerate(wanted):
        if number == row:
            return pair
    raise LarkError(f"{files[0]} has changed while it was read. Run the same command again.")
