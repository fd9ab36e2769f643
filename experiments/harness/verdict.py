"""A comparison in words: the ranking, the significant differences, the cost, and what to run next."""

from dataclasses import dataclass
from math import isnan

import numpy as np
from numpy.typing import NDArray

from experiments.harness import results
from experiments.harness.game import Game
from experiments.harness.halving import Heat
from lark.planner.report import duration
from lark.printing import counted
from lark.selection.paired import Comparison, Floats, compare

WORDS = {
    "accuracy": "Acc@{k}",
    "samples": "pass@1",
    "loss": "loss of held-out trajectories",
    "token_accuracy": "token accuracy of held-out trajectories",
    "command": "the command's score",
}


@dataclass(frozen=True)
class Units:
    """How a criterion is shown. Scores of losses are negative, so that higher is better; losses are shown."""

    factor: float
    digits: int
    unit: str
    sign: str = ""

    @classmethod
    def of(cls, game: Game) -> "Units":
        criterion = game.contest.config.compare.criterion
        units = {"loss": cls(-1.0, 3, "nats per token"), "command": cls(1.0, 4, "in the command's units")}
        return units.get(criterion, cls(100.0, 1, "points", "%"))

    @property
    def is_loss(self) -> bool:
        return self.factor < 0

    def value(self, number: float) -> str:
        return f"{number * self.factor:.{self.digits}f}{self.sign}"

    def difference(self, number: float) -> str:
        rounded = round(number * self.factor, self.digits) + 0.0  # no negative zero
        return f"{rounded:+.{self.digits}f}".replace("-", "−")

    def interval(self, low: float, high: float) -> str:
        first, last = sorted([low, high], key=lambda end: end * self.factor)
        return f"{self.difference(first)} to {self.difference(last)}"


def criterion_words(game: Game) -> str:
    config = game.contest.config
    return WORDS[config.compare.criterion].format(k=config.benchmark.decoding.samples)


def latest(game: Game) -> Comparison | None:
    """The comparison of all results so far; of the last heat, if it is complete."""
    if game.heats and not game.missing:
        return game.heats[-1].comparison
    return compare(game.tables) if len(game.scores) > 1 else None


def significant_pairs(game: Game, comparison: Comparison) -> NDArray[np.bool_]:
    """[M, M] True where i and j differ, by the last heat or, if it is not complete, by all results so far."""
    significant = comparison.significant
    if game.heats and game.heats[-1].comparison.names == comparison.names:
        significant = game.heats[-1].significant
    return significant | significant.T


def sentence(game: Game) -> str:
    """The outcome in a few sentences."""
    if not game.heats:
        return "No heat is complete yet, so nothing can be said."
    last = game.heats[-1]
    parts = [_outcome(game, last), _behind(last)]
    if not game.finished:
        parts.append("It is not complete: run the same command again.")
    untrained = sorted(name for name, trials in game.trials.items() if any(map(game.is_untrained, trials)))
    if untrained:
        parts.append(
            f"Training had no effect on {', '.join(untrained)}: with warm-up, a single step has a"
            " learning rate of 0. Use more questions, or set training.warmup=0, a smaller"
            " training.global_batch or more training.epochs."
        )
    runs = counted(len(game.runs), "training run")
    parts.append(f"{runs} and their evaluation took {duration(game.seconds)} (the sum over runs).")
    parts.append(game.stopped)
    return " ".join(part for part in parts if part)


def _outcome(game: Game, last: Heat) -> str:
    criterion = criterion_words(game)
    units = Units.of(game)
    comparison = last.comparison
    if is_level(comparison):
        lead = _level(comparison, units, criterion)
    else:
        lead = f"{_entrant(comparison, units, last.leader)} leads by {criterion}."
    if comparison.seed_deviation is None:
        return (
            f"{lead} With one training seed each, no difference can be called significant:"
            " raise compare.seeds."
        )
    if comparison.problems < comparison.least_problems:
        if game.contest.config.compare.criterion == "command":
            return (
                f"{lead} No difference can be called significant: that needs scores of at least"
                f" {comparison.least_problems} single problems from the command (docs/compare.md)."
            )
        return (
            f"{lead} With {comparison.problems} problems, no difference can be called significant: use at"
            f" least {comparison.least_problems} (compare.questions, compare.held_out)."
        )
    if is_level(comparison):
        return lead
    if last.tied:
        return _tie(last, units, criterion)
    runner_up = next(name for name in comparison.ranked if name != last.leader)
    margin = _margin(comparison, units, last.leader, runner_up)
    return (
        f"{_entrant(comparison, units, last.leader)} is the best by {criterion}: its lead over every other"
        f" entrant is significant, by {margin} over {runner_up}, the next."
    )


def _tie(last: Heat, units: Units, criterion: str) -> str:
    """The outcome if some entrants are not significantly behind the leader."""
    comparison = last.comparison
    means = dict(zip(comparison.names, comparison.means, strict=True))
    equal = []
    margins = []
    for name in last.tied:
        if means[name] == means[last.leader]:
            equal.append(name)
        else:
            margins.append(f"{name} ({_margin(comparison, units, last.leader, name)})")
    close = ", ".join(margins)
    lead = _entrant(comparison, units, last.leader)
    if not equal:
        return f"No single winner by {criterion}: {lead} leads, but its lead over {close} is not significant."
    lead = f"{' and '.join([last.leader, *equal])} ({units.value(means[last.leader])})"
    rest = f", but the lead over {close} is not significant" if close else ""
    return f"No single winner by {criterion}: {lead} lead with the same mean{rest}."


def is_level(comparison: Comparison) -> bool:
    """True if all entrants have the same mean, so that there is no leader."""
    return bool(np.ptp(comparison.means) < 1e-12)


