"""The other accuracy of a comparison: pass@1 if it ranks by Acc@k, and the reverse. Acc@k alone can hide that
single samples got worse.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from experiments.harness import results
from experiments.harness.game import Game
from lark.evaluation.metrics import bootstrap_interval
from lark.evaluation.resampled import SingleAccuracy
from lark.printing import counted, some
from lark.selection.paired import Comparison, Floats, compare

DEFINITIONS = (
    "Acc@{k} is the share of problems that at least one of {k} samples solves; pass@1 is the share of samples"
    " that are correct."
)


@dataclass(frozen=True)
class OtherAccuracy:
    """The accuracy that entrants are not ranked by."""

    name: str
    criterion: str
    """The name of the one that they are ranked by."""
    values: dict[str, SingleAccuracy]
    """By entrant: the mean over its training seeds, with its 95% interval over problems, in percent."""
    base: SingleAccuracy | None
    """Of the untrained student."""
    base_criterion: float | None
    """By the criterion, in percent."""
    ranked: Comparison
    """By this accuracy."""
    by_criterion: Comparison

    @property
    def opposite(self) -> list[tuple[str, str]]:
        """Pairs that the two accuracies order differently; the better one by the criterion first."""
        names = self.by_criterion.names
        reversed_pairs = (self.by_criterion.difference > 0) & (self.ranked.difference < 0)
        return [(names[i], names[j]) for i, j in zip(*np.nonzero(reversed_pairs), strict=True)]


def other_accuracy(game: Game) -> OtherAccuracy | None:
    """None if entrants are not ranked by an accuracy, or if there is nothing to compare yet."""
    config = game.contest.config
    criterion = config.compare.criterion
    names = {"accuracy": f"Acc@{config.benchmark.decoding.samples}", "samples": "pass@1"}
    if criterion not in names or len(game.scores) < 2:
        return None
    (other,) = (name for name in names if name != criterion)
    single = other == "samples"
    tables: dict[str, Floats] = {}
    for name, trials in game.trials.items():
        runs = [results.accuracies(game.contest.sweep, trial, single=single) for trial in trials]
        graded = [run for run in runs if run is not None]
        if len(graded) < len(trials):
            return None
        tables[name] = np.stack(graded)
    base = _of_base(game, single)
    base_by_criterion = _of_base(game, not single)
    return OtherAccuracy(
        name=names[other],
        criterion=names[criterion],
        values={name: _with_interval(table.mean(axis=0)) for name, table in tables.items()},
        base=None if base is None else _with_interval(base),
        base_criterion=None if base_by_criterion is None else 100 * float(base_by_criterion.mean()),
        ranked=compare(tables),
        by_criterion=compare(game.tables),
    )


def _of_base(game: Game, single: bool) -> Floats | None:
    return results.accuracies(game.contest.sweep, game.runs[0], single=single, trained=False)


def _with_interval(by_problem: Floats) -> SingleAccuracy:
    return SingleAccuracy(100 * float(by_problem.mean()), bootstrap_interval(by_problem))


def shown(value: SingleAccuracy) -> str:
    """`20.9% (18.1 to 23.8)`."""
    low, high = value.interval
    return f"{value.mean:.1f}% ({low:.1f} to {high:.1f})"


def disagreement_words(other: OtherAccuracy) -> str:
    """Whether the two accuracies agree, in sentences."""
    return " ".join([_ranking(other), *_worse_than_base(other)])


def _ranking(other: OtherAccuracy) -> str:
    opposite = other.opposite
    if not opposite:
        return f"{other.name} ranks the entrants in the same order as {other.criterion}."
    entrants = len(other.values)
    pairs = counted(entrants * (entrants - 1) // 2, "pair")
    examples = some((f"{first} above {second}" for first, second in opposite), 3)
    text = f"{other.criterion} and {other.name} order {len(opposite)} of {pairs} differently"
    leader = other.by_criterion.ranked[0]
    leads = other.ranked.ranked[0]
    if leader == leads:
        return f"{text} ({other.criterion} puts {examples}); {leader} leads by both."
    return (
        f"The two accuracies disagree about the leader: by {other.name}, {leads} leads with"
        f" {shown(other.values[leads])}, and {leader} has {shown(other.values[leader])}. {text}"
        f" ({other.criterion} puts {examples})."
    )


def _worse_than_base(other: OtherAccuracy) -> Iterator[str]:
    """Entrants that gain by one accuracy and lose by the other against the untrained student."""
    if other.base is None or other.base_criterion is None:
        return
    means = dict(zip(other.by_criterion.names, other.by_criterion.means, strict=True))
    gains: list[str] = []
    for name, value in other.values.items():
        gain = 100 * means[name] - other.base_criterion
        if gain > 0 > value.mean - other.base.mean:
            gains.append(name)
    if gains:
        yield (
            f"Compared with the base model, {other.criterion} rises but {other.name} falls for"
            f" {', '.join(gains)}."
        )
