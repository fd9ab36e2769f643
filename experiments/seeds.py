"""`make seeds`: the spread over training seeds, and how much of the differences between methods it
explains.
"""

from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.harness import accuracy, results
from experiments.harness.report import Report, Table, number
from experiments.harness.sweep import Sweep
from lark.output.style import BLUE, GREY, METHOD_COLOURS, panels, plain_label, styled
from lark.output.tables import MISSING, Cell
from lark.selection.paired import Comparison, Floats, compare

TITLE = "Training seeds: spread within and between methods"


@dataclass(frozen=True)
class SeedVariance:
    """Variance of runs' accuracies, in squared points: one-way analysis of variance with random effects."""

    between: float
    """Of the methods' expected accuracies; 0 if the runs do not show any."""
    within: float
    """Of runs of the same method: training seed and sampled answers."""

    @property
    def explained(self) -> float:
        """Share of the runs' variance that is due to the training seed (and the sampled answers), not to
        the method.
        """
        total = self.between + self.within
        return self.within / total if total else float("nan")

    def wrong_order(self, difference: float) -> float:
        """Chance that one run of each of two methods orders them wrongly, if their means differ by this
        much.
        """
        if not self.within:
            return 0.0
        return NormalDist().cdf(-abs(difference) / np.sqrt(2 * self.within))


def spread(runs: dict[str, Floats]) -> SeedVariance | None:
    """From the accuracies [S] of each method's runs. None if no method has two runs."""
    counts = np.array([len(values) for values in runs.values()])
    freedom = sum(counts - 1)
    if not freedom:
        return None
    within = float(sum(((values - values.mean()) ** 2).sum() for values in runs.values()) / freedom)
    if len(runs) == 1:
        return SeedVariance(0.0, within)
    means = np.array([values.mean() for values in runs.values()])
    # The means of a few runs also differ by chance: their variance contains a part of `within`.
    noise = float(np.mean(within / counts))
    return SeedVariance(max(0.0, float(means.var(ddof=1)) - noise), within)


def render(sweep: Sweep) -> Report:
    data, tables = _collect(sweep)
    runs = {label: 100 * table.mean(axis=1) for label, table in tables.items()}
    variance = spread(runs)
    compared = None
    if len(tables) > 1:
        compared = compare(tables)
    config = sweep.trials[0].config
    samples = config.benchmark.decoding.samples
    report_tables = [_table(sweep, runs)]
    if compared and variance:
        report_tables.append(_pairs(compared, variance))
    return Report(
        title=TITLE,
        caption=(
            f"Acc@{samples} (percent, average of the benchmarks) at B={config.budget.per_question} of"
            " students that differ only in the training seed, which decides the order of trajectories. One"
            " decoding seed, so runs of a method also differ by their sampled answers. The selection is the"
            " same in all runs of a method, also for Random: its spread over other random selections is not"
            " part of this. The paper has one training run per cell and names this as a limitation."
        ),
        data=data,
        tables=report_tables,
        figure=_figure(sweep, runs, variance, samples) if runs else None,
        notes=_notes(variance, compared),
        measured=bool(runs),
    )


def _collect(sweep: Sweep) -> tuple[pd.DataFrame, dict[str, Floats]]:
    """One row per run and benchmark, and the runs' accuracies [S, P] per problem by method."""
    rows = []
    tables: dict[str, list[Floats]] = {}
    for trial in sweep.trials:
        for row in accuracy.rows(trial, sweep.metrics(trial)):
            rows.append({**row, "training_seed": trial.config.training.seed})
        accuracies = results.accuracies(sweep, trial)
        if accuracies is not None:
            tables.setdefault(trial.config.method.title, []).append(accuracies)
    return pd.DataFrame(rows), {label: np.stack(runs) for label, runs in tables.items()}


def _table(sweep: Sweep, runs: dict[str, Floats]) -> Table:
    rows = []
    labels = dict.fromkeys(trial.config.method.title for trial in sweep.trials)
    best = max((values.mean() for values in runs.values()), default=None)
    for label in labels:
        values = runs.get(label)
        if values is None:
            rows.append([Cell(label), Cell("0"), *[MISSING] * 3])
            continue
        deviation = number(pd.Series(values).std(), "{:.1f}")
        mean = Cell(f"{values.mean():.1f}", values.mean() == best)
        ends = Cell(f"{values.min():.1f} to {values.max():.1f}")
        rows.append([Cell(label), Cell(str(len(values))), mean, deviation, ends])
    return Table(["Method", "training seeds", "mean", "standard deviation", "range"], rows)


def _pairs(compared: Comparison, variance: SeedVariance) -> Table:
    rows = []
    for i, j in combinations(compared.order, 2):
        difference = 100 * compared.difference[i, j]
        interval = f"{100 * compared.low[i, j]:+.1f} to {100 * compared.high[i, j]:+.1f}"
        texts = [
            compared.names[i],
            compared.names[j],
            f"{difference:+.1f}",
            interval.replace("-", "−"),
            "yes" if compared.significant[i, j] else "no",
            f"{100 * variance.wrong_order(difference):.0f}%",
        ]
        rows.append([Cell(text) for text in texts])
    caption = (
        "All pairs, with intervals over problems and training seeds, and how often one run of each would"
        " order them wrongly."
    )
    header = ["Method", "minus", "difference", "95% interval", "significant", "wrong order"]
    return Table(header, rows, caption, labels=2)


def _notes(variance: SeedVariance | None, compared: Comparison | None) -> list[str]:
    if variance is None:
        return []
    notes = [
        f"Of the variance of single runs, {100 * variance.explained:.0f}% is within methods (another seed,"
        f" other sampled answers) and {100 * (1 - variance.explained):.0f}% between them: standard deviations"
        f" of {np.sqrt(variance.within):.1f} and {np.sqrt(variance.between):.1f} points."
    ]
    if compared is not None and compared.seed_deviation is not None:
        notes.append(
            "The part of the former that other answers to the same problems do not explain, the training"
            f" seed itself, has a standard deviation of {100 * compared.seed_deviation:.1f} points."
        )
    return notes


@styled
def _figure(sweep: Sweep, runs: dict[str, Floats], variance: SeedVariance | None, samples: int) -> Figure:
    figure, (left, right) = panels(2, width=4.4, height=3.2)
    names = {trial.config.method.title: trial.config.method.name for trial in sweep.trials}
    order = sorted(runs, key=lambda label: -runs[label].mean())
    for place, label in enumerate(order):
        colour = METHOD_COLOURS.get(names[label], BLUE)
        left.plot(runs[label], [place] * len(runs[label]), "o", color=colour, alpha=0.5, markersize=5)
        left.plot([runs[label].mean()], [place], "|", color=colour, markersize=18, markeredgewidth=2.5)
    left.set_yticks(range(len(order)), [plain_label(label) for label in order])
    left.set_ylim(len(order) - 0.4, -0.6)
    left.set_xlabel(f"Acc@{samples} (%), average of the benchmarks")
    left.set_title("one dot per training run, a bar for the mean")
    if variance is not None:
        within = 100 * variance.explained
        bars = right.barh([1, 0], [100 - within, within], color=[BLUE, GREY], height=0.5)
        right.bar_label(bars, fmt="%.0f%%", padding=4, fontsize=8)
        right.set_yticks([1, 0], ["between\nmethods", "within\nmethods"])
        right.set_ylim(-0.6, 1.6)
        right.set_xlim(0, 112)
        right.set_xlabel("share of the variance of single runs (%)")
    return figure
