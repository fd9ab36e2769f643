"""App. D.1: seconds per trajectory of each scoring method, and the ratio to the fastest."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from experiments.harness.report import Report, Table
from experiments.harness.sweep import Sweep, published
from lark.analysis.kinds import TIMINGS
from lark.output.style import METHOD_COLOURS, panels
from lark.output.tables import MISSING, Cell

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
    printed = published("figures").query("experiment == 'cost' and unit == 's/sample'")
    paper = printed.set_index("quantity")["value"]
    ours = pd.Series(dtype=float) if folder is None else seconds(pd.read_parquet(folder / "cost.parquet"))
    data = pd.DataFrame({"method": list(LABELS), "label": list(LABELS.values())})
    data = data.assign(seconds=data["method"].map(ours), paper_seconds=data["method"].map(paper))
    usual = data.loc[data["method"].isin(paper.index), "seconds"].min()
    data = data.assign(ratio=data["seconds"] / usual, paper_ratio=data["paper_seconds"] / paper.min())
    data = data.assign(difference=data["ratio"] - data["paper_ratio"] if sweep.like_the_paper else None)
    header = ["Method", "ms per trajectory", "ratio", "the paper's s", "the paper's ratio"]
    if sweep.like_the_paper:
        header.append("difference of ratios")
    artifact = trial.artifact(TIMINGS)
    counts: Mapping[str, Any] = {}
    where = ""
    if folder is not None and artifact is not None:
        counts = sweep.store.manifest(artifact).counts
        where = (
            f"Measured on {counts['device']}, {counts['trajectories']} trajectories of"
            f" {counts['mean_tokens']:,.0f} response tokens on average, all methods in one process, in rotating"
            " order; the median over rounds of each trajectory, averaged. "
        )
    judge = "the judge is that of method.judge"
    if folder is not None and "llm_judge" not in ours.index:
        reason = counts.get("judge_left_out", "only engine=hf times it")
        judge = (
            f"the judge is missing ({reason}), and its time for a whole pool is in its artifact's manifest"
        )
    rows = []
    for row in data.to_dict("records"):
        cells = [
            Cell(row["label"]),
            _number(row["seconds"] * 1000, "{:.1f}"),
            _number(row["ratio"], "{:.2f}×"),
            _number(row["paper_seconds"], "{:.2f}"),
            _number(row["paper_ratio"], "{:.2f}×"),
            _number(row["difference"], "{:+.2f}"),
        ]
        rows.append(cells[: len(header)])
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
        tables=[Table(header, rows)],
        figure=_figure(data),
        found=folder is not None,
    )


def seconds(timings: pd.DataFrame) -> pd.Series:
    """Seconds of each method: the median over rounds of each trajectory, then the mean over trajectories."""
    return timings.groupby(["method", "trajectory"])["seconds"].median().groupby("method").mean()


def _number(value: float, form: str) -> Cell:
    return MISSING if pd.isna(value) else Cell(form.format(value))


def _figure(data: pd.DataFrame) -> Figure:
    figure, (axes,) = panels(width=6.8)
    place = range(len(data))
    axes.barh(
        [at - 0.19 for at in place], data["ratio"], 0.36, label="here",
        color=[METHOD_COLOURS.get(method, "#444444") for method in data["method"]],
    )  # fmt: skip
    axes.barh(
        [at + 0.19 for at in place],
        data["paper_ratio"],
        0.36,
        label="the paper (8 A100)",
        color="white",
        edgecolor="#444444",
        hatch="///",
    )
    for at, row in zip(place, data.to_dict("records"), strict=True):
        for shift, ratio, text in (
            (-0.19, row["ratio"], f"{row['seconds'] * 1000:.1f} ms ({row['ratio']:.2f}×)"),
            (0.19, row["paper_ratio"], f"{row['paper_seconds']:.2f} s ({row['paper_ratio']:.2f}×)"),
        ):
            if pd.notna(ratio):
                axes.text(ratio + 0.05, at + shift, text, va="center", fontsize=7)
    axes.set_yticks(list(place), data["label"])
    axes.invert_yaxis()
    axes.set_xlabel("Time per trajectory, as a ratio to the fastest of the paper's methods")
    axes.set_xlim(right=float(data[["ratio", "paper_ratio"]].max().max()) * 1.35)
    axes.grid(axis="y", visible=False)
    # Grey, because the bars have the colours of their methods and no single one represents all.
    _, paper = axes.get_legend_handles_labels()[0]
    here = Patch(color="#777777", label="here (solid)")
    figure.legend(handles=[here, paper], loc="outside upper center", ncols=2)
    return figure
