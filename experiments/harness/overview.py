"""The drawing of Figure 1: five steps from a question's candidates to the trained student, on one page.

Everything is on one canvas whose unit is a tenth of an inch, so that rows of different steps align.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch
from matplotlib.text import Text

from lark.output.style import BLACK, GREY, LARK_COLOUR, plain_label, styled

WIDTH, HEIGHT = 132.0, 53.0
TOP, BOTTOM = 38.0, 2.0
"""The rows of all steps are between these heights."""
HEADER = 42.3
INK, SOFT, PALE, EDGE = "#222222", "#6B6B6B", "#F5F5F3", "#D5D5D0"
CHOSEN: dict[str, Any] = {"edgecolor": "#8A3B00", "linewidth": 1.8}
"""Outline of a selected candidate, darker than any colour of a score."""
HEAT = LinearSegmentedColormap.from_list("lark", ["#FBFAF7", "#F6D9C4", LARK_COLOUR])
MOST_TEACHERS, MOST_ROLLOUTS, MOST_BARS, MOST_NAMED = 12, 3, 40, 5
"""More do not fit: the best are shown, and the rest is counted."""
POOL, SCORES, RANKING, WEIGHTS, RESULT = 1.0, 40.0, 66.0, 92.0, 111.0
"""The left end of each step."""
CARD, GAP = 6.9, 0.7
"""Width of a candidate's card, and the space between two."""
NAMES = 13.8
"""Space for the names of teachers."""
LONGEST_NAME = 20
LONGEST_QUESTION = 110


@dataclass(frozen=True)
class Overview:
    """What Figure 1 shows."""

    student: str
    question_id: str
    question: str
    candidates: pd.DataFrame
    """candidate_id, teacher, rollout, n_tokens, g_hat, and for the selected ones rank and weight."""
    threshold: float
    """ĝ of rank B + 1."""
    questions: int
    """Questions that the student is trained on."""
    losses: Sequence[float]
    """Loss of each training step; empty if the student is not trained yet."""
    accuracies: Sequence[tuple[str, float, float]]
    """Benchmark, accuracy before and after training, in percent."""

    @property
    def selected(self) -> pd.DataFrame:
        return self.candidates.dropna(subset=["rank"]).sort_values("rank")


@styled
def overview_figure(overview: Overview) -> Figure:
    """Figure 1: candidates, scores, ranking, weights, training and evaluation of one question."""
    figure = Figure(figsize=(WIDTH / 10, HEIGHT / 10))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(0, HEIGHT))
    axes.axis("off")
    _question(axes, overview)
    _headers(axes, overview)
    _grids(axes, overview)
    _ranking(axes, overview)
    _weights(axes, overview)
    _result(figure, axes, overview)
    return figure


def _box(axes: Axes, x: float, y: float, width: float, height: float, **style: Any) -> None:
    """A rounded box whose lower left corner is (x, y)."""
    rounding = min(0.6, height / 4)
    options: dict[str, Any] = {"facecolor": PALE, "edgecolor": EDGE, "linewidth": 0.8} | style
    axes.add_patch(FancyBboxPatch((x, y), width, height, f"round,pad=0,rounding_size={rounding}", **options))


def _text(axes: Axes, x: float, y: float, text: str, **style: Any) -> Text:
    """A text whose middle is at the height y."""
    return axes.text(x, y, text, **({"va": "center", "color": INK} | style))


def _question(axes: Axes, overview: Overview) -> None:
    _box(axes, POOL, 47.4, WIDTH - 2 * POOL, 4.4)
    name = plain_label(overview.question_id)
    text = plain_label(shorten(overview.question, LONGEST_QUESTION, placeholder=" …"), LONGEST_QUESTION)
    student = f"student: {plain_label(shorten_name(overview.student))}"
    title = _text(axes, POOL + 2, 49.6, f"Question {name}", weight="bold", size=10.5)
    axes.annotate(
        text, (1, 0.5), (12, 0), title, textcoords="offset points", size=10.5, va="center", color=INK
    )
    _text(axes, WIDTH - POOL - 2, 49.6, student, size=10.5, ha="right", color=SOFT)


def _headers(axes: Axes, overview: Overview) -> None:
    table = overview.candidates
    teachers = table["teacher"].nunique()
    budget = len(overview.selected)
    steps = (
        (POOL, "Candidate pool", f"{len(table)} trajectories of {teachers} teachers"),
        (SCORES, "Score", r"$\hat g_k$: one forward pass of the student"),
        (RANKING, "Rank, keep the top B", rf"B = {budget}; dashed: $\hat g_{{B+1}}$"),
        (WEIGHTS, "Weight", r"$q_k \propto \hat g_k - \hat g_{B+1}$"),
        (RESULT, "Train and evaluate", f"on all {overview.questions:,} questions"),
    )
    for number, (x, title, subtitle) in enumerate(steps, start=1):
        axes.add_patch(Circle((x + 1.5, HEADER + 0.4), 1.5, facecolor=LARK_COLOUR, edgecolor="none"))
        _text(axes, x + 1.5, HEADER + 0.35, str(number), color="white", weight="bold", size=10, ha="center")
        _text(axes, x + 3.8, HEADER + 1.2, title, weight="bold", size=10.5)
        _text(axes, x + 3.8, HEADER - 1.0, subtitle, size=8.5, color=SOFT)


