"""The operation that chooses and weights trajectories."""

from lark.config import Config
from lark.runtime.machine import Machine
from lark.runtime.operation import Operation
from lark.selection import stage


def _check(config: Config, machine: Machine) -> None:
    stage.check_scores_file(config)


SELECT = Operation("select", "select", stage.write_selection, check=_check, preview=stage.check_choice)

OPERATIONS = (SELECT,)
