"""Read and check candidate pools one trajectory at a time, without loading the pool into memory.

A row comes from a file or the hub (formats.py), is read by its layout (layouts.py) and becomes a checked
trajectory (source.py). `Reading` is the one loop over trajectories: `read` runs it over the whole pool, and
partition.py over each group of a large pool's files.
"""

import logging
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from lark import config as conf
from lark.pool.checks import another_text, check_fields_used, check_ids, check_new
from lark.pool.cleaning import Filter, Tally, check_special, filters
from lark.pool.formats import source_files, source_rows
from lark.pool.hashing import hash64
from lark.pool.hub import is_remote
from lark.pool.mixing import members, naming, quotas
from lark.pool.source import Located, SourceReader
from lark.pool.trajectory import Trajectory
from lark.pool.votes import Votes
from lark.reading.rows import Row

log = logging.getLogger(__name__)


def read(pool: conf.Pool, tally: Tally | None = None, without: Collection[str] = ()) -> Iterator[Trajectory]:
    """Yield every trajectory of the pool, checked. Errors name the file and line.

    tally: counts what is left out. without: ids of questions that are left out, before questions are sampled.
    """
    tally = Tally() if tally is None else tally
    # Passes of their own over the rows: the votes need all candidates of a question, and the sample needs
    # all questions, before the first trajectory is given out.
    tally.votes = _votes(pool) if pool.labels == "vote" else None
    sample = _sample(pool, tally.votes, without)
    reading = Reading(pool, tally)
    yield from reading.kept(_labelled(pool, tally, tally.votes, without), sample)
    finish(pool, tally, reading.questions)


def read_rows(rows: Iterable[Row], pool: conf.Pool) -> Iterator[Trajectory]:
    """The same for rows in memory, all of which are used."""
    tally = Tally()
    source = SourceReader(pool, tally)
    yield from Reading(pool, tally).kept(source.trajectories(rows))
    check_special(pool, tally)


class Reading:
    """One pass over the trajectories of a pool, or of a group of its files: filters them, and checks that a
    question has one text and that a candidate appears once. Compares hashes, so texts are not kept.
    """

    def __init__(self, pool: conf.Pool, tally: Tally) -> None:
        self.pool = pool
        self.filter = Filter(pool, tally)
        self.questions: set[str] = set()
        """Ids of all questions, if pool.ids names those to read."""
        self.texts: dict[str, int] = {}
        """The hash of each question's text."""
        self.keys: set[int] = set()
        """Hashes of the ids of all trajectories, also of those that are left out."""

    def kept(
        self, trajectories: Iterable[Located], sample: Collection[str] | None = None
    ) -> Iterator[Trajectory]:
        """The trajectories that the pool's settings keep. `sample`: only those of these questions."""
        for where, trajectory in trajectories:
            if self.pool.ids:
                self.questions.add(trajectory.question_id)
                if trajectory.question_id not in self.pool.ids:
                    continue
            # The filter counts before the sample is taken: its counts describe the whole pool.
            keeps = self.filter.keeps(trajectory, where)
            if sample is not None and trajectory.question_id not in sample:
                continue
            # A trajectory that is left out is compared too: it is as much an error of the file.
            self._compare(where, trajectory)
            if keeps:
                yield trajectory

    def _compare(self, where: str, trajectory: Trajectory) -> None:
        """Check a trajectory against those before it."""
        text = hash64(trajectory.question.strip())
        if self.texts.setdefault(trajectory.question_id, text) != text:
            raise another_text(where, trajectory)
        # With its length, the first id ends in one place only, whatever characters the ids have.
        key = hash64(str(len(trajectory.question_id)), trajectory.question_id, trajectory.candidate_id)
        check_new(key, self.keys, where, trajectory)
        self.keys.add(key)


def finish(pool: conf.Pool, tally: Tally, questions: Collection[str]) -> None:
    """Refuse what can be judged only after the last row."""
    check_special(pool, tally)
    check_ids(pool, questions)


