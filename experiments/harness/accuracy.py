"""Accuracies of a sweep's trials as rows, and the bar charts of ablations."""

from collections.abc import Callable, Hashable, Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.harness.report import Report, Table, number
from experiments.harness.sweep import Sweep, Trial, published
from lark.evaluation.metrics import Spread, average
from lark.evaluation.resampled import SingleAccuracy, average_single
from lark.output.accuracies import spread
from lark.output.style import LARK_COLOUR, MARKERS, METHOD_COLOURS, OKABE_ITO, panels, plain_label
from lark.output.tables import MISSING, Cell

AVERAGE = "avg"


SINGLE = "pass@1, the share of samples that are correct, in percent, with its 95% interval over problems."
"""Caption of the table that stands beside every table of Acc@k."""


def rows(sweep: Sweep, trial: Trial, trained: bool = True) -> list[dict[str, object]]:
    """One row per benchmark and one for their average; without a mean if it is not evaluated yet."""
    metrics = sweep.metrics(trial, trained)
    samples = sweep.samples(trial, trained)
    tasks = trial.config.benchmark.tasks
    labels = {name: task.label for name, task in tasks.items()} | {AVERAGE: "Avg"}
    spreads: dict[str, Spread] = {task: evaluated.accuracy_at_k for task, evaluated in metrics.items()}
    singles: dict[str, SingleAccuracy] = {task: readings.single for task, readings in samples.items()}
    if len(spreads) == len(tasks):
        spreads[AVERAGE] = average(list(metrics.values()))
        singles[AVERAGE] = average_single(list(samples.values()))
    config = trial.config
    table = []
    for benchmark, label in labels.items():
        row: dict[str, object] = {
            "student": config.student.name,
            "method": config.method.key,
            "weighting": config.weighting_name,
            "budget": config.budget.per_question,
            "benchmark": benchmark,
            "label": label,
            "mean": None,
            "std": None,
            "pass_at_1": None,
            "pass_at_1_low": None,
            "pass_at_1_high": None,
        }
        if benchmark in spreads:
            row |= {"mean": spreads[benchmark].mean, "std": spreads[benchmark].std}
            low, high = singles[benchmark].interval
            row |= {"pass_at_1": singles[benchmark].mean, "pass_at_1_low": low, "pass_at_1_high": high}
        table.append(row)
    return table


def frame(sweep: Sweep) -> pd.DataFrame:
    """The rows of all trials."""
    table = []
    for trial in sweep.trials:
        table += rows(sweep, trial)
    return pd.DataFrame(table)


def cell(mean: float | None, std: float | None, best: bool = False) -> Cell:
    """mean±std, or missing."""
    if mean is None or pd.isna(mean):
        return MISSING
    deviation = None if std is None or pd.isna(std) else float(std)
    return Cell(spread(Spread((), float(mean), deviation)), best)


def single_cell(entry: Mapping[Hashable, object]) -> Cell:
    """pass@1 of a row with its interval, or missing."""
    values = [entry.get(name) for name in ("pass_at_1", "pass_at_1_low", "pass_at_1_high")]
    if any(pd.isna(value) for value in values):  # type: ignore[call-overload]
        return MISSING
    mean, low, high = (float(str(value)) for value in values)
    return Cell(str(SingleAccuracy(mean, (low, high))))


def single_rows(data: pd.DataFrame, variant: str) -> list[list[Cell]]:
    """The same rows as `variant_rows`, with pass@1."""
    table = []
    for name, part in data.groupby(variant, sort=False):
        table.append([Cell(str(name)), *map(single_cell, part.to_dict("records"))])
    return table


def variant_rows(data: pd.DataFrame, variant: str) -> list[list[Cell]]:
    """One row per variant, one column per benchmark, with the best of each column in bold."""
    best = data.groupby("label")["mean"].max()
    table = []
    for name, part in data.groupby(variant, sort=False):
        row = [Cell(str(name))]
        for entry in part.to_dict("records"):
            row.append(cell(entry["mean"], entry["std"], entry["mean"] == best[entry["label"]]))
        table.append(row)
    return table


