"""The operation that reads, checks and normalises a pool."""

import logging
from dataclasses import replace

from lark.config import Config, Pool
from lark.config.pool import TAUGHT
from lark.evaluation import benchmarks
from lark.pool import trajectories as pools
from lark.pool.cleaning import Tally
from lark.pool.noise import noisy, to_damage
from lark.pool.partition import PART_BYTES, groups, write_parts
from lark.pool.read import question_texts, read
from lark.pool.summary_text import pool_summary
from lark.pool.taught import SOURCES, write_sources
from lark.pool.worker import write_parts_on_cluster
from lark.teaching.heats import standing_of
from lark.work.operation import Counts, Job, Operation

log = logging.getLogger(__name__)


def pool_of(config: Config) -> Pool:
    """The settings of the pool. Questions of teachers were compared with the benchmarks before they were
    asked.
    """
    pool = config.pool
    if pool.format != TAUGHT:
        return pool
    labels = "vote" if config.teach.verify == "vote" else pool.labels
    return replace(pool, labels=labels, decontaminate=False)


def _pool(job: Job) -> Counts:
    """Read a large pool in groups of files, and any other in this process."""
    pool = pool_of(job.config)
    if pool.format == TAUGHT:
        pool = replace(pool, path=str(write_sources(job.inputs, job.folder)))
    split = groups(pool)
    if not split:
        return _whole(pool, job)
    if job.machine.cluster:
        return write_parts_on_cluster(job, split)
    return write_parts(pool, split, job.folder)


def _whole(pool: Pool, job: Job) -> Counts:
    tally = Tally()
    if pool.decontaminate:
        from lark.analysis.contamination import contaminated  # noqa: PLC0415  # imports scipy

        tally.contaminated = contaminated(question_texts(pool), pool, job.config.benchmark)
    trajectories = read(pool, tally, tally.contaminated)
    if pool.noise_share:
        # A pass of its own: which trajectories are damaged depends on all of them.
        damaged = to_damage(read(pool, without=tally.contaminated), pool)
        tally.damaged = len(damaged)
        trajectories = noisy(trajectories, pool, damaged)
    counts = pools.write(trajectories, job.folder / pools.FILE, pool, tally)
    # It has paths of this machine.
    (job.folder / SOURCES).unlink(missing_ok=True)
    standing = standing_of(job.inputs)
    return {**counts, "heats": standing.to_dict()} if standing.heat else counts


def _fetch(config: Config) -> bool:
    """The benchmarks, if questions that are in them are removed. The pool itself is downloaded when it is
    read.
    """
    return config.pool.decontaminate and benchmarks.fetch(config.benchmark)


def _at_a_glance(config: Config, counts: Counts, made: bool) -> None:
    if made or config.stages == [READ_POOL.stage]:  # nothing else was asked for
        log.info(pool_summary(counts))


READ_POOL = Operation(
    "pool",
    "pool",
    _pool,
    fetch=_fetch,
    notice=_at_a_glance,
    row_seconds=1.5e-3,
    shard_rows=PART_BYTES // 20_000,
)

OPERATIONS = (READ_POOL,)
