"""Style of figures: colours that colour-blind readers can distinguish, and the same sizes and fonts everywhere."""

import logging
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import ParamSpec

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lark.printing import visible

OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999", "#000000")
"""Okabe and Ito's palette, the most legible on white first."""
BLUE, GREY, BLACK = OKABE_ITO[0], OKABE_ITO[7], OKABE_ITO[8]
LARK_COLOUR = "#D55E00"
"""LARK is vermilion in every figure."""
METHOD_COLOURS = {
    "lark": LARK_COLOUR, "rsr": "#0072B2", "local_naturalness": "#009E73", "grape": "#E69F00", "llm_judge": "#CC79A7",
    "rule_quality": "#56B4E9", "token_length": "#999999", "random": "#000000", "base": "#BBBBBB",
}  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
"""Used together with colours, so that figures can also be read in greyscale."""
STYLE = {
    "font.size": 9, "axes.titlesize": 9, "axes.labelsize": 9, "legend.fontsize": 8, "xtick.labelsize": 8, "ytick.labelsize": 8,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25, "grid.linewidth": 0.6,
    "legend.frameon": False, "figure.dpi": 100, "savefig.dpi": 160, "pdf.fonttype": 42,
}  # fmt: skip


def panels(count: int = 1, width: float = 5.2, height: float = 3.4) -> tuple[Figure, Sequence[Axes]]:
    """A figure with `count` panels side by side. It does not use pyplot, so nothing is shown or has to be closed."""
    mpl.rcParams.update(STYLE)
    figure = Figure(figsize=(width * count, height), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def save(figure: Figure, path: Path) -> None:
    """Save as PNG (for the screen) and PDF (for print). The same figure gives the same bytes."""
    logging.getLogger("fontTools").setLevel(logging.WARNING)
    with mpl.rc_context(STYLE):  # resolution and fonts are read here, not when the figure is drawn
        figure.savefig(path.with_suffix(".png"), metadata={"Software": None})
        figure.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None})


LONGEST_LABEL = 60


def plain_label(name: str) -> str:
    """A name that someone else chose, as text of a figure: no formulas (`$`), no line breaks, and not longer than the figure."""
    text = visible(name, lines=False).replace("$", r"\$")
    return text if len(text) <= LONGEST_LABEL else text[: LONGEST_LABEL - 1].rstrip("\\") + "…"


P = ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw with STYLE in effect, because titles and legends take their size when they are created."""

    @wraps(draw)
    def drawn(*arguments: P.args, **options: P.kwargs) -> Figure:
        with mpl.rc_context(STYLE):
            return draw(*arguments, **options)

    return drawn


def powers_of_ten(low: float, high: float) -> np.ndarray:
    """Powers of ten from `low` to `high`, and 3 times each if high/low < 1000; `low` to one digit if there are none."""
    digits = (1, 3) if high / low < 1000 else (1,)
    powers = 10.0 ** np.arange(np.floor(np.log10(low)), np.floor(np.log10(high)) + 1)
    values = np.array([digit * power for power in powers for digit in digits])
    within = values[(values >= low) & (values <= high)]
    return within if len(within) else np.array([float(f"{low:.1g}")])
