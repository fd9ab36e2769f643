"""Settings of `make compare`: which method should this student be trained with?"""

from dataclasses import dataclass, field

from lark.config.checks import not_negative, one_of, require

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
        require(self.questions >= 4, "compare.questions", self.questions, "must be at least 4")
        share = self.held_out
        require(
            0.05 <= share <= 0.9,
            "compare.held_out",
            share,
            "must be a share of the questions, from 0.05 to 0.9",
        )
        require(self.trajectories >= 0, "compare.trajectories", self.trajectories, "must not be negative")
        one_of("compare.design", self.design, DESIGNS)
        one_of("compare.criterion", self.criterion, CRITERIA)
        rising = (
            all(0 < a < b for a, b in zip(self.seeds, self.seeds[1:], strict=False)) and len(self.seeds) > 0
        )
        require(
            rising and self.seeds[0] >= 1,
            "compare.seeds",
            self.seeds,
            "must be rising numbers, at least 1, e.g. [2,4,8]",
        )
        not_negative("compare", self, "budget_hours")
        needed = self.criterion != "loss" or self.trajectories > 0
        require(
            needed, "compare.trajectories", self.trajectories, "must be at least 1 for compare.criterion=loss"
        )
