"""Compose a configuration outside run.py, for commands that take its settings."""

from collections.abc import Sequence

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from lark import config as conf
from lark.config.argument_checks import CONF
from lark.config.cli import as_hydra_reads
from lark.config.hydra_errors import sentence
from lark.errors import LarkError


def composed(arguments: Sequence[str]) -> conf.Config:
    """The configuration, as run.py would compose it."""
    conf.register()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return conf.load(compose("config", overrides=as_hydra_reads(list(arguments))))
    except (HydraException, OmegaConfBaseException) as error:
        raise LarkError(sentence(error)) from error
