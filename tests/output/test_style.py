"""A figure does not depend on figures that were drawn before it, and its labels can be read."""

from itertools import combinations
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import pytest

from experiments.kappa import kappa_figure, with_theory
from lark.output import style as figures


@pytest.mark.parametrize("before", [{}, {"savefig.dpi": 60, "font.size": 20, "pdf.fonttype": 3}])
def test_a_picture_does_not_depend_on_those_before_it(before: dict[str, int], tmp_path: Path) -> None:
    mpl.rcdefaults()
    mpl.rcParams.update(before)
    run = pd.DataFrame(
        {"step": [0, 5, 10], "time": [0.0, 0.1, 0.2], "rate": [4.0, 1.0, 0.02], "loss": [3.0, 2.0, 1.0]}
    )
    figures.save(kappa_figure({1: with_theory(run.assign(distance=0.1, start_norm=1.0))}), tmp_path / "kappa")
    width, height = (
        int.from_bytes((tmp_path / "kappa.png").read_bytes()[at : at + 4], "big") for at in (16, 20)
    )
    assert (width, height) == (3.1 * 160, 7.6 * 160)
    assert b"/Type3" not in (tmp_path / "kappa.pdf").read_bytes()
    mpl.rcdefaults()


@pytest.mark.parametrize("gap", [0.0, 0.02, 0.1])
def test_labels_of_close_points_do_not_cover_each_other(gap: float) -> None:
    figure, (axes,) = figures.panels()
    points = [(0.0, 0.0), (1.0, 1.0), (1.0 - gap, 1.0), (0.5, 1.0)]
    for point in points:
        axes.plot(*point, "o")
    axes.margins(x=0.2, y=0.15)
    figures.label_points(axes, points, ["Random", "GRAPE max", "RSR min", "a $ of someone"], fontsize=7)
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts]
    assert [text.get_text() for text in axes.texts] == ["Random", "GRAPE max", "RSR min", r"a \$ of someone"]
    assert not any(box.overlaps(other) for box, other in combinations(boxes, 2))
    assert all(axes.get_window_extent().containsx(edge) for box in boxes for edge in (box.x0, box.x1))
