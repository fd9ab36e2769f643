"""Figure 4: where LARK's first choice differs from the other candidates, token by token."""

from itertools import product

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.harness import accuracy
from experiments.harness.candidates import candidates, selection
from experiments.harness.report import Report, Table
from experiments.harness.sweep import Sweep, published_values
from lark.output.regime_summary import HEADER, TITLE, regime_rows
from lark.output.style import LARK_COLOUR, OKABE_ITO, panels
from lark.output.tables import Cell
from lark.pool.trajectories import KEY
from lark.scoring.student_regime import StudentRegime, far_from_references, student_regime

STATISTICS = {"p_gold": "mean p(y_t)", "wrong_p2": "wrong-token concentration"}
AXES = {
    "p_gold": r"Mean probability of a trajectory's tokens, $\bar p(y_t)$",
    "wrong_p2": r"Wrong-token concentration, mean of $\sum_{v \neq y_t} p(v)^2$",
}
GROUPS = {"all": "all candidates", "selected": "LARK's top 1"}


def render(sweep: Sweep) -> Report:
    (trial,) = sweep.trials
    table = candidates(sweep, trial)
    chosen = selection(sweep, trial)
    groups = {name: pd.DataFrame(columns=list(STATISTICS), dtype=float) for name in GROUPS}
    if table is not None and chosen is not None:
        groups = {"all": table, "selected": table.merge(chosen[chosen["rank"] == 1][KEY], on=KEY)}
    data = summarise(groups, sweep)
    columns = [
        ("Statistic", "statistic", "{}"),
        ("Trajectories", "group", "{}"),
        ("mean", "mean", "{:.3f}"),
        ("std", "std", "{:.3f}"),
        ("the paper's mean", "paper", "{:.3f}"),
    ]
    if sweep.like_the_paper:
        columns.append(("difference", "difference", "{:.3f}"))
    shown = data.assign(statistic=data["statistic"].map(STATISTICS), group=data["group"].map(GROUPS))
    regime = None if table is None else student_regime(table)
    far = None if regime is None else far_from_references(regime)
    return Report(
        title="Figure 4. Confidently wrong, in a structured way?",
        caption=(
            "Two statistics of each trajectory under the untrained student: the mean probability of its"
            " tokens, and how concentrated the remaining mass is on few wrong tokens. In the paper, LARK's"
            " top 1 has a lower p(y_t) than all candidates (0.282 against 0.449) and a higher concentration"
            f" (0.107 against 0.085): the student is wrong there, but on near misses. {_finding(data)}"
        ),
        data=data,
        tables=[Table.of(shown, columns, labels=2), _regime_table(trial.config.student.name, regime)],
        figure=_figure(groups),
        notes=[f"{far}."] if far else [],
        measured=accuracy.is_measured(data),
    )


def summarise(groups: dict[str, pd.DataFrame], sweep: Sweep) -> pd.DataFrame:
    printed = published_values("token_level")
    rows = []
    for statistic, (group, table) in product(STATISTICS, groups.items()):
        values = table[statistic]
        row = {"statistic": statistic, "group": group, "trajectories": len(table)}
        row |= {"mean": values.mean(), "std": values.std(), "paper": printed[f"{statistic}_{group}"]}
        rows.append(row)
    data = pd.DataFrame(rows)
    return data.assign(difference=data["mean"] - data["paper"] if sweep.like_the_paper else None)


def _regime_table(student: str, regime: StudentRegime | None) -> Table:
    """All candidates in four numbers, beside other students."""
    rows = regime_rows(student, regime or StudentRegime(None, None, None, None))
    return Table(HEADER, [[Cell(cell) for cell in row] for row in rows], f"{TITLE}.")


def _finding(data: pd.DataFrame) -> str:
    """Our result, in words."""
    means = data.set_index(["statistic", "group"])["mean"]
    if means.isna().any():
        return ""
    is_lower = means[:, "selected"] < means[:, "all"]
    words = is_lower.map({True: "lower", False: "higher"})
    return (
        f"Here p(y_t) is {words['p_gold']} and the concentration {words['wrong_p2']} in LARK's top 1 than in"
        " all candidates."
    )


def _figure(groups: dict[str, pd.DataFrame]) -> Figure:
    figure, axes = panels(2, width=4.4)
    for place, (statistic, label) in zip(axes, AXES.items(), strict=True):
        _histogram(place, {name: table[statistic].dropna() for name, table in groups.items()})
        place.set_xlabel(label)
        place.set_ylabel("Density of trajectories")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4)
    return figure


def _histogram(axes: Axes, values: dict[str, pd.Series]) -> None:
    everything = pd.concat(values.values())
    if everything.empty:
        return
    bins = np.linspace(everything.min(), everything.max(), 41).tolist()
    for (name, sample), colour in zip(values.items(), (OKABE_ITO[0], LARK_COLOUR), strict=True):
        axes.hist(sample, bins=bins, density=True, alpha=0.45, color=colour, label=GROUPS[name])
        line = "--" if name == "all" else "-"
        axes.axvline(sample.mean(), color=colour, linestyle=line, label=f"mean, {GROUPS[name]}")
