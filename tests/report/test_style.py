"""A figure does not depend on figures that were drawn before it."""

from pathlib import Path

import matplotlib as mpl
import pandas as pd
import pytest

from experiments.kappa import kappa_figure
from lark.report import style as figures


@pytest.mark.parametrize("before", [{}, {"savefig.dpi": 60, "font.size": 20, "pdf.fonttype": 3}])
def test_a_picture_does_not_depend_on_those_before_it(before: dict[str, int], tmp_path: Path) -> None:
    mpl.rcdefaults()
    mpl.rcParams.update(before)
    run = pd.DataFrame({"step": [0, 5, 10], "rate": [4.0, 1.0, 0.02]})
    figures.save(kappa_figure({1: run.assign(ratio=run["rate"] / 4.0)}), tmp_path / "kappa")
    width, height = (int.from_bytes((tmp_path / "kappa.png").read_bytes()[at : at + 4], "big") for at in (16, 20))
    assert (width, height) == (3.1 * 160, 3.0 * 160)
    assert b"/Type3" not in (tmp_path / "kappa.pdf").read_bytes()
    mpl.rcdefaults()