def _arrow(axes: Axes, start: float, stop: float, y: float) -> None:
    style: dict[str, Any] = {
        "arrowstyle": "-|>",
        "mutation_scale": 13,
        "linewidth": 1.6,
        "color": LARK_COLOUR,
    }
    axes.add_patch(FancyArrowPatch((start, y), (stop, y), shrinkA=0, shrinkB=0, **style))


def _grids(axes: Axes, overview: Overview) -> None:
    """Steps 1 and 2: one row per teacher, one card per rollout, first with its length and then with its
    score.
    """
    shown = shown_candidates(overview.candidates)
    teachers = list(dict.fromkeys(shown["teacher"]))
    pitch = (TOP - BOTTOM) / max(len(teachers), 6)
    height = 0.76 * pitch
    colour = Normalize(float(overview.candidates["g_hat"].min()), float(overview.candidates["g_hat"].max()))
    for row, teacher in enumerate(teachers):
        y = TOP - (row + 1) * pitch + (pitch - height) / 2
        middle = y + height / 2
        name = shorten_name(teacher)
        _text(axes, POOL + NAMES - 0.8, middle, plain_label(name), size=8, ha="right")
        for column, candidate in enumerate(shown[shown["teacher"] == teacher].to_dict("records")):
            chosen = not np.isnan(candidate["rank"])
            outline = CHOSEN if chosen else {}
            offset = column * (CARD + GAP)
            left = POOL + NAMES + offset
            right = SCORES + offset
            share = float(colour(candidate["g_hat"]))
            _box(axes, left, y, CARD, height, **outline)
            _box(axes, right, y, CARD, height, **({"facecolor": HEAT(share)} | outline))
            _text(
                axes,
                left + CARD / 2,
                middle,
                f"{candidate['n_tokens']:,} tok",
                size=7,
                ha="center",
                color=SOFT,
            )
            ink = "white" if share > 0.75 else INK
            _text(
                axes, right + CARD / 2, middle, f"{candidate['g_hat']:.5f}", size=7.5, ha="center", color=ink
            )
    hidden = overview.candidates["teacher"].nunique() - len(teachers)
    if hidden:
        _text(axes, POOL + NAMES, BOTTOM - 1.2, f"and {hidden} more teachers", size=8, color=SOFT)
    _arrow(axes, POOL + NAMES + 3 * (CARD + GAP) + 0.3, SCORES - 0.6, (TOP + BOTTOM) / 2)
    _arrow(axes, SCORES + 3 * (CARD + GAP) - 0.4, RANKING - 0.3, (TOP + BOTTOM) / 2)


def shown_candidates(table: pd.DataFrame) -> pd.DataFrame:
    """At most MOST_TEACHERS teachers with MOST_ROLLOUTS trajectories each, those with the highest scores,
    by name and rollout.
    """
    best = table.sort_values("g_hat", ascending=False)
    teachers = list(dict.fromkeys(best["teacher"]))[:MOST_TEACHERS]
    kept = best[best["teacher"].isin(teachers)].groupby("teacher").head(MOST_ROLLOUTS)
    return kept.sort_values(["teacher", "rollout", "candidate_id"], ignore_index=True)


