"""A comparison in words: the ranking, which differences are real, what it cost, and what to run next."""

from dataclasses import dataclass
from math import isnan

import numpy as np

from experiments.harness import results
from experiments.harness.game import Game
from experiments.harness.halving import Round
from experiments.harness.paired import Comparison, Floats, compare
from lark.planner.report import duration
from lark.printing import counted

WORDS = {
    "accuracy": "Acc@{k}",
    "samples": "accuracy of a single sample",
    "loss": "loss of held-out trajectories",
}


@dataclass(frozen=True)
class Scale:
    """How a criterion is shown: accuracies in percent, losses in nats per token. Scores of losses are
    negative losses, so that higher is better; they are shown as losses.
    """

    factor: float
    digits: int
    unit: str

    @classmethod
    def of(cls, criterion: str) -> "Scale":
        return cls(-1.0, 3, "nats per token") if criterion == "loss" else cls(100.0, 1, "points")

    def value(self, number: float) -> str:
        shown = f"{number * self.factor:.{self.digits}f}"
        return shown if self.factor < 0 else f"{shown}%"

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
    """The comparison of all results so far; of the last round, if it is complete."""
    if game.rounds and not game.missing:
        return game.rounds[-1].comparison
    return compare(game.tables) if len(game.scores) > 1 else None


def real_pairs(game: Game, found: Comparison) -> list[list[bool]]:
    """Whether i is better than j, by the last round or, if it is not complete, by all results so far."""
    rounds = game.rounds and game.rounds[-1].comparison.names == found.names
    return (game.rounds[-1].real if rounds else found.real).tolist()


def sentence(game: Game) -> str:
    """The outcome in a few sentences."""
    if not game.rounds:
        return "No round is complete yet, so nothing can be said."
    last, words = game.rounds[-1], criterion_words(game)
    parts = [_outcome(game, last, words), _behind(last)]
    if not game.finished:
        parts.append("It is not complete: run the same command again.")
    runs = sum(map(len, game.trials.values()))
    if untrained := sorted(
        name for name, trials in game.trials.items() if any(map(game.is_untrained, trials))
    ):
        parts.append(
            f"Training had no effect on {', '.join(untrained)}: with warm-up, a single step has a learning"
            " rate of 0. Use more questions, or set training.warmup=0, a smaller training.global_batch or"
            " more training.epochs."
        )
    parts.append(
        f"{counted(runs, 'training run')} and their evaluation took {duration(game.seconds)} (the sum over"
        " runs)."
    )
    parts += [game.stopped] if game.stopped else []
    return " ".join(part for part in parts if part)


def _outcome(game: Game, last: Round, words: str) -> str:
    scale, found = Scale.of(game.contest.config.compare.criterion), last.comparison
    leader = found.names.index(last.leader)
    lead = f"{last.leader} ({scale.value(found.means[leader])})"
    first = _level(found, scale, words) if is_level(found) else f"{lead} leads by {words}."
    if found.seed_deviation is None:
        return f"{first} With one training seed each, no difference can be called real: raise compare.seeds."
    if found.problems < found.least_problems:
        return (
            f"{first} With {found.problems} problems, no difference can be called real: use at least "
            f"{found.least_problems} (compare.questions, compare.held_out)."
        )
    if is_level(found):
        return first
    if not last.tied:
        second = next(k for k in found.order if k != leader)
        return (
            f"{lead} is the best by {words}: its lead over every other entrant is real, by"
            f" {_versus(found, scale, leader, second)} over {found.names[second]}, the next."
        )
    equal = [name for name in last.tied if found.means[found.names.index(name)] == found.means[leader]]
    close = ", ".join(
        f"{name} ({_versus(found, scale, leader, found.names.index(name))})"
        for name in last.tied
        if name not in equal
    )
    if not equal:
        return f"No single winner by {words}: {lead} leads, but its lead over {close} is not clear of chance."
    lead = f"{' and '.join([last.leader, *equal])} ({scale.value(found.means[leader])})"
    more = f", but the lead over {close} is not clear of chance" if close else ""
    return f"No single winner by {words}: {lead} lead with the same mean{more}."


def is_level(found: Comparison) -> bool:
    """Whether all entrants have the same mean, so that there is no leader."""
    return bool(np.ptp(found.means) < 1e-12)


def _level(found: Comparison, scale: Scale, words: str) -> str:
    said = f"No winner by {words}: all entrants have the same mean, {scale.value(found.means[0])}."
    if scale.factor < 0 or found.means.any():
        return said
    return (
        f"{said} No problem was solved, so they cannot be compared by it. If the pool's answers are not"
        " boxed, set pool.answer_pattern (docs/own-pool.md). Otherwise check pool.answer_format, give the"
        " student more tokens (benchmark.decoding.max_new_tokens) or more training, or compare by loss"
        " (compare.criterion=loss)."
    )


