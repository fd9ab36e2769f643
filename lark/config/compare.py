"""Settings of `make compare`: which method should this student be trained with?"""

from dataclasses import dataclass, field

from lark.config.checks import Section

CRITERIA = ("accuracy", "samples", "loss")
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
    """Correct trajectories of each held-out question whose loss is measured after training. 0: the loss is
    not measured.
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
    sample), or loss (mean loss of held-out correct trajectories).
    """
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
        is_measured = self.criterion != "loss" or self.trajectories > 0
        section.require("trajectories", is_measured, "must be at least 1 for compare.criterion=loss")