def shorten_name(name: str) -> str:
    """A name that fits, with its end: candidates of one teacher differ only there."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 4]}…{name[-3:]}"


def _ranking(axes: Axes, overview: Overview) -> None:
    """Step 3: scores in order. The selected ones are named; so is the first that is not."""
    ranked = overview.candidates.sort_values(
        ["g_hat", "candidate_id"], ascending=[False, True], ignore_index=True
    )
    budget = len(overview.selected)
    bars = ranked.head(MOST_BARS)
    named = min(budget, MOST_NAMED)
    high = 2.4
    low = min(high, (TOP - BOTTOM - named * high) / max(len(bars) - named, 1))
    left, right = RANKING + 3.0, WEIGHTS - 4.0
    unit = (right - left) / float(max(ranked["g_hat"].max(), 1e-12))
    y = TOP
    for place, candidate in enumerate(bars.to_dict("records")):
        pitch = high if place < named else low
        chosen = place < budget
        width = max(0.0, float(candidate["g_hat"])) * unit
        axes.barh(
            y - pitch / 2, width, height=0.8 * pitch, left=left, color=LARK_COLOUR if chosen else "#CFCFCA"
        )
        if place <= named:
            index = f"$a_{{{place + 1}}}$"
            _text(axes, left - 0.5, y - pitch / 2, index, size=9, ha="right", color=INK if chosen else SOFT)
        if place < named:
            name = plain_label(shorten_name(str(candidate["candidate_id"])))
            _text(axes, left + 0.6, y - pitch / 2, name, size=8, color="white", weight="bold")
        y -= pitch
    at = left + max(0.0, overview.threshold) * unit
    axes.plot([at, at], [y, TOP], color=INK, linestyle="--", linewidth=0.9)
    if len(ranked) > len(bars):
        _text(axes, left, BOTTOM - 1.2, f"and {len(ranked) - len(bars)} more", size=8, color=SOFT)
    _arrow(axes, right + 0.6, WEIGHTS - 0.4, TOP - named * high / 2)


def _weights(axes: Axes, overview: Overview) -> None:
    """Step 4: the selected trajectories with their weights."""
    chosen = overview.selected.head(MOST_NAMED)
    pitch = min(8.2, (TOP - BOTTOM) / (len(chosen) + 1))
    width = RESULT - WEIGHTS - 4.5
    for place, candidate in enumerate(chosen.to_dict("records")):
        y = TOP - (place + 1) * pitch + 0.9
        weight = float(candidate["weight"])
        _box(axes, WEIGHTS, y, width, pitch - 0.9, facecolor="white", edgecolor=LARK_COLOUR, linewidth=1.2)
        name = f"$a_{{{place + 1}}}$  {plain_label(shorten_name(str(candidate['candidate_id'])))}"
        _text(axes, WEIGHTS + 1, y + pitch - 2.6, name, size=7.5)
        track = width - 2
        axes.barh(y + 1.5, track, height=1.0, left=WEIGHTS + 1, color=PALE)
        axes.barh(y + 1.5, track * weight, height=1.0, left=WEIGHTS + 1, color=LARK_COLOUR)
        _text(axes, WEIGHTS + 1, y + 3.3, f"$q_{{{place + 1}}}$ = {weight:.3f}", size=9, weight="bold")
    below = TOP - len(chosen) * pitch - 2.0
    more = len(overview.selected) - len(chosen)
    if more:
        _text(axes, WEIGHTS, below + 1.2, f"and {more} more", size=8, color=SOFT)
    loss = r"$L(\theta) = \sum_k \, q_k \, \ell(\theta, a_k)$"
    _text(axes, WEIGHTS + width / 2, below - 1.6, loss, size=10, ha="center")
    _arrow(axes, WEIGHTS + width + 0.6, RESULT - 0.4, TOP - pitch / 2)


def _result(figure: Figure, axes: Axes, overview: Overview) -> None:
    """Step 5: the training loss, and the accuracy before and after training."""
    _curve(figure, axes, overview.losses)
    top = 19.5
    if not overview.accuracies:
        _text(axes, RESULT, top, "not evaluated yet", size=8.5, color=SOFT, va="baseline")
        return
    _text(axes, RESULT, top + 1.6, "accuracy (%)", size=8.5)
    _text(axes, WIDTH - POOL, top + 1.6, "trained", size=8.5, color=LARK_COLOUR, ha="right", weight="bold")
    _text(axes, WIDTH - POOL - 6, top + 1.6, "base", size=8.5, color=SOFT, ha="right", weight="bold")
    pitch = min(4.0, (top - BOTTOM) / len(overview.accuracies))
    width = WIDTH - POOL - RESULT
    for place, (name, before, after) in enumerate(overview.accuracies):
        y = top - (place + 1) * pitch + 0.4
        axes.barh(y, width, height=0.7, left=RESULT, color=PALE)
        axes.barh(y + 0.18, width * before / 100, height=0.36, left=RESULT, color=GREY)
        axes.barh(y - 0.18, width * after / 100, height=0.36, left=RESULT, color=LARK_COLOUR)
        _text(axes, RESULT, y + 1.6, plain_label(shorten_name(name)), size=8)
        _text(
            axes, WIDTH - POOL, y + 1.6, f"{after:.1f}", size=8, ha="right", color=LARK_COLOUR, weight="bold"
        )
        _text(axes, WIDTH - POOL - 6, y + 1.6, f"{before:.1f}", size=8, ha="right", color=SOFT)


def _curve(figure: Figure, axes: Axes, losses: Sequence[float]) -> None:
    if not losses:
        _text(axes, RESULT, 30, "not trained yet", size=8.5, color=SOFT, va="baseline")
        return
    inset = figure.add_axes(
        ((RESULT + 3.2) / WIDTH, 26.0 / HEIGHT, (WIDTH - POOL - RESULT - 3.2) / WIDTH, 10.5 / HEIGHT)
    )
    window = max(1, len(losses) // 20)
    smooth = pd.Series(losses).rolling(window, min_periods=1).mean()
    steps = np.arange(1, len(losses) + 1)
    inset.plot(steps, losses, color=EDGE, linewidth=0.8)
    inset.plot(steps, smooth, color=LARK_COLOUR, linewidth=1.8)
    inset.set_ylabel("loss", size=8, labelpad=1)
    inset.set_xlabel("training step", size=8, labelpad=1)
    inset.tick_params(labelsize=7, length=2, pad=1.5, color=BLACK)
    inset.set_ylim(bottom=0)
    inset.grid(visible=False)