def _versus(found: Comparison, scale: Scale, i: int, j: int) -> str:
    interval = scale.interval(found.low[i, j], found.high[i, j])
    return f"{scale.difference(found.difference[i, j])} {scale.unit}, 95% interval {interval}"


def _behind(last: Round) -> str:
    leader = last.comparison.names.index(last.leader)
    names = [last.comparison.names[k] for k in last.comparison.order if last.real[leader, k]]
    if not names or not last.tied:
        return ""
    verb = "is" if len(names) == 1 else "are"
    return f"{', '.join(names)} {verb} really behind."


def next_command(game: Game) -> str:
    """The command of the full run with the leader; empty without a leader."""
    if not game.rounds or is_level(game.rounds[-1].comparison):
        return ""
    return game.contest.command(game.entrant(game.rounds[-1].leader))


def status(game: Game, name: str) -> str:
    """What is known about an entrant, for the table."""
    if name in game.failed:
        return "failed"
    if not game.rounds or name not in game.rounds[-1].comparison.names:
        return ""
    last = game.rounds[-1]
    if name == last.leader:
        return "tie" if is_level(last.comparison) else "leads" if last.tied else "best"
    leader = last.comparison.names.index(last.leader)
    place = last.comparison.names.index(name)
    if last.real[leader, place]:
        return "really behind"
    stopped = next(
        (
            n
            for n, r in enumerate(game.rounds, 1)
            if name in r.running and name not in r.ahead and r is not last
        ),
        None,
    )
    return "tie" if stopped is None else f"undecided, stopped after round {stopped}"


def told(game: Game, number: int, judged: Round) -> str:
    """A round as a line of the log."""
    gone = [name for name in judged.running if name not in judged.ahead]
    behind = [name for name in gone if judged.behind(name)]
    others = [name for name in gone if name not in behind]
    lead = "all entrants have the same mean" if is_level(judged.comparison) else f"{judged.leader} leads"
    said = f"Round {number + 1} of {len(game.schedule.seeds)}: {lead}."
    said += f" Really behind: {', '.join(behind)}." if behind else ""
    if judged.ahead:
        said += f" Stopped in the lower half: {', '.join(others)}." if others else ""
        said += f" Continuing: {', '.join(judged.ahead)}."
    return said


@dataclass(frozen=True)
class Agreement:
    """How the loss of held-out trajectories ranks entrants, compared with the criterion."""

    losses: dict[str, float]
    tau: float
    """Kendall's rank correlation of accuracy and negative loss over entrants; NaN with fewer than 3 that
    differ.
    """
    real: int
    """Pairs that the loss calls different, by the same rule."""
    same: int
    """Of these, the pairs that the criterion orders in the same way."""
    pairs: int


def agreement(game: Game) -> Agreement | None:
    """None if the loss is the criterion itself or was not measured."""
    if game.contest.config.compare.criterion == "loss" or len(game.scores) < 2:
        return None
    tables: dict[str, Floats] = {}
    for name, trials in game.trials.items():
        found = [results.losses(game.contest.sweep, trial) for trial in trials]
        if any(each is None for each in found):
            return None
        tables[name] = np.stack([-each for each in found if each is not None])
    by_loss, by_score = compare(tables), compare(game.tables)
    real = by_loss.real
    same = int((real & (by_score.difference > 0)).sum())
    losses = {name: -float(mean) for name, mean in zip(by_loss.names, by_loss.means, strict=True)}
    count = len(tables)
    return Agreement(
        losses, kendall(by_score.means, by_loss.means), int(real.sum()), same, count * (count - 1) // 2
    )


def kendall(x: Floats, y: Floats) -> float:
    """Kendall's tau-b; NaN if one of the two has fewer than three different values."""
    first, second = np.triu_indices(len(x), 1)
    a, b = np.sign(x[first] - x[second]), np.sign(y[first] - y[second])
    scale = np.sqrt(float((a != 0).sum()) * float((b != 0).sum()))
    return float((a * b).sum() / scale) if min(len(np.unique(x)), len(np.unique(y))) > 2 else float("nan")


def agreement_words(found: Agreement) -> str:
    tau = (
        "too few entrants that differ for a rank correlation"
        if isnan(found.tau)
        else f"Kendall's τ = {found.tau:.2f}"
    )
    return (
        f"Ranked by the loss of held-out trajectories instead, which needs no generation: {tau} with this"
        f" ranking; the loss separates {found.real} of {counted(found.pairs, 'pair')}, {found.same} of them"
        " in the same direction. Low loss on the teachers' texts is not the same as solving problems; rely"
        " on it only if the two rankings agree."
    )
