"""The analyses as figures: data in, a matplotlib figure out. Nothing is read or written here."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import ParamSpec

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator, NullLocator

from lark.analysis.landscape import Landscape
from lark.analysis.surrogate import Agreement
from lark.report.style import LARK_COLOUR, OKABE_ITO, STYLE, panels

BLUE, GREY, BLACK = OKABE_ITO[0], OKABE_ITO[7], OKABE_ITO[8]
P = ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Titles and legends take their size when they are made, so the style must last as long as the drawing."""

    @wraps(draw)
    def drawn(*arguments: P.args, **options: P.kwargs) -> Figure:
        with mpl.rc_context(STYLE):
            return draw(*arguments, **options)

    return drawn


@styled
def surrogate_figure(agreement: Agreement) -> Figure:
    """App. B.8: (a) g-hat against g*, (b) Recall@B, (c) relative RMS error of each question."""
    figure, (scatter, recall, histogram) = panels(3, width=3.8, height=3.5)
    pairs = agreement.pairs
    values = pairs[["g_star", "g_hat_rescaled"]].to_numpy()
    linear = float(np.quantile(np.abs(values), 0.5))
    scatter.axline((0, 0), slope=1, color=BLACK, linewidth=0.8, linestyle="--", label="ĝ = g*")
    scatter.scatter(pairs["g_star"], pairs["g_hat_rescaled"], s=9, alpha=0.45, color=BLUE, linewidths=0, label="one trajectory")
    scatter.set_xscale("symlog", linthresh=linear)
    scatter.set_yscale("symlog", linthresh=linear)
    scatter.set_xlabel("exact g* (change of ρ per unit of weight, symlog)")
    scatter.set_ylabel("ĝ, rescaled within each question (symlog)")
    scatter.set_title(f"(a) Pearson r = {agreement.pearson:.3f}, Spearman ρ = {agreement.spearman:.3f}")
    decades = _decades(linear, float(np.abs(values).max()))
    for axis in (scatter.xaxis, scatter.yaxis):  # the default has ticks within the linear part, one upon the other
        axis.set_ticks([*-decades[::-1], 0, *decades])
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(NullLocator())
    scatter.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)

    recalls = agreement.recalls
    recall.errorbar(
        recalls["budget"], recalls["recall"], yerr=recalls["std"], color=LARK_COLOUR, marker="o", markersize=4, capsize=2,
        label="ĝ (mean ± std over questions)",
    )  # fmt: skip
    recall.plot(recalls["budget"], recalls["random"], color=GREY, linestyle="--", label="random, B/K")
    recall.set_ylim(-0.02, 1.05)
    recall.set_xlabel("budget B (trajectories)")
    recall.set_ylabel("Recall@B (share of the exact top B)")
    recall.set_title("(b) Agreement of the selections")
    recall.legend(loc="upper left")

    errors = agreement.questions["error"]
    histogram.hist(errors, bins=min(20, max(5, len(errors) // 3)), color=BLUE, alpha=0.75, label="questions")
    histogram.axvline(errors.mean(), color=LARK_COLOUR, label=f"mean {errors.mean():.3f}")
    histogram.axvline(errors.median(), color=BLACK, linestyle=":", label=f"median {errors.median():.3f}")
    histogram.set_xlabel("‖ĝ − g*‖ / ‖g*‖ (rescaled ĝ, no unit)")
    histogram.set_ylabel("questions")
    histogram.yaxis.set_major_locator(MaxNLocator(integer=True))
    histogram.set_title("(c) Relative RMS error")
    histogram.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3)
    return figure


@styled
def landscape_figure(scene: Landscape) -> Figure:
    """Fig. 3a: Δρ on the plane of the path; purple above zero, orange below."""
    figure, (axes,) = panels(1, width=6.2, height=4.6)
    top = float(np.nanmax(np.abs([np.nanmax(np.abs(scene.gain)), scene.path["gain"].abs().max()])))
    linear = max(scene.prior_rate / 10, top * 1e-3)
    norm = SymLogNorm(linthresh=linear, vmin=-top, vmax=top)
    mesh = axes.pcolormesh(scene.grid_x, scene.grid_y, scene.gain, cmap="PuOr", norm=norm, shading="nearest", rasterized=True)
    axes.contour(scene.grid_x, scene.grid_y, scene.gain, levels=[0], colors=[BLACK], linewidths=0.8)
    axes.plot(scene.vertices["x"], scene.vertices["y"], "x", color=GREY, markersize=4, label="one trajectory alone")
    outline = [withStroke(linewidth=2.6, foreground="white")]  # black on dark purple cannot be seen
    axes.plot(scene.path["x"], scene.path["y"], color=BLACK, linewidth=0.9, path_effects=outline)
    axes.scatter(
        scene.path["x"], scene.path["y"], c=scene.path["gain"], cmap="PuOr", norm=norm, edgecolors=BLACK, linewidths=0.8, s=28,
        zorder=3, path_effects=outline, label=f"q̂(B), B = 1..{len(scene.path)}, in its own colour",
    )  # fmt: skip
    axes.plot(0, 0, "*", color=BLACK, markersize=10, zorder=4, label="uniform weights p")
    for budget, offset in ((1, (6, 6)), (len(scene.path), (8, -14))):
        point = scene.path.set_index("budget").loc[budget]
        axes.annotate(f"B={budget}", (point["x"], point["y"]), textcoords="offset points", xytext=offset, fontsize=8,
                      path_effects=outline)  # fmt: skip
    handles, labels = axes.get_legend_handles_labels()
    handles.append(Line2D([], [], color=BLACK, linewidth=0.8))
    axes.legend(handles, [*labels, "Δρ = 0"], loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    axes.set_xlabel("first principal component of q̂(B) − p (weight)")
    axes.set_ylabel("second principal component (weight)")
    axes.set_aspect("equal", adjustable="datalim")
    axes.grid(visible=False)
    ticks = _decades(linear, top)
    bar = figure.colorbar(mesh, ax=axes, label="Δρ(q) = ρ(q) − ρ(p) (symlog)", ticks=[*-ticks[::-1], 0, *ticks], format="{x:g}")
    bar.ax.minorticks_off()
    axes.set_title(f"Question {scene.question_id}; the plane holds {scene.explained:.0%} of the path's variance")
    return figure


def _decades(low: float, high: float) -> np.ndarray:
    """Powers of ten from `low` to `high`, with their threefolds if they are few; `low` itself, where there is none."""
    digits = (1, 3) if high / low < 1000 else (1,)
    powers = 10.0 ** np.arange(np.floor(np.log10(low)), np.floor(np.log10(high)) + 1)
    values = np.array([digit * power for power in powers for digit in digits])
    within = values[(values >= low) & (values <= high)]
    return within if len(within) else np.array([float(f"{low:.1g}")])


@styled
def theory_figure(checks: pd.DataFrame) -> Figure:
    """App. A-B: how far above its left side the right side of each inequality is, at its tightest, for each question."""
    names = list(dict.fromkeys(checks["inequality"]))
    figure, (axes,) = panels(1, width=7.0, height=0.26 * len(names) + 1.4)
    styles = {
        "untied": (BLUE, "o", -0.17, "the paper's parameters (head apart)"),
        "tied": (LARK_COLOUR, "x", 0.17, "the tied parameters"),
    }
    for kind, (colour, marker, shift, label) in styles.items():
        rows = checks[(checks["parameters"] == kind) & np.isfinite(checks["margin"]) & (checks["margin"] > 0)]
        if len(rows):
            heights = [names.index(name) + shift for name in rows["inequality"]]
            axes.plot(rows["margin"], heights, marker, color=colour, markersize=4, alpha=0.8, label=label)
    axes.axvline(1, color=BLACK, linewidth=1, label="left = right")
    axes.set_xscale("log")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("right side / left side at the tightest place (log; left of the line it is violated)")
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.12), ncols=3)
    return figure


@styled
def kappa_figure(runs: Mapping[int, pd.DataFrame]) -> Figure:
    """App. A.3: ρ_t along training, a panel for each budget; on the right the same curve reads as ρ_t/ρ_0. runs: step, rate,
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
            side.set_yticks(_decades(low / unit, high / unit))
            side.yaxis.set_major_formatter("{x:g}")
            side.yaxis.set_minor_locator(NullLocator())
        if left is axes[0]:
            left.set_ylabel("ρ_t = ‖∇L‖² / L (nats per unit², log)")
        if left is axes[-1]:
            right.set_ylabel("ρ_t / ρ_0 (no unit, log)")
        left.set_title(f"B = {budget}: κ̂ = {lowest['ratio']:.3g} at step {int(lowest['step'])}")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
