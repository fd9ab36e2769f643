"""Carry out one run: fetch its inputs, report its plan, join a SLURM job, or run the stages."""

import logging
from collections.abc import Sequence
from pathlib import Path

from lark.cluster import slurm
from lark.config import Config
from lark.errors import LarkError
from lark.output.run_summary import run_summary
from lark.pipeline.fetch import fetch
from lark.pipeline.pipeline import Pipeline
from lark.pipeline.plan import make_plan, wanted
from lark.pipeline.unused import check_unused
from lark.planner.report import report
from lark.store.store import Checksums

log = logging.getLogger("lark")


def run(config: Config, folder: Path, typed: Sequence[str], is_sweep: bool) -> None:
    """Do what the settings ask for. `typed`: the settings on the command line."""
    if config.only_fetches:
        fetch(config)
    elif config.dry_run:
        describe_run(config, folder, typed, is_sweep)
    elif config.hardware.cluster == "slurm" and slurm.is_follower():
        slurm.follow(config.outputs_path)
    else:
        pipeline = Pipeline(config, folder)
        check_unused(config, pipeline.machine, pipeline.plan, typed, is_sweep)
        pipeline.run(run_summary, typed)


def describe_run(config: Config, folder: Path, typed: Sequence[str], is_sweep: bool) -> None:
    """Log the plan and the cost of a run. The cost is reported even if the pool is missing."""
    try:
        pipeline = Pipeline(config, folder)
    except LarkError as error:
        steps = wanted(make_plan(config, Checksums(config.outputs_path), elsewhere=True), config.stages)
        cost, refusal = report(config, steps)
        log.info(cost)
        _refuse(refusal, str(error))
    else:
        check_unused(config, pipeline.machine, pipeline.plan, typed, is_sweep)
        cost, refusal = report(config, pipeline.steps, pipeline.lengths(), pipeline.finished())
        log.info("%s\n\n%s", pipeline.describe(), cost)
        _refuse(refusal)


def _refuse(refusal: str | None, error: str = "") -> None:
    """Raise the planner's refusal, an error of the plan, or both."""
    if refusal and error:
        refusal = f"{refusal} Also: {error}"
    if refusal or error:
        raise LarkError(refusal or error)
