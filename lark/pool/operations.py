"""The operation that reads, checks and normalises a pool."""

import logging

from lark.config import Config
from lark.pool import trajectories as pools
from lark.pool.read import Dropped, read
from lark.pool.summary import pool_summary
from lark.runtime.operation import Counts, Job, Operation

log = logging.getLogger(__name__)


def _pool(job: Job) -> Counts:
    dropped = Dropped()
    return pools.write(read(job.config.pool, dropped), job.folder / pools.FILE, job.config.pool, dropped)


def _at_a_glance(config: Config, counts: Counts, made: bool) -> None:
    if made or config.stages == [POOL.stage]:  # nothing else was asked for
        log.info(pool_summary(counts))


POOL = Operation("pool", "pool", _pool, notice=_at_a_glance)

OPERATIONS = (POOL,)
