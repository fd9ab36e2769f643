"""The operation that chooses and weights trajectories."""

from lark.config import Config
from lark.output.cards import dataset_card
from lark.selection import choose, write
from lark.work.machine import Machine
from lark.work.operation import Operation


def _check(config: Config, machine: Machine) -> None:
    choose.check_scores_file(config)


SELECT = Operation(
    "select",
    "select",
    write.write_selection,
    check=_check,
    preview=choose.check_choice,
    prepare=write.report_changed_code,
    notice=write.report_character,
    result=write.selection_result,
    card=dataset_card,
    row_seconds=6e-5,
    settings=("budget", "weighting", "share_weights", "whole_weights", "method.reverse", "method.teacher"),
)

OPERATIONS = (SELECT,)
