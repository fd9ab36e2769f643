"""The tables of a comparison: its entrants, all pairs, and its runs and pairs as data."""

from itertools import combinations
from typing import Any

import pandas as pd

from experiments.harness import results, verdict
from experiments.harness.both_accuracies import OtherAccuracy, shown
from experiments.harness.game import Game
from experiments.harness.report import Table
from lark.config.compare import MEASURED
from lark.output.tables import MISSING, Cell
from lark.selection.paired import Comparison, Floats

HELD_OUT_LOSS = "held-out loss"


def ranked(game: Game, comparison: Comparison | None) -> list[str]:
    """Entrants with results, best first. The leader has the most seeds, not always the best mean."""
    names = list(game.scores)
    if comparison:
        names = comparison.ranked
    leader = game.heats[-1].leader if game.heats else names[0]
    return [leader, *(name for name in names if name != leader)]


def base_accuracy(game: Game) -> float | None:
    """Mean accuracy of the untrained student."""
    runs = game.runs
    criterion = game.contest.config.compare.criterion
    if not game.contest.evaluates or not runs or criterion in (*MEASURED, "command"):
        return None
    single = criterion == "samples"
    return _mean(results.accuracies(game.contest.sweep, runs[0], single=single, trained=False))


def entrants_table(
    game: Game,
    comparison: Comparison | None,
    agreement: verdict.LossAgreement | None,
    other: OtherAccuracy | None,
) -> Table:
    """A row per entrant, best mean first. The other accuracy has a column, and so has the loss if it is not
    the criterion.
    """
    criterion = verdict.criterion_words(game)
    header = ["rank", "entrant", "seeds", criterion, "minus the leader", "95% interval", "verdict"]
    if other:
        header.insert(4, f"{other.name} (95% interval)")
    if agreement:
        header.append(HELD_OUT_LOSS)
    rows: list[dict[str, Cell]] = []
    names = ranked(game, comparison)
    for rank, name in enumerate(names, 1):
        row = {"rank": Cell(str(rank)), "entrant": Cell(name), "seeds": Cell(str(len(game.scores[name])))}
        row["verdict"] = Cell(verdict.status(game, name))
        if comparison:
            row |= _numbers(game, comparison, name, names[0])
        if other:
            row[header[4]] = Cell(shown(other.values[name]))
        if agreement:
            row[HELD_OUT_LOSS] = Cell(f"{agreement.losses[name]:.3f}")
        rows.append(row)
    for name in game.failed.keys() - game.scores.keys():
        rows.append({"entrant": Cell(name), "verdict": Cell("failed")})
    units = verdict.Units.of(game)
    base = base_accuracy(game)
    if base is not None and not units.is_loss:
        row = {"entrant": Cell("Base model"), criterion: Cell(units.value(base))}
        if other and other.base:
            row[header[4]] = Cell(shown(other.base))
        rows.append(row)
    cells = []
    for row in rows:
        cells.append([row.get(column, MISSING) for column in header])
    return Table(header, cells, labels=2)


def _numbers(game: Game, comparison: Comparison, name: str, leader: str) -> dict[str, Cell]:
    """An entrant's mean and its difference to the leader."""
    units = verdict.Units.of(game)
    i = comparison.names.index(name)
    j = comparison.names.index(leader)
    cells = {verdict.criterion_words(game): Cell(units.value(comparison.means[i]), name == leader)}
    if name != leader:
        cells["minus the leader"] = Cell(units.difference(comparison.difference[i, j]))
        cells["95% interval"] = Cell(units.interval(comparison.low[i, j], comparison.high[i, j]))
    return cells


def pairs_table(game: Game, comparison: Comparison) -> Table:
    units = verdict.Units.of(game)
    rows = []
    for pair in _pairs(game, comparison):
        difference = units.difference(pair["difference"])
        interval = units.interval(pair["low"], pair["high"])
        word = "significant" if pair["significant"] else "not significant"
        rows.append([*map(Cell, (pair["entrant"], pair["minus"], difference, interval, word))])
    header = ["entrant", "minus", "difference", "95% interval", "difference is"]
    return Table(header, rows, "All pairs.", labels=2)


def _pairs(game: Game, comparison: Comparison) -> list[dict[str, Any]]:
    """Every pair once, the one with the better mean first."""
    significant = verdict.significant_pairs(game, comparison)
    pairs = []
    for i, j in combinations(comparison.order, 2):
        pair: dict[str, Any] = {"entrant": comparison.names[i], "minus": comparison.names[j]}
        pair |= {"difference": comparison.difference[i, j], "low": comparison.low[i, j]}
        pair |= {"high": comparison.high[i, j], "significant": bool(significant[i, j])}
        pairs.append(pair)
    return pairs


def runs_and_pairs(game: Game, comparison: Comparison | None) -> pd.DataFrame:
    """The data of the report: a row per run, then a row per pair."""
    sweep = game.contest.sweep
    rows = list[dict[str, Any]]()
    for name, trials in game.trials.items():
        for trial in trials:
            row: dict[str, Any] = {"row": "run", "entrant": name, "seed": trial.config.training.seed}
            row["accuracy"] = _mean(results.accuracies(sweep, trial))
            row["samples"] = _mean(results.accuracies(sweep, trial, single=True))
            row["loss"] = _mean(results.losses(sweep, trial))
            row["token_accuracy"] = _mean(results.token_accuracies(sweep, trial))
            rows.append(row)
    if comparison is not None:
        for pair in _pairs(game, comparison):
            rows.append({"row": "pair", **pair})
    return pd.DataFrame(rows)


def _mean(values: Floats | None) -> float | None:
    return None if values is None else float(values.mean())
