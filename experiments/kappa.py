"""App. A.3: the decay rate ρ_t of the training set during training, for each budget, and its minimum relative to the start."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from experiments.harness.report import Report, Table
from experiments.harness.sweep import Sweep, published
from lark.analysis.kinds import KAPPA_TABLE
from lark.report.style import BLACK, BLUE, GREY, panels, powers_of_ten, styled
from lark.report.tables import MISSING, Cell

TITLE = "Appendix A.3. The decay rate along training, and κ"


def render(sweep: Sweep) -> Report:
    runs: dict[int, pd.DataFrame] = {}
    printed = published("figures").query("experiment == 'kappa'").set_index("quantity")["value"]
    rows = []
    for trial in sweep.trials:
        budget, folder = trial.config.budget.per_question, sweep.folder(trial, KAPPA_TABLE)
        low, high = (printed["b1"] if budget == 1 else printed[f"larger_{end}"] for end in ("low", "high"))
        said = Cell(f"{low:g}" if low == high else f"{low:g} to {high:g}")
        if folder is None:
            rows.append([Cell(str(budget)), MISSING, MISSING, MISSING, said, *([MISSING] if sweep.like_the_paper else [])])
            continue
        run = pd.read_parquet(folder / "kappa.parquet").sort_values("step").reset_index(drop=True)
        runs[budget] = run.assign(ratio=run["rate"] / run["rate"].iloc[0], budget=budget)
        lowest = runs[budget].iloc[int(runs[budget]["ratio"].to_numpy().argmin())]
        peak = float(runs[budget]["ratio"].max())
        off = float(lowest["ratio"]) - min(max(float(lowest["ratio"]), low), high)  # from the paper's range
        runs[budget] = runs[budget].assign(paper_low=low, paper_high=high, difference=off if sweep.like_the_paper else None)
        rows.append(
            [Cell(str(budget)), Cell(f"{lowest['ratio']:.3g}"), Cell(str(int(lowest["step"]))), Cell(f"{peak:.3g}"), said,
             *([Cell(f"{off:+.3g}".replace("-", "−"))] if sweep.like_the_paper else [])]
        )  # fmt: skip
    caption = (
        "ρ_t = ‖∇L_total(θ_t)‖² / L_total(θ_t) of the whole weighted training set at snapshots of the training run (left axis) "
        "and ρ_t/ρ_0 (right axis), whose minimum is κ̂. The paper finds κ̂ = 0.279 at B = 1 and 0.012 to 0.015 for "
        "B ≥ 3 on Qwen-2.5-7B, all above zero, with a spike in the first tenth of training for B ≥ 3."
    )
    difference = ["difference"] if sweep.like_the_paper else []
    table = Table(["Budget B", "κ̂ = min ρ_t/ρ_0", "at step", "max ρ_t/ρ_0", "paper's κ̂", *difference], rows)
    notes = [
        "Snapshots are evenly spaced: a minimum between two of them is missed, so κ̂ is an upper estimate. The paper records "
        "every step."
    ]
    data = pd.concat(runs.values(), ignore_index=True) if runs else pd.DataFrame()
    return Report(TITLE, caption, data, [table], kappa_figure(runs) if runs else None, notes, found=bool(runs))


@styled
def kappa_figure(runs: Mapping[int, pd.DataFrame]) -> Figure:
    """App. A.3: ρ_t during training, one panel per budget; the right axis shows the same curve as ρ_t/ρ_0. runs: step, rate,
    ratio."""
    figure, axes = panels(len(runs), width=3.1, height=3.0)
    for left, (budget, run) in zip(axes, sorted(runs.items()), strict=True):
        lowest = run.iloc[int(run["ratio"].to_numpy().argmin())]
        start = float(run["rate"].iloc[0])
        left.plot(run["step"], run["rate"], color=BLUE, marker="o", markersize=3, label="ρ_t")
        left.plot(lowest["step"], lowest["rate"], "v", color=BLACK, markersize=6, label="its minimum, κ̂ ρ_0")
        left.axhline(start, color=GREY, linestyle="--", linewidth=0.9, label="ρ_0")
        left.set_xlabel("training step t")
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        low, high = 0.6 * run["rate"].min(), 1.6 * run["rate"].max()
        left.set_yscale("log")
        left.set_ylim(low, high)
        right = left.twinx()
        right.set_yscale("log")
        right.set_ylim(low / start, high / start)
        right.grid(visible=False)
        for side, unit in ((left, 1.0), (right, start)):
            side.set_yticks(powers_of_ten(low / unit, high / unit))
            side.yaxis.set_major_formatter("{x:g}")
            side.yaxis.set_minor_locator(NullLocator())
        if left is axes[0]:
            left.set_ylabel("ρ_t = ‖∇L‖² / L (nats per unit², log)")
        if left is axes[-1]:
            right.set_ylabel("ρ_t / ρ_0 (no unit, log)")
        left.set_title(f"B = {budget}: κ̂ = {lowest['ratio']:.3g} at step {int(lowest['step'])}")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
