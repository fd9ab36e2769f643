"""App. A.3: the decay rate ρ_t of the training set along training, for each budget, and its minimum relative to the start."""

import pandas as pd

from experiments.harness.report import Report, Table
from experiments.harness.sweep import Sweep, published
from lark.analysis.figures import kappa_figure
from lark.analysis.operations import KAPPA_TABLE
from lark.report.tables import MISSING, Cell

TITLE = "Appendix A.3. The decay rate along training, and κ"


def render(sweep: Sweep) -> Report:
    runs: dict[int, pd.DataFrame] = {}
    printed = published("figures").query("experiment == 'kappa'").set_index("quantity")["value"]
    rows = []
    for trial in sweep.trials:
        budget, folder = trial.config.budget.size, sweep.folder(trial, KAPPA_TABLE)
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
        "ρ_t = ‖∇L_total(θ_t)‖² / L_total(θ_t) of the whole weighted training set at snapshots of the training run (left axis), "
        "which is ρ_t/ρ_0 on the right axis; κ̂ is the minimum of that. The paper finds κ̂ = 0.279 at B = 1 and 0.012 to 0.015 for "
        "B ≥ 3 on Qwen-2.5-7B, all above zero, with a spike in the first tenth of training for B ≥ 3."
    )
    difference = ["difference"] if sweep.like_the_paper else []
    table = Table(["Budget B", "κ̂ = min ρ_t/ρ_0", "at step", "max ρ_t/ρ_0", "paper's κ̂", *difference], rows)
    notes = [
        "Snapshots are evenly spaced: a minimum between two of them is missed, so κ̂ is from above. The paper records every step."
    ]
    data = pd.concat(runs.values(), ignore_index=True) if runs else pd.DataFrame()
    return Report(TITLE, caption, data, [table], kappa_figure(runs) if runs else None, notes, found=bool(runs))
