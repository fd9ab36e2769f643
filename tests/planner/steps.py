"""The steps that the planner is asked about: those of a plan, as run.py makes it where the pool need not be
here.
"""

import tempfile
from pathlib import Path

from lark.config import Config
from lark.pipeline.plan import make_plan, wanted
from lark.planner.estimates import Estimate, estimate
from lark.store.store import Checksums
from lark.work.operation import Step


def steps_of(config: Config) -> list[Step]:
    """The steps of the configuration's stages, and those that they depend on."""
    with tempfile.TemporaryDirectory() as folder:
        return wanted(make_plan(config, Checksums(Path(folder)), elsewhere=True), config.stages)


def estimated(config: Config) -> list[Estimate]:
    return estimate(config, steps_of(config))


def keys_of(steps: list[Step], name: str) -> frozenset[tuple[str, ...]]:
    """Of the steps of an operation, as a pipeline names those that are finished."""
    found = frozenset(step.key for step in steps if step.operation.name == name)
    assert found
    return found
