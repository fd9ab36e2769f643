"""`dry_run=true`: report what would run and what it would cost."""

import logging
from collections.abc import Sequence
from pathlib import Path

from lark.config import Config
from lark.errors import LarkError
from lark.pipeline.pipeline import Pipeline
from lark.pipeline.plan import make_plan, wanted
from lark.pipeline.unused import check_unused
from lark.planner.report import report
from lark.store.store import Checksums

log = logging.getLogger("lark")


def describe_run(config: Config, folder: Path, typed: Sequence[str], is_sweep: bool) -> None:
    """Log the plan and the cost of a run. The cost is reported even if the pool is missing."""
    try:
        pipeline = Pipeline(config, folder)
    except LarkError as error:
        steps = wanted(make_plan(config, Checksums(config.outputs_path), elsewhere=True), config.stages)
        cost, refusal = report(config, steps)
        log.info(cost)
        if refusal:
            raise LarkError(f"{refusal} Also: {error}") from None
        raise
    check_unused(config, pipeline.machine, pipeline.plan, typed, is_sweep)
    cost, refusal = report(config, pipeline.steps, pipeline.lengths(), pipeline.finished())
    log.info("%s\n\n%s", pipeline.describe(), cost)
    if refusal:
        raise LarkError(refusal)
