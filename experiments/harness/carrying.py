"""Carry out single trials, for experiments whose trials are not a plain sweep or depend on the results of
others.
"""

import logging

from experiments.harness.sweep import Trial
from lark.names import file_name
from lark.pipeline.pipeline import Pipeline


def carry_out(trial: Trial, name: str) -> None:
    """Make a trial's artifacts, in this process and its workers. Only warnings are logged; `name` is the
    trial's folder below outputs/runs.
    """
    folder = trial.config.outputs_path.joinpath("runs", *map(file_name, name.split("/")))
    folder.mkdir(parents=True, exist_ok=True)
    logger = logging.getLogger("lark")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        Pipeline(trial.config, folder).run()
    finally:
        logger.setLevel(before)
