"""Settings of `make compare`: which method should this student be trained with?"""

import shlex
from dataclasses import dataclass, field

from lark.config.checks import Section

MEASURED = ("loss", "token_accuracy")
"""Criteria that training measures on held-out trajectories, without generation."""
CRITERIA = ("accuracy", "samples", *MEASURED, "command")
DESIGNS = ("halving", "full")


@dataclass
class Compare:
    """A tournament of selection methods on a part of the pool (docs/compare.md). Only `experiment=compare`
    reads it.
    """

    questions: int = 300
    """Questions of the pool that are used, for training and for the benchmark together. A smaller pool is
    used completely.
    """
    held_out: float = 0.4
    """Share of them that is not trained on: the benchmark, unless another one is named with
    benchmark=<name>.
    """
    trajectories: int = 3
    """Correct trajectories of each held-out question whose loss and token accuracy are measured after
    training. 0: they are not measured.
    """
    seeds: list[int] = field(default_factory=lambda: [2, 4, 8])
    """Training seeds of an entrant after each heat. Seeds are numbered from 1; a method that draws at
    random uses them too.
    """
    design: str = "halving"
    """halving: after each heat, entrants that are significantly behind stop, and at most the better half
    continues. full: only those that are significantly behind stop.
    """
    criterion: str = "accuracy"
    """What entrants are ranked by: accuracy (Acc@k of the benchmark), samples (accuracy of a single
    sample), loss (mean loss of held-out correct trajectories), token_accuracy (share of their tokens that
    are the student's most likely one), or command (what `command` measures).
    """
    command: str | None = None
    """For criterion=command: a program that measures a trained student, with {checkpoint} for its folder and
    {output} for a folder of results, e.g. `lm_eval --model_args pretrained={checkpoint} ...`.
    """
    command_minutes: int = 120
    """Longest time of one command."""
    reverse: list[str] = field(default_factory=list)
    """Methods that also enter reversed (method.reverse=true)."""
    budget_hours: float = 0.0
    """Longest time, by the planner's estimate. The design is trimmed to fit: fewer questions, then methods,
    then seeds. Between heats, the measured time counts. 0: no limit.
    """

    def __post_init__(self) -> None:
        section = Section("compare", self)
        section.at_least(4, "questions")
        is_share = 0.05 <= self.held_out <= 0.9
        section.require("held_out", is_share, "must be a share of the questions, from 0.05 to 0.9")
        section.not_negative("trajectories", "budget_hours")
        section.one_of("design", DESIGNS)
        section.one_of("criterion", CRITERIA)
        is_rising = self.seeds == sorted(set(self.seeds)) and min(self.seeds, default=0) >= 1
        section.require("seeds", is_rising, "must be rising numbers, at least 1, e.g. [2,4,8]")
        self._check_command(section)
        is_measured = self.criterion not in MEASURED or self.trajectories > 0
        rule = f"must be at least 1 for compare.criterion={self.criterion}"
        section.require("trajectories", is_measured, rule)

    def _check_command(self, section: Section) -> None:
        section.at_least(1, "command_minutes")
        is_used = self.criterion == "command"
        has_place = self.command is not None and "{checkpoint}" in self.command
        section.require(
            "command",
            has_place or not is_used,
            "criterion=command needs a command that contains {checkpoint}",
        )
        section.require("command", is_used or self.command is None, "needs compare.criterion=command")
        try:
            shlex.split(self.command or "")
        except ValueError as error:
            section.require("command", False, f"a quote is not closed ({error})")