def _level(comparison: Comparison, units: Units, criterion: str) -> str:
    mean = units.value(comparison.means[0])
    outcome = f"No winner by {criterion}: all entrants have the same mean, {mean}."
    if not units.sign or comparison.means.any():
        return outcome
    return (
        f"{outcome} No problem was solved, so they cannot be compared by it. If the pool's answers are not"
        " boxed, set pool.answer_pattern (docs/own-pool.md). Otherwise check pool.answer_format, give the"
        " student more tokens (benchmark.decoding.max_new_tokens) or more training, or compare by loss"
        " (compare.criterion=loss)."
    )


def _entrant(comparison: Comparison, units: Units, name: str) -> str:
    return f"{name} ({units.value(comparison.means[comparison.names.index(name)])})"


def _margin(comparison: Comparison, units: Units, leader: str, other: str) -> str:
    i = comparison.names.index(leader)
    j = comparison.names.index(other)
    interval = units.interval(comparison.low[i, j], comparison.high[i, j])
    return f"{units.difference(comparison.difference[i, j])} {units.unit}, 95% interval {interval}"


def _behind(last: Heat) -> str:
    names = [name for name in last.comparison.ranked if last.leader in last.behind(name)]
    if not names or not last.tied:
        return ""
    verb = "is" if len(names) == 1 else "are"
    return f"{', '.join(names)} {verb} significantly behind."


def next_command(game: Game) -> str:
    """The command of the full run with the leader; empty without a leader."""
    if not game.heats or is_level(game.heats[-1].comparison):
        return ""
    return game.contest.command(game.entrant(game.heats[-1].leader))


def status(game: Game, name: str) -> str:
    """An entrant's verdict, for the table."""
    if name in game.failed:
        return "failed"
    if not game.heats or name not in game.heats[-1].comparison.names:
        return ""
    last = game.heats[-1]
    if name == last.leader:
        return _leader_status(last)
    if last.leader in last.behind(name):
        return "significantly behind"
    for number, heat in enumerate(game.heats[:-1], 1):
        if name in heat.running and name not in heat.ahead:
            return f"undecided, stopped after heat {number}"
    return "tie"


def _leader_status(last: Heat) -> str:
    if is_level(last.comparison):
        return "tie"
    return "leads" if last.tied else "best"


def heat_line(game: Game, number: int, heat: Heat) -> str:
    """A heat as a line of the log."""
    stopped = [name for name in heat.running if name not in heat.ahead]
    behind = [name for name in stopped if heat.behind(name)]
    lower_half = [name for name in stopped if name not in behind]
    lead = f"{heat.leader} leads"
    if is_level(heat.comparison):
        lead = "all entrants have the same mean"
    parts = [f"Heat {number + 1} of {len(game.schedule.seeds)}: {lead}."]
    if behind:
        parts.append(f"Significantly behind: {', '.join(behind)}.")
    if heat.ahead and lower_half:
        parts.append(f"Stopped in the lower half: {', '.join(lower_half)}.")
    if heat.ahead:
        parts.append(f"Continuing: {', '.join(heat.ahead)}.")
    return " ".join(parts)


@dataclass(frozen=True)
class LossAgreement:
    """How the loss of held-out trajectories ranks entrants, compared with the criterion."""

    losses: dict[str, float]
    tau: float
    """Kendall's rank correlation of accuracy and negative loss over entrants; NaN with fewer than 3 that
    differ.
    """
    significant: int
    """Pairs that the loss calls different, by the same rule."""
    same: int
    """Of these, the pairs that the criterion orders in the same way."""
    pairs: int


def loss_agreement(game: Game) -> LossAgreement | None:
    """None if the loss is the criterion itself or was not measured."""
    if game.contest.config.compare.criterion == "loss" or len(game.scores) < 2:
        return None
    scores: dict[str, Floats] = {}
    for name, trials in game.trials.items():
        runs = []
        for trial in trials:
            losses = results.losses(game.contest.sweep, trial)
            if losses is None:
                return None
            runs.append(-losses)
        scores[name] = np.stack(runs)
    by_loss = compare(scores)
    by_criterion = compare(game.tables)
    entrants = len(scores)
    return LossAgreement(
        losses={name: -float(mean) for name, mean in zip(by_loss.names, by_loss.means, strict=True)},
        tau=kendall(by_criterion.means, by_loss.means),
        significant=int(by_loss.significant.sum()),
        same=int((by_loss.significant & (by_criterion.difference > 0)).sum()),
        pairs=entrants * (entrants - 1) // 2,
    )


def kendall(x: Floats, y: Floats) -> float:
    """Kendall's tau-b; NaN if one of the two has fewer than three different values."""
    if min(len(np.unique(x)), len(np.unique(y))) < 3:
        return float("nan")
    first, second = np.triu_indices(len(x), 1)
    a = np.sign(x[first] - x[second])
    b = np.sign(y[first] - y[second])
    scale = np.sqrt(float((a != 0).sum()) * float((b != 0).sum()))
    return float((a * b).sum() / scale)


def agreement_words(agreement: LossAgreement) -> str:
    tau = f"Kendall's τ = {agreement.tau:.2f}"
    if isnan(agreement.tau):
        tau = "too few entrants that differ for a rank correlation"
    return (
        f"Ranked by the loss of held-out trajectories instead, which needs no generation: {tau} with this"
        f" ranking; the loss separates {agreement.significant} of {counted(agreement.pairs, 'pair')},"
        f" {agreement.same} of them in the same direction. Low loss on the teachers' texts is not the same as"
        " solving problems; rely on it only if the two rankings agree."
    )
