"""Accuracies of a sweep's trials as rows, and the bars that ablations are drawn as."""

from collections.abc import Callable, Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure

from experiments.harness.report import Report, Table
from experiments.harness.sweep import Sweep, Trial, published, values
from lark.evaluation.metrics import BenchmarkMetrics, Spread, average
from lark.report.run_summary import spread
from lark.report.style import LARK_COLOUR, OKABE_ITO, panels
from lark.report.tables import MISSING, Cell

AVERAGE = "avg"


def rows(trial: Trial, metrics: Mapping[str, BenchmarkMetrics]) -> list[dict[str, object]]:
    """A row for each benchmark and one for their average; without a mean where it is not evaluated yet."""
    tasks = trial.config.benchmark.tasks
    found: dict[str, Spread] = {task: metrics[task].accuracy_at_k for task in tasks if task in metrics}
    if len(found) == len(tasks):
        found[AVERAGE] = average(list(metrics.values()))
    return [
        {
            **values(trial),
            "benchmark": task,
            "label": tasks[task].label if task in tasks else "Avg",
            "mean": found[task].mean if task in found else None,
            "std": found[task].std if task in found else None,
        }
        for task in [*tasks, AVERAGE]
    ]


def frame(sweep: Sweep) -> pd.DataFrame:
    """All trials' rows."""
    return pd.DataFrame([row for trial in sweep.trials for row in rows(trial, sweep.metrics(trial))])


def cell(mean: float | None, std: float | None, best: bool = False) -> Cell:
    """mean±std, or missing."""
    return MISSING if pd.isna(mean) else Cell(spread(Spread((), float(mean), None if pd.isna(std) else float(std))), best)


def variant_rows(data: pd.DataFrame, variant: str) -> list[list[Cell]]:
    """A row for each variant, a column for each benchmark, the best of a column in bold."""
    best = data.groupby("label")["mean"].max()
    return [
        [Cell(str(name)), *(cell(r["mean"], r["std"], r["mean"] == best[r["label"]]) for r in part.to_dict("records"))]
        for name, part in data.groupby(variant, sort=False)
    ]


def bars(data: pd.DataFrame, variant: str, ours: str, samples: int) -> Figure:
    """Groups of bars: a group for each benchmark, a bar for each variant, with the seeds' standard deviation."""
    figure, (axes,) = panels(width=7.2)
    labels, variants = list(data["label"].unique()), list(data[variant].unique())
    width = 0.8 / len(variants)
    others = iter(colour for colour in OKABE_ITO if colour != LARK_COLOUR)
    for number, name in enumerate(variants):
        part = data[data[variant] == name].set_index("label").loc[labels]
        place = [index + (number - (len(variants) - 1) / 2) * width for index in range(len(labels))]
        colour = LARK_COLOUR if name == ours else next(others)
        means, spreads = part["mean"].astype(float), part["std"].astype(float)
        axes.bar(
            place, means, width, yerr=spreads, label=name, color=colour, error_kw={"elinewidth": 0.8, "capsize": 2},
        )  # fmt: skip
        for at, mean, std in zip(place, means, spreads, strict=True):  # a bar of 0 is none to see, and is not missing
            text, height = ("–", 0.0) if pd.isna(mean) else (f"{mean:.1f}", mean + (0.0 if pd.isna(std) else std))
            axes.annotate(text, (at, height), (0, 2), textcoords="offset points", ha="center", fontsize=6)
    axes.set_xticks(range(len(labels)), labels)
    axes.set_xlabel("Benchmark")
    axes.set_ylabel(f"Acc@{samples} (%)")
    axes.grid(axis="x", visible=False)
    if data["mean"].notna().any():
        axes.set_ylim(
            bottom=0, top=min(105, float((data["mean"].astype(float) + data["std"].fillna(0).astype(float)).max()) * 1.18)
        )
    figure.legend(loc="outside upper center", ncols=len(variants))
    return figure


def ablation(
    data: pd.DataFrame, sweep: Sweep, column: str, heading: str, ours: str, title: str, caption: Callable[[int, int], str]
) -> Report:
    """A figure of bars, a group per benchmark and a bar per variant (`column`), with the same as a table.

    `caption` is given the samples per problem and the budget.
    """
    samples, budget = sweep.trials[0].config.benchmark.decoding.samples, sweep.trials[0].config.budget.size
    return Report(
        title=title,
        caption=caption(samples, budget),
        data=data,
        tables=[Table(header(data, heading), variant_rows(data, column))],
        figure=bars(data, column, ours, samples),
        notes=paper_notes(data, sweep),
        found=any_found(data),
    )


def any_found(data: pd.DataFrame) -> bool:
    """Whether anything is evaluated yet."""
    return bool(data["mean"].notna().any())


def header(data: pd.DataFrame, first: str) -> Sequence[str]:
    return [first, *data["label"].unique()]


def with_paper(data: pd.DataFrame, sweep: Sweep, only: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Table 1's numbers beside those of our rows that it has too (`only` says which weighting that is), and the difference."""
    paper = published("table1").rename(columns={"mean": "paper", "std": "paper_std"})
    data = data.merge(paper, how="left", on=["student", "method", "budget", "benchmark"])
    for column, value in (only or {}).items():
        data.loc[data[column] != value, ["paper", "paper_std"]] = None
    comparable = data["mean"] if sweep.like_the_paper else None
    return data.assign(difference=None if comparable is None else comparable - data["paper"])


def paper_notes(data: pd.DataFrame, sweep: Sweep) -> list[str]:
    """What the paper prints of the same bars."""
    known = data[data["paper"].notna()].to_dict("records")
    if not known:
        return ["The paper prints no numbers in this figure but LARK's, in Table 1: 36.67, 76.31, 67.34 and 74.67 (Avg 63.74)."]
    parts = [
        f"{row['label']} {row['paper']:.2f}" + ("" if pd.isna(row["difference"]) else f" (ours {row['difference']:+.2f})")
        for row in known
    ]
    return [f"The paper's LARK (Table 1): {', '.join(parts)}."]
