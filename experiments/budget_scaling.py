"""App. D.2: accuracy against the budget."""

import pandas as pd
from matplotlib.figure import Figure

from experiments.harness import accuracy
from experiments.harness.report import Report, Table
from experiments.harness.sweep import Sweep, published
from lark.output.style import LARK_COLOUR, MARKERS, OKABE_ITO, panels, plain_label
from lark.output.tables import MISSING, Cell


def render(sweep: Sweep) -> Report:
    data = accuracy.frame(sweep)
    paper = published("figures").query("experiment == 'budget_scaling'")
    printed = dict(zip(paper["quantity"].str.removeprefix("b").astype(int), paper["value"], strict=True))
    data = data.assign(paper=data["budget"].map(printed).where(data["benchmark"].isin(["amc"])))
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
        cells = [accuracy.cell(row["mean"], row["std"]) for row in part.to_dict("records")]
        papers = Cell(f"{printed[budget]:.1f}") if budget in printed else MISSING
        row = [Cell(str(budget)), *cells, papers, _difference(part)]
        rows.append(row[: len(header)])
    return Report(
        title="Appendix D.2. Budget scaling",
        caption=(
            f"Acc@{samples} (percent) of LARK at each budget B; error bars are the standard deviation over"
            " decoding seeds. The paper finds a large step from B=1 to 3 and small, uneven gains beyond:"
            " 49.4, 65.1, (not printed), 68.7 and 66.3 for B = 1, 3, 5, 10 and 20 on AMC, after training on"
            " 500 questions."
        ),
        data=data,
        tables=[Table(header, rows)],
        figure=_figure(data, printed if sweep.like_the_paper else {}, samples),
        found=accuracy.any_found(data),
    )


def _difference(part: pd.DataFrame) -> Cell:
    """Ours minus the paper's, on the benchmark for which it gives numbers."""
    differences = part["difference"].dropna()
    return Cell(f"{differences.iloc[0]:+.1f}".replace("-", "−")) if len(differences) else MISSING


def _figure(data: pd.DataFrame, printed: dict[int, float], samples: int) -> Figure:
    figure, (axes,) = panels(width=6.2)
    labels = list(data["label"].unique())
    for number, label in enumerate(labels):
        part = data[data["label"] == label]
        last = number == len(labels) - 1
        axes.errorbar(
            part["budget"],
            part["mean"].astype(float),
            yerr=part["std"].astype(float),
            label=plain_label(label),
            capsize=2,
            marker=MARKERS[number],
            markersize=4,
            color=LARK_COLOUR if last else OKABE_ITO[number],
            linewidth=2 if last else 1,
            alpha=1 if last else 0.7,
        )
    if printed:
        # Unconnected: the paper gives no number at B = 5, only that it is lower than at 3.
        axes.plot(
            list(printed), list(printed.values()), "*", color="#000000", markersize=9, label="the paper (AMC)"
        )
    axes.set_xscale("log")
    budgets = sorted(int(budget) for budget in data["budget"].unique())
    axes.set_xticks(budgets, [str(budget) for budget in budgets], minor=False)
    axes.minorticks_off()
    axes.set_xlabel("Budget B (trajectories per question, log scale)")
    axes.set_ylabel(f"Acc@{samples} (%)")
    figure.legend(loc="outside right center")
    return figure
