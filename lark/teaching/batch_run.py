"""Ask a teacher with batch files: what is missing of its rollouts as requests, and results as answers."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lark.generation import batch_files
from lark.generation.batch_files import BatchResult
from lark.generation.checks import require_few_failures
from lark.generation.conversation import Ask, Failure, Reply
from lark.generation.journal import Journal
from lark.teaching import answer_journals, earlier
from lark.teaching.answer_journals import JournalIndex
from lark.teaching.rollouts import TeacherWork, merged
from lark.work.operation import Job

WRITER = "batch"
"""Writer of the journal with the results of batch files."""


@dataclass
class BatchCounts:
    """What the results of a teacher contain."""

    answered: int = 0
    known: int = 0
    """Samples that were there already."""
    unknown: int = 0
    """Results of questions or samples that this run does not ask for."""
    failures: Counter[str] = field(default_factory=Counter)
    """Questions that the teacher does not answer, by reason."""
    again: Counter[str] = field(default_factory=Counter)
    """Samples that can be asked for again, by reason."""
    missing: int = 0
    """Questions that are still to be asked."""


def write(job: Job, folder: Path) -> list[Path]:
    """Write the requests that are missing; return their files. Earlier rollouts are taken over first."""
    workload = TeacherWork(job)
    earlier.take_over(job)
    if merged(workload.folder):
        return []
    found = JournalIndex(workload.folder)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(batch_files.REQUESTS):
        old.unlink()
    return batch_files.write(folder, workload.teacher, _asks(workload, found), workload.sampling)


def _asks(workload: TeacherWork, found: JournalIndex) -> Iterator[tuple[str, int, Ask]]:
    for key in workload.missing(found):
        first = found.get(key).samples
        yield key, first, workload.ask(workload.by_key[key], first)


def read(job: Job, files: Sequence[Path]) -> BatchCounts:
    """Add the results in files to the teacher's answers."""
    workload = TeacherWork(job)
    counts = BatchCounts()
    if merged(workload.folder):
        return counts
    path = answer_journals.journal_file(workload.folder, WRITER)
    have = _samples(JournalIndex(workload.folder))
    with Journal(path, workload.folder.name) as journal:
        for result in batch_files.read(files, workload.name, workload.teacher):
            _add(workload, result, have, journal, counts)
    found = JournalIndex(workload.folder)
    counts.missing = len(workload.missing(found))
    require_few_failures(workload.name, workload.teacher, counts.failures, len(workload.questions))
    return counts


def _samples(found: JournalIndex) -> set[tuple[str, int]]:
    """Samples that have been answered, by key and number; -1 stands for a question that is not answered."""
    have = set()
    for key, answer in found.by_key.items():
        if answer.failure is not None:
            have.add((key, -1))
        for first, number, _ in answer.lines:
            have |= {(key, sample) for sample in range(first, first + number)}
    return have


def _add(
    workload: TeacherWork,
    result: BatchResult,
    have: set[tuple[str, int]],
    journal: Journal,
    counts: BatchCounts,
) -> None:
    question = workload.by_key.get(result.key)
    if question is None or result.sample >= workload.samples:
        counts.unknown += 1
    elif {(result.key, result.sample), (result.key, -1)} & have:
        counts.known += 1
    elif isinstance(result.outcome, Reply):
        ask = workload.ask(question, result.sample)
        price = workload.teacher.price
        journal.append(answer_journals.answered(result.key, result.sample, ask, [result.outcome], price))
        have.add((result.key, result.sample))
        counts.answered += 1
    elif isinstance(result.outcome, Failure):
        journal.append(answer_journals.unanswered(result.key, result.sample, result.outcome))
        have.add((result.key, -1))
        counts.failures[result.outcome.reason] += 1
    else:
        counts.again[result.outcome.reason] += 1
