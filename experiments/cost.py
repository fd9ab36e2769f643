"""App. D.1: seconds per trajectory of each scoring method, and the ratio to the fastest."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from experiments.harness.report import Report, Table
from experiments.harness.sweep import Sweep, published_values
from lark.analysis.kinds import TIMINGS
from lark.output.style import METHOD_COLOURS, panels

LABELS = {
    "grape": "GRAPE",
    "lark": "LARK",
    "llm_judge": "LLM-judged Quality",
    "rsr": "RSR",
    "local_naturalness": "Local Naturalness",
    "statistics": "Ours: GRAPE, LARK and RSR in one pass",
    "local_blocks": "Ours: Local Naturalness in blocks",
}


def render(sweep: Sweep) -> Report:
    (trial,) = sweep.trials
    folder = sweep.folder(trial, TIMINGS)
    paper = published_values("cost").filter(list(LABELS))
    ours = pd.Series(dtype=float)
    if folder is not None:
        ours = seconds(pd.read_parquet(folder / TIMINGS.file))
    data = pd.DataFrame(LABELS.items(), columns=["method", "label"])
    data = data.assign(seconds=data["method"].map(ours), paper_seconds=data["method"].map(paper))
    # The last two rows are our own implementations, which the paper does not have.
    fastest = data.loc[data["method"].isin(paper.index), "seconds"].min()
    data = data.assign(ratio=data["seconds"] / fastest, paper_ratio=data["paper_seconds"] / paper.min())
    data = data.assign(difference=data["ratio"] - data["paper_ratio"] if sweep.like_the_paper else None)
    columns = [
        ("Method", "label", "{}"),
        ("ms per trajectory", "milliseconds", "{:.1f}"),
        ("ratio", "ratio", "{:.2f}×"),
        ("the paper's s", "paper_seconds", "{:.2f}"),
        ("the paper's ratio", "paper_ratio", "{:.2f}×"),
    ]
    if sweep.like_the_paper:
        columns.append(("difference of ratios", "difference", "{:+.2f}"))
    artifact = trial.artifact(TIMINGS)
    counts: Mapping[str, Any] = {}
    where = ""
    if folder is not None and artifact is not None:
        counts = sweep.store.manifest(artifact).counts
        where = (
            f"Measured on {counts['device']}, {counts['trajectories']} trajectories of"
            f" {counts['mean_tokens']:,.0f} response tokens on average, all methods in one process, in"
            " rotating order; the median over rounds of each trajectory, averaged. "
        )
    judge = "the judge is that of method.judge"
    if folder is not None and "llm_judge" not in ours.index:
        reason = counts.get("judge_left_out", "only engine=hf times it")
        judge = (
            f"the judge is missing ({reason}), and its time for a whole pool is in its artifact's manifest"
        )
    return Report(
        title="Appendix D.1. What scoring costs",
        caption=(
            "Wall-clock time to score one trajectory with each method alone, and its ratio to the fastest of"
            f" the paper's methods. {where}Baselines are timed as they are usually implemented, with all"
            f" logits in memory; Local Naturalness as m+1 passes; {judge}. The paper finds LARK within 3% of"
            " GRAPE, and the LLM judge 1.6, RSR 2.7 and Local Naturalness 4.0 times as slow. Seconds depend"
            " on the machine and the student; only the ratios can be compared."
        ),
        data=data,
        tables=[Table.of(data.assign(milliseconds=1000 * data["seconds"]), columns)],
        figure=_figure(data),
        measured=folder is not None,
    )


def seconds(timings: pd.DataFrame) -> pd.Series:
    """Seconds of each method: the median over rounds of each trajectory, then the mean over trajectories."""
    return timings.groupby(["method", "trajectory"])["seconds"].median().groupby("method").mean()


def _figure(data: pd.DataFrame) -> Figure:
    figure, (axes,) = panels(width=6.8)
    colours = data["method"].map(METHOD_COLOURS).fillna("#444444")
    white: dict[str, Any] = {"color": "white", "edgecolor": "#444444", "hatch": "///"}
    above = data.index - 0.19
    below = data.index + 0.19
    axes.barh(above, data["ratio"], 0.36, label="here", color=colours)
    axes.barh(below, data["paper_ratio"], 0.36, label="the paper (8 A100)", **white)
    for at, row in enumerate(data.to_dict("records")):
        if pd.notna(row["ratio"]):
            text = f"{row['seconds'] * 1000:.1f} ms ({row['ratio']:.2f}×)"
            axes.text(row["ratio"] + 0.05, above[at], text, va="center", fontsize=7)
        if pd.notna(row["paper_ratio"]):
            text = f"{row['paper_seconds']:.2f} s ({row['paper_ratio']:.2f}×)"
            axes.text(row["paper_ratio"] + 0.05, below[at], text, va="center", fontsize=7)
    axes.set_yticks(data.index, data["label"])
    axes.invert_yaxis()
    axes.set_xlabel("Time per trajectory, as a ratio to the fastest of the paper's methods")
    axes.set_xlim(right=float(data[["ratio", "paper_ratio"]].max().max()) * 1.35)
    axes.grid(axis="y", visible=False)
    # Grey, because the bars have the colours of their methods and no single one represents all.
    _, paper = axes.get_legend_handles_labels()[0]
    here = Patch(color="#777777", label="here (solid)")
    figure.legend(handles=[here, paper], loc="outside upper center", ncols=2)
    return figure
