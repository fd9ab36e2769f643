"""Figure 3a: Δρ over the simplex of one question, and the path of q̂(B) through it."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from experiments.harness.exact_gradients import questions_of, sizes
from experiments.harness.report import Report, Table
from experiments.harness.sweep import Sweep
from lark.analysis.landscape import Landscape, landscape, path_gains
from lark.analysis.questions import Question
from lark.output.style import BLACK, GREY, panels, plain_label, powers_of_ten, styled
from lark.output.tables import Cell, markdown

TITLE = "Figure 3a. The landscape of Δρ and the path of LARK's selections"

PAPER = "The paper finds Δρ ≥ 0 for every B = 1..32 on its representative question of Qwen-2.5-7B."

PLANE = 3
"""Candidates that span a plane; the weights of two form a line."""


def render(sweep: Sweep) -> Report:
    questions = questions_of(sweep)
    if questions is None:
        caption = (
            "Δρ(q) = ρ(q) − ρ(p) over the weights q of one question's trajectories, and LARK's selections"
            " q̂(B) in it."
        )
        return Report(TITLE, f"{caption} {PAPER}", pd.DataFrame(), measured=False)
    gains = pd.concat([path_gains(question) for question in questions], ignore_index=True)
    scene = landscape(representative(questions, gains))
    facts = scene.facts()
    by_budget = gains.assign(positive=gains["gain"] >= 0).groupby("budget")["positive"].mean()
    always = gains.groupby("question_id")["gain"].min().ge(0).mean()
    caption = (
        f"Δρ(q) = ρ(q) − ρ(p) from exact gradients of question {markdown(scene.question_id)}, on the plane of"
        " the first two principal components of q̂(B) − p; each point shows the weights closest to uniform"
        f" that project there. Purple is above zero, orange below. {facts['budgets_with_gain']:.0f} of the"
        f" {facts['budgets']:.0f} selections q̂(B) raise ρ (lowest {facts['lowest_gain_on_path']:+.3g},"
        f" highest {facts['largest_gain_on_path']:+.3g}; ρ(p) = {facts['prior_rate']:.3g}; the best single"
        f" trajectory {facts['largest_possible_gain']:+.3g}); {facts['random_share_with_gain']:.0%} of random"
        f" weights do. {PAPER}"
    )
    notes = [
        f"The question is the median one of {sizes(questions)} by its mean Δρ/ρ(p) over budgets, not chosen"
        f" by eye. On {always:.0%} of the questions every q̂(B) raises ρ; the table shows the share of"
        " questions where it does, by budget."
    ]
    shares = by_budget[by_budget.index.isin((1, 2, 3, 5, 10, 20, 32))].map("{:.0%}".format)
    row = [Cell("questions with Δρ(q̂(B)) ≥ 0"), *map(Cell, shares)]
    table = Table(["Budget B", *map(str, shares.index)], [row])
    data = pd.concat([scene.table(), gains.assign(kind="path of each question")], ignore_index=True)
    return Report(TITLE, caption, data, [table], landscape_figure(scene), notes)


def representative(questions: list[Question], gains: pd.DataFrame) -> Question:
    """The median question by its mean relative gain along the path, among those that span a plane, if there
    are any.
    """
    means = gains.groupby("question_id")["relative_gain"].mean()
    measured = [question for question in questions if question.question_id in means]
    wide = [question for question in measured if question.K >= PLANE]
    ranked = sorted(
        wide or measured, key=lambda question: (means[question.question_id], question.question_id)
    )
    return ranked[(len(ranked) - 1) // 2]


@styled
def landscape_figure(scene: Landscape) -> Figure:
    """Fig. 3a: Δρ on the plane of the path; purple above zero, orange below."""
    figure, (axes,) = panels(1, width=6.2, height=4.6)
    top = max(float(np.nanmax(np.abs(scene.gain))), float(scene.path["gain"].abs().max()))
    linear = max(scene.prior_rate / 10, top * 1e-3)
    norm = SymLogNorm(linthresh=linear, vmin=-top, vmax=top)
    mesh = axes.pcolormesh(
        scene.grid_x, scene.grid_y, scene.gain, cmap="PuOr", norm=norm, shading="nearest", rasterized=True
    )
    axes.contour(scene.grid_x, scene.grid_y, scene.gain, levels=[0], colors=[BLACK], linewidths=0.8)
    alone = scene.vertices
    axes.plot(alone["x"], alone["y"], "x", color=GREY, markersize=4, label="one trajectory alone")
    outline = [withStroke(linewidth=2.6, foreground="white")]  # black is invisible on dark purple
    path = scene.path
    axes.plot(path["x"], path["y"], color=BLACK, linewidth=0.9, path_effects=outline)
    label = f"q̂(B), B = 1..{len(path)}, in its own colour"
    points: dict[str, Any] = {"edgecolors": BLACK, "linewidths": 0.8, "s": 28, "path_effects": outline}
    axes.scatter(
        path["x"], path["y"], c=path["gain"], cmap="PuOr", norm=norm, zorder=3, label=label, **points
    )
    axes.plot(0, 0, "*", color=BLACK, markersize=10, zorder=4, label="uniform weights p")
    text: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8, "path_effects": outline}
    for budget, offset in ((1, (6, 6)), (len(path), (8, -14))):
        point = path.set_index("budget").loc[budget]
        axes.annotate(f"B={budget}", (point["x"], point["y"]), offset, **text)
    handles, labels = axes.get_legend_handles_labels()
    handles.append(Line2D([], [], color=BLACK, linewidth=0.8))
    axes.legend(handles, [*labels, "Δρ = 0"], loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    axes.set_xlabel("first principal component of q̂(B) − p (weight)")
    axes.set_ylabel("second principal component (weight)")
    axes.set_aspect("equal", adjustable="datalim")
    axes.grid(visible=False)
    decades = powers_of_ten(linear, top)
    ticks = [*-decades[::-1], 0, *decades]
    label = "Δρ(q) = ρ(q) − ρ(p) (symlog)"
    bar = figure.colorbar(mesh, ax=axes, label=label, ticks=ticks, format="{x:g}")
    bar.ax.minorticks_off()
    variance = f"the plane holds {scene.explained:.0%} of the path's variance"
    axes.set_title(f"Question {plain_label(scene.question_id)}; {variance}")
    return figure