def question_texts(pool: conf.Pool) -> dict[str, str]:
    """The text of every question in the pool's source, by id, whatever the pool's filters keep."""
    return {trajectory.question_id: trajectory.question for _, trajectory in _trajectories(pool, Tally())}


def _votes(pool: conf.Pool) -> Votes:
    votes = Votes(pool)
    for _, trajectory in _trajectories(pool, Tally()):
        votes.add(trajectory)
    return votes


def _labelled(
    pool: conf.Pool, tally: Tally, votes: Votes | None, without: Collection[str]
) -> Iterator[Located]:
    """The trajectories, with votes in place of missing verdicts, without the questions in `without`."""
    for where, trajectory in _trajectories(pool, tally):
        if trajectory.question_id not in without:
            yield where, trajectory if votes is None else votes.label(trajectory)


def _trajectories(pool: conf.Pool, tally: Tally) -> Iterator[Located]:
    """The trajectories of the pool's sources, as they are stored."""
    if pool.is_generated:
        yield from _generated(pool)
    elif pool.format == "mix":
        for name, member in members(pool).items():
            with naming(name):
                for where, trajectory in _trajectories(member, tally):
                    yield where, _renamed(trajectory, name)
    else:
        yield from _stored(pool, tally)


def _generated(pool: conf.Pool) -> Iterator[Located]:
    from lark.demo.pool import trajectories  # noqa: PLC0415  # the demo is generated, not read

    assert pool.questions is not None
    for row in trajectories(pool.questions, pool.seed):
        yield "the demo's pool", Trajectory(**row)  # type: ignore[arg-type]


def _renamed(trajectory: Trajectory, source: str) -> Trajectory:
    """The trajectory under ids that no other source of a mixed pool has."""
    question_id = f"{source}:{trajectory.question_id}"
    return replace(trajectory, question_id=question_id, teacher=f"{source}:{trajectory.teacher}")


def _of_source(source: str, ids: Collection[str]) -> set[str]:
    """The ids that `_renamed` gave to the questions of one source."""
    return {question_id for question_id in ids if question_id.startswith(f"{source}:")}


def _stored(pool: conf.Pool, tally: Tally) -> Iterator[Located]:
    source = SourceReader(pool, tally)
    files, rows = source_rows(pool, tally.empty)
    tally.count_files(files)
    yield from source.trajectories(rows)
    check_fields_used(pool, source.missing)


def _sample(pool: conf.Pool, votes: Votes | None, without: Collection[str]) -> set[str] | None:
    """The questions to keep, or None for all: those with the smallest hashes, so that the sample does not
    depend on the pool's order or size. A mixed pool has its shares of each source.
    """
    is_mixed = pool.format == "mix" and not pool.ids
    if pool.is_generated or (pool.questions is None and not is_mixed):
        return None
    ids = _question_ids(pool, votes, without)
    sources = {"": ids}
    if pool.mix:
        sources = {name: _of_source(name, ids) for name in pool.mix}
    sizes = {name: len(questions) for name, questions in sources.items()}
    counts = quotas(sizes, pool)
    total = sum(counts.values())
    if len(ids) > total:
        reason = "the shares of pool.mix" if pool.questions is None else "pool.questions; null uses all"
        log.info("pool      using %d of %d questions (%s)", total, len(ids), reason)
    sample: set[str] = set()
    for name, questions in sources.items():
        drawn = sorted(questions, key=lambda question: hash64(str(pool.seed), question))
        sample.update(drawn[: counts[name]])
    return sample


def _question_ids(pool: conf.Pool, votes: Votes | None, without: Collection[str]) -> set[str]:
    """The questions with a trajectory that the filters keep, to draw the sample from."""
    keep = Filter(pool, Tally())
    unsampled = replace(pool, questions=None)
    if pool.format == "rsr" and not filters(pool) and not is_remote(pool):
        # All files of the paper's layout have the same questions, so the first one is enough.
        unsampled = replace(unsampled, path=str(source_files(pool)[0]), exclude=[])
    labelled = _labelled(unsampled, Tally(), votes, without)
    return {trajectory.question_id for where, trajectory in labelled if keep.keeps(trajectory, where)}
