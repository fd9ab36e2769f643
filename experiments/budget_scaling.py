"""App. D.2: accuracy against the budget."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from experiments.harness import accuracy
from experiments.harness.report import Report, Table, number
from experiments.harness.sweep import Sweep, published_values
from lark.output.style import LARK_COLOUR, MARKERS, OKABE_ITO, panels, plain_label
from lark.output.tables import Cell


def render(sweep: Sweep) -> Report:
    data = accuracy.frame(sweep)
    printed = published_values("budget_scaling")
    printed.index = printed.index.str.removeprefix("b").astype(int)
    data = data.assign(paper=data["budget"].map(printed).where(data["benchmark"] == "amc"))
    data = data.assign(difference=data["mean"] - data["paper"] if sweep.like_the_paper else None)
    if data["benchmark"].nunique() == 2:  # one benchmark is its own average
        data = data[data["benchmark"] != accuracy.AVERAGE]
    samples = sweep.trials[0].config.benchmark.decoding.samples
    header = ["B", *data["label"].unique(), "paper (AMC)"]
    if sweep.like_the_paper:
        header.append("difference")
    rows = []
    for trial in sweep.trials:
        budget = trial.config.budget.per_question
        part = data[data["budget"] == budget]
        row = [Cell(str(budget))]
        for entry in part.to_dict("records"):
            row.append(accuracy.cell(entry["mean"], entry["std"]))
        row.append(number(printed.get(budget), "{:.1f}"))
        if sweep.like_the_paper:
            row.append(number(part["difference"].max(), "{:+.1f}"))  # the paper has one benchmark
        rows.append(row)
    return Report(
        title="Appendix D.2. Budget scaling",
        caption=(
            f"Acc@{samples} (percent) of LARK at each budget B; error bars are the standard deviation over"
            " decoding seeds. The paper finds a large step from B=1 to 3 and small, uneven gains beyond:"
            " 49.4, 65.1, (not printed), 68.7 and 66.3 for B = 1, 3, 5, 10 and 20 on AMC, after training on"
            " 500 questions."
        ),
        data=data,
        tables=[
            Table(header, rows),
            Table(["B", *data["label"].unique()], accuracy.single_rows(data, "budget"), accuracy.SINGLE),
        ],
        figure=_figure(data, printed if sweep.like_the_paper else None, samples),
        measured=accuracy.is_measured(data),
    )


def _figure(data: pd.DataFrame, printed: pd.Series | None, samples: int) -> Figure:
    figure, (axes,) = panels(width=6.2)
    labels = list(data["label"].unique())
    for place, label in enumerate(labels):
        part = data[data["label"] == label]
        means = part["mean"].astype(float)
        style: dict[str, Any] = {"color": OKABE_ITO[place], "linewidth": 1, "alpha": 0.7}
        if label == labels[-1]:  # the average, or the only benchmark
            style = {"color": LARK_COLOUR, "linewidth": 2, "alpha": 1}
        style |= {"marker": MARKERS[place], "markersize": 4, "capsize": 2}
        axes.errorbar(part["budget"], means, part["std"].astype(float), label=plain_label(label), **style)
    if printed is not None:
        # Unconnected: the paper gives no number at B = 5, only that it is lower than at 3.
        axes.plot(printed.index, printed, "*", color="#000000", markersize=9, label="the paper (AMC)")
    axes.set_xscale("log")
    budgets = sorted(int(budget) for budget in data["budget"].unique())
    axes.set_xticks(budgets, [str(budget) for budget in budgets], minor=False)
    axes.minorticks_off()
    axes.set_xlabel("Budget B (trajectories per question, log scale)")
    axes.set_ylabel(f"Acc@{samples} (%)")
    figure.legend(loc="outside right center")
    return figure