def bars(data: pd.DataFrame, variant: str, ours: str, samples: int) -> Figure:
    """One group of bars per benchmark, one bar per variant, with the standard deviation over seeds."""
    figure, (axes,) = panels(width=7.2)
    labels = list(data["label"].unique())
    variants = list(data[variant].unique())
    width = 0.8 / len(variants)
    others = iter(colour for colour in OKABE_ITO if colour != LARK_COLOUR)
    for place_in_group, name in enumerate(variants):
        part = data[data[variant] == name].set_index("label").loc[labels]
        offset = (place_in_group - (len(variants) - 1) / 2) * width
        places = np.arange(len(labels)) + offset
        colour = LARK_COLOUR if name == ours else next(others)
        means = part["mean"].astype(float)
        spreads = part["std"].astype(float)
        whiskers = {"elinewidth": 0.8, "capsize": 2}
        axes.bar(places, means, width, yerr=spreads, label=name, color=colour, error_kw=whiskers)
        # Every bar has its number, because a bar of 0 is invisible, but not missing.
        tops = means.fillna(0.0) + spreads.fillna(0.0)
        for place, mean, top in zip(places, means, tops, strict=True):
            text = number(mean, "{:.1f}").text
            axes.annotate(text, (place, top), (0, 2), textcoords="offset points", ha="center", fontsize=6)
    axes.set_xticks(range(len(labels)), list(map(plain_label, labels)))
    axes.set_xlabel("Benchmark")
    axes.set_ylabel(f"Acc@{samples} (%)")
    axes.grid(axis="x", visible=False)
    if data["mean"].notna().any():
        highest = float((data["mean"].astype(float) + data["std"].fillna(0).astype(float)).max())
        axes.set_ylim(bottom=0, top=min(105, highest * 1.18))
    figure.legend(loc="outside upper center", ncols=len(variants))
    return figure


def draw_methods(axes: Axes, data: pd.DataFrame, x: str) -> None:
    """A line of accuracies over the column `x` for each method, in its colour and with its marker."""
    labels = data.drop_duplicates("method").set_index("method")["label"]
    for place, (method, label) in enumerate(labels.items()):
        runs = data[data["method"] == method].dropna(subset=["accuracy", x])
        axes.plot(
            runs[x],
            runs["accuracy"],
            color=METHOD_COLOURS.get(str(method), "#009E73"),
            marker=MARKERS[place % len(MARKERS)],
            markersize=4,
            label=plain_label(label),
        )


def ablation(
    data: pd.DataFrame,
    sweep: Sweep,
    column: str,
    heading: str,
    ours: str,
    title: str,
    caption: Callable[[int, int], str],
) -> Report:
    """A bar chart, with one group per benchmark and one bar per variant (`column`), and the same numbers as
    a table.

    `caption` gets the samples per problem and the budget.
    """
    config = sweep.trials[0].config
    samples = config.benchmark.decoding.samples
    return Report(
        title=title,
        caption=caption(samples, config.budget.per_question),
        data=data,
        tables=[
            Table([heading, *data["label"].unique()], variant_rows(data, column)),
            Table([heading, *data["label"].unique()], single_rows(data, column), SINGLE),
        ],
        figure=bars(data, column, ours, samples),
        notes=paper_notes(data, sweep),
        measured=is_measured(data),
    )


def is_measured(data: pd.DataFrame) -> bool:
    """True if any trial is evaluated."""
    return bool(data["mean"].notna().any())


def paper_table() -> pd.DataFrame:
    """The paper's Table 1, with its numbers in the columns `paper` and `paper_std`."""
    return published("table1").rename(columns={"mean": "paper", "std": "paper_std"})


def with_paper(data: pd.DataFrame, sweep: Sweep) -> pd.DataFrame:
    """Add Table 1's numbers to the rows that it has too, and the difference."""
    data = data.merge(paper_table(), how="left", on=["student", "method", "budget", "benchmark"])
    difference = data["mean"] - data["paper"] if sweep.like_the_paper else None
    return data.assign(difference=difference)


def paper_notes(data: pd.DataFrame, sweep: Sweep) -> list[str]:
    """The paper's printed numbers for the same bars."""
    printed = data[data["paper"].notna()].to_dict("records")
    if not printed:
        return [
            "For this figure, the paper prints only LARK's numbers, in Table 1: 36.67, 76.31, 67.34 and 74.67"
            " (Avg 63.74)."
        ]
    parts = []
    for row in printed:
        part = f"{row['label']} {row['paper']:.2f}"
        if not pd.isna(row["difference"]):
            part += f" (ours {row['difference']:+.2f})"
        parts.append(part)
    return [f"The paper's LARK (Table 1): {', '.join(parts)}."]
