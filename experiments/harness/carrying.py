"""Carry out single trials, for experiments whose trials are not a plain sweep or depend on the results of others."""

import logging

from experiments.harness.sweep import Trial
from lark.names import file_name
from lark.runtime.launch import follow
from lark.runtime.pipeline import Pipeline, check_machine


def carry_out(trial: Trial, name: str) -> None:
    """Make a trial's artifacts, in this process and its workers. The other nodes of a cluster follow the first. Steps are not
    logged; `name` is the trial's folder below outputs/runs."""
    machine = check_machine(trial.config)
    if machine.node > 0:
        follow(machine)
        return
    folder = trial.config.outputs_path.joinpath("runs", *map(file_name, name.split("/")))
    folder.mkdir(parents=True, exist_ok=True)
    logger = logging.getLogger(Pipeline.__module__)
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        Pipeline(trial.config, folder).run()
    finally:
        logger.setLevel(before)
