"""The operation that chooses and weights trajectories."""

from lark.cards.cards import dataset_card
from lark.config import Config
from lark.runtime.machine import Machine
from lark.runtime.operation import Operation
from lark.selection import write


def _check(config: Config, machine: Machine) -> None:
    write.check_scores_file(config)


SELECT = Operation(
    "select", "select", write.write_selection, check=_check, preview=write.check_choice, notice=write.report_character,
    card=dataset_card, row_seconds=6e-5,
)  # fmt: skip

OPERATIONS = (SELECT,)
