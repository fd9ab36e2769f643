"""The figure of a comparison: its runs, the differences to the leader, and the loss as a cheaper criterion."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.harness import verdict
from experiments.harness.game import Game
from experiments.harness.paired import Comparison
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


@styled
def comparison_figure(
    game: Game, found: Comparison, agreed: verdict.Agreement | None, base: float | None
) -> Figure:
    """Left: runs and means. Middle: differences to the leader. Right: accuracy and loss."""
    scale = verdict.Scale.of(game.contest.config.compare.criterion)
    figure, axes = panels(3 if agreed else 2, width=4.2, height=0.7 + 0.32 * max(6, len(found.names)))
    leader = game.rounds[-1].leader if game.rounds else found.names[found.order[0]]
    order = [leader, *(found.names[k] for k in found.order if found.names[k] != leader)]
    _runs(axes[0], game, found, order, scale, base)
    _gaps(axes[1], game, found, order, scale)
    if agreed:
        _scatter(axes[2], game, found, agreed, scale)
    return figure


def _colour(game: Game, name: str) -> str:
    method = game.entrant(name).config.method
    return METHOD_COLOURS.get(method.name, BLUE)


def _runs(
    axes: Axes, game: Game, found: Comparison, order: list[str], scale: verdict.Scale, base: float | None
) -> None:
    for place, name in enumerate(order):
        values = [float(score.mean()) * scale.factor for score in game.scores[name]]
        mean = found.means[found.names.index(name)] * scale.factor
        axes.plot(values, [place] * len(values), "o", color=_colour(game, name), alpha=0.45, markersize=4)
        axes.plot([mean], [place], "|", color=_colour(game, name), markersize=16, markeredgewidth=2.5)
    if base is not None and scale.factor > 0:
        axes.axvline(base * scale.factor, color=GREY, linestyle="--", linewidth=0.9)
        axes.annotate("base model", (base * scale.factor, -0.75), fontsize=7, color=GREY, ha="center")
    axes.set_yticks(range(len(order)), [plain_label(name) for name in order])
    axes.set_ylim(len(order) - 0.4, -1.0)
    axes.set_xlabel(verdict.criterion_words(game) + (" (%)" if scale.factor > 0 else ""))
    axes.set_title("training runs and their means")


def _gaps(axes: Axes, game: Game, found: Comparison, order: list[str], scale: verdict.Scale) -> None:
    lead, real = found.names.index(order[0]), verdict.real_pairs(game, found)
    for place, name in enumerate(order[1:], 1):
        k = found.names.index(name)
        middle, *ends = (table[k, lead] * scale.factor for table in (found.difference, found.low, found.high))
        low, high = sorted(ends)
        sure = real[lead][k] or real[k][lead]
        axes.errorbar(
            [middle], [place], xerr=[[middle - low], [high - middle]], fmt="o" if sure else "s", capsize=3,
            color=LARK_COLOUR if sure else GREY, markerfacecolor=LARK_COLOUR if sure else "white",
        )  # fmt: skip
        axes.annotate(
            "real" if sure else "not clear", (high, place), (4, -3), textcoords="offset points", fontsize=7
        )
    axes.axvline(0, color=BLACK, linewidth=0.8)
    axes.set_yticks(range(len(order)), [plain_label(name) for name in order])
    axes.set_ylim(len(order) - 0.4, -1.0)
    axes.margins(x=0.25)
    if not found.difference.any() and not found.half.any():
        axes.set_xlim(-1, 1)
    axes.set_xlabel(f"minus {plain_label(order[0])} ({scale.unit}), 95% intervals")
    axes.set_title("differences to the leader")


def _scatter(
    axes: Axes, game: Game, found: Comparison, agreed: verdict.Agreement, scale: verdict.Scale
) -> None:
    points = [
        (loss, found.means[found.names.index(name)] * scale.factor) for name, loss in agreed.losses.items()
    ]
    for name, point in zip(agreed.losses, points, strict=True):
        axes.plot(*point, "o", color=_colour(game, name))
    axes.margins(x=0.2, y=0.15)
    axes.set_xlabel("loss of held-out trajectories (nats per token)")
    axes.set_ylabel(verdict.criterion_words(game) + " (%)")
    axes.set_title(
        "the cheaper criterion"
        + ("" if agreed.tau != agreed.tau else f", τ = {agreed.tau:.2f}".replace("-", "−"))
    )
    label_points(axes, points, list(agreed.losses), fontsize=7)
