"""Style of figures: colours that colour-blind readers can distinguish, and the same sizes and fonts
everywhere.
"""

import logging
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import ParamSpec

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from lark.printing import visible

OKABE_ITO = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#F0E442",
    "#999999",
    "#000000",
)
"""Okabe and Ito's palette, the most legible on white first."""
BLUE = OKABE_ITO[0]
GREY = OKABE_ITO[7]
BLACK = OKABE_ITO[8]
LARK_COLOUR = "#D55E00"
"""LARK is vermilion in every figure."""
METHOD_COLOURS = {
    "lark": LARK_COLOUR,
    "rsr": "#0072B2",
    "local_naturalness": "#009E73",
    "grape": "#E69F00",
    "llm_judge": "#CC79A7",
    "rule_quality": "#56B4E9",
    "token_length": "#999999",
    "random": "#000000",
    "base": "#BBBBBB",
}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
"""Used together with colours, so that figures can also be read in greyscale."""
STYLE = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "figure.dpi": 100,
    "savefig.dpi": 160,
    "pdf.fonttype": 42,
}


def panels(count: int = 1, width: float = 5.2, height: float = 3.4) -> tuple[Figure, Sequence[Axes]]:
    """A figure with `count` panels side by side. It does not use pyplot, so nothing is shown or has to be
    closed.
    """
    mpl.rcParams.update(STYLE)
    figure = Figure(figsize=(width * count, height), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def save(figure: Figure, path: Path) -> None:
    """Save as PNG (for the screen) and PDF (for print). The same figure gives the same bytes."""
    logging.getLogger("fontTools").setLevel(logging.WARNING)
    with mpl.rc_context(STYLE):  # resolution and fonts are read here, not when the figure is drawn
        figure.savefig(path.with_suffix(".png"), metadata={"Software": None})
        figure.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None})


LONGEST_NAME = 60


def plain_label(name: str, longest: int = LONGEST_NAME) -> str:
    """A name that someone else chose, as text of a figure: no formulas (`$`), no line breaks, and not
    longer than the figure.
    """
    text = visible(name, lines=False).replace("$", r"\$")
    return text if len(text) <= longest else text[: longest - 1].rstrip("\\") + "…"


_PLACES = (
    ((5, 3), "left", "bottom"),
    ((-5, 3), "right", "bottom"),
    ((5, -3), "left", "top"),
    ((-5, -3), "right", "top"),
    ((0, 6), "center", "bottom"),
    ((0, -6), "center", "top"),
    ((5, 13), "left", "bottom"),
    ((5, -13), "left", "top"),
)
"""Where a label can be relative to its point: offset in points, horizontal and vertical alignment. The
first is preferred.
"""


def label_points(
    axes: Axes, points: Sequence[tuple[float, float]], names: Sequence[str], fontsize: float
) -> None:
    """Write each name beside its point, where it covers no other label or point if there is such a place.

    Call it last: it depends on the limits of the axes and on the layout of the figure.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # decides the layout
    frame = axes.get_window_extent()
    at = axes.transData.transform(np.asarray(points, dtype=float).reshape(-1, 2))
    # The points themselves must stay visible too: squares of 8 pixels around them.
    taken = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in at]
    for name, point in zip(names, points, strict=True):
        label = axes.annotate(plain_label(name), point, (0, 0), textcoords="offset points", fontsize=fontsize)
        # Each label takes the best place that is left; a search over all labels would be slow and jumpy.
        best = _PLACES[0]
        least_hidden = float("inf")
        for place in _PLACES:
            box = _put(label, place)
            outside = box.width * box.height - _shared(box, frame)
            hidden = sum(_shared(box, other) for other in taken) + outside
            if hidden < least_hidden:
                least_hidden = hidden
                best = place
        taken.append(_put(label, best))


def _put(label: Annotation, place: tuple[tuple[float, float], str, str]) -> Bbox:
    label.xyann, horizontal, vertical = place
    label.set(ha=horizontal, va=vertical)
    return label.get_window_extent()


def _shared(box: Bbox, other: Bbox) -> float:
    """Area that two boxes share."""
    common = Bbox.intersection(box, other)
    return common.width * common.height if common else 0.0


P = ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw with STYLE in effect, because titles and legends take their size when they are created."""

    @wraps(draw)
    def drawn(*arguments: P.args, **options: P.kwargs) -> Figure:
        with mpl.rc_context(STYLE):
            return draw(*arguments, **options)

    return drawn


def powers_of_ten(low: float, high: float) -> np.ndarray:
    """Powers of ten from `low` to `high`, and 3 times each if high/low < 1000; `low` to one digit if there
    are none.
    """
    digits = (1, 3) if high / low < 1000 else (1,)
    powers = 10.0 ** np.arange(np.floor(np.log10(low)), np.floor(np.log10(high)) + 1)
    values = np.array([digit * power for power in powers for digit in digits])
    within = values[(values >= low) & (values <= high)]
    return within if len(within) else np.array([float(f"{low:.1g}")])


def share_limits(axes: Sequence[Axes]) -> None:
    """Give several panels the same vertical axis."""
    limits = [panel.get_ylim() for panel in axes]
    lowest = min(low for low, _ in limits)
    highest = max(high for _, high in limits)
    for panel in axes:
        panel.set_ylim(lowest, highest)
