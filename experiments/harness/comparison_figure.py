"""The figure of a comparison: its runs, the differences to the leader, and loss as a cheaper criterion."""

from math import isnan
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.harness import verdict
from experiments.harness.comparison_tables import base_accuracy, ranked
from experiments.harness.game import Game
from lark.output.style import (
    BLACK,
    BLUE,
    GREY,
    LARK_COLOUR,
    METHOD_COLOURS,
    label_points,
    panels,
    plain_label,
    styled,
)
from lark.selection.paired import Comparison


@styled
def comparison_figure(game: Game, comparison: Comparison, agreement: verdict.LossAgreement | None) -> Figure:
    """Left: runs and means. Middle: differences to the leader. Right: accuracy and loss."""
    units = verdict.Units.of(game)
    figure, axes = panels(3 if agreement else 2, width=4.2, height=0.7 + 0.32 * max(6, len(comparison.names)))
    order = ranked(game, comparison)
    _runs(axes[0], game, comparison, order, units)
    _gaps(axes[1], game, comparison, order, units)
    if agreement:
        _scatter(axes[2], game, comparison, agreement, units)
    return figure


def _colour(game: Game, name: str) -> str:
    method = game.entrant(name).config.method
    return METHOD_COLOURS.get(method.name, BLUE)


def _runs(axes: Axes, game: Game, comparison: Comparison, order: list[str], units: verdict.Units) -> None:
    for place, name in enumerate(order):
        values = [float(score.mean()) * units.factor for score in game.scores[name]]
        mean = comparison.means[comparison.names.index(name)] * units.factor
        axes.plot(values, [place] * len(values), "o", color=_colour(game, name), alpha=0.45, markersize=4)
        axes.plot([mean], [place], "|", color=_colour(game, name), markersize=16, markeredgewidth=2.5)
    base = base_accuracy(game)
    if base is not None and not units.is_loss:
        axes.axvline(base * units.factor, color=GREY, linestyle="--", linewidth=0.9)
        axes.annotate("base model", (base * units.factor, -0.75), fontsize=7, color=GREY, ha="center")
    axes.set_yticks(range(len(order)), [plain_label(name) for name in order])
    axes.set_ylim(len(order) - 0.4, -1.0)
    unit = f" ({units.sign})" if units.sign else ""
    axes.set_xlabel(verdict.criterion_words(game) + unit)
    axes.set_title("training runs and their means")


def _gaps(axes: Axes, game: Game, comparison: Comparison, order: list[str], units: verdict.Units) -> None:
    leader = comparison.names.index(order[0])
    significant = verdict.significant_pairs(game, comparison)
    for place, name in enumerate(order[1:], 1):
        k = comparison.names.index(name)
        middle = comparison.difference[k, leader] * units.factor
        ends = (comparison.low[k, leader] * units.factor, comparison.high[k, leader] * units.factor)
        low, high = sorted(ends)  # losses are shown with the opposite sign
        word = "not significant"
        style: dict[str, Any] = {"marker": "s", "color": GREY, "markerfacecolor": "white"}
        if significant[k, leader]:
            word = "significant"
            style = {"marker": "o", "color": LARK_COLOUR}
        reach = [[middle - low], [high - middle]]
        axes.errorbar([middle], [place], xerr=reach, capsize=3, linestyle="none", **style)
        axes.annotate(word, (high, place), (4, -3), textcoords="offset points", fontsize=7)
    axes.axvline(0, color=BLACK, linewidth=0.8)
    axes.set_yticks(range(len(order)), [plain_label(name) for name in order])
    axes.set_ylim(len(order) - 0.4, -1.0)
    axes.margins(x=0.25)
    if not comparison.difference.any() and not comparison.half.any():
        axes.set_xlim(-1, 1)
    axes.set_xlabel(f"minus {plain_label(order[0])} ({units.unit}), 95% intervals")
    axes.set_title("differences to the leader")


def _scatter(
    axes: Axes, game: Game, comparison: Comparison, agreement: verdict.LossAgreement, units: verdict.Units
) -> None:
    points = []
    for name, loss in agreement.losses.items():
        mean = comparison.means[comparison.names.index(name)] * units.factor
        points.append((loss, mean))
        axes.plot(loss, mean, "o", color=_colour(game, name))
    axes.margins(x=0.2, y=0.15)
    axes.set_xlabel("loss of held-out trajectories (nats per token)")
    unit = f" ({units.sign})" if units.sign else ""
    axes.set_ylabel(verdict.criterion_words(game) + unit)
    title = "the cheaper criterion"
    if not isnan(agreement.tau):
        title += f", τ = {agreement.tau:.2f}".replace("-", "−")
    axes.set_title(title)
    label_points(axes, points, list(agreement.losses), fontsize=7)
