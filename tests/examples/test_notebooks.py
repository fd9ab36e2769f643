"""The notebooks run, and their stored outputs are those of the code in them."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.examples.notebooks import FOLDER, NOTEBOOKS, run

LARGEST = 300_000
"""Bytes of a notebook with its pictures."""


def shapes(notebook: dict[str, Any]) -> list[list[list[str]]]:
    """The outputs of each cell: what they are, without what is in them."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [[sorted(output.get("data", output)) for output in cell["outputs"]] for cell in cells]


def test_the_documented_notebooks_are_those_that_exist() -> None:
    assert [path.name for path in NOTEBOOKS] == ["own_pool.ipynb", "quickstart.ipynb"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_its_outputs_are_stored(path: Path, tmp_path: Path) -> None:
    stored = json.loads(path.read_text(encoding="utf-8"))
    done = run(path, tmp_path)
    assert shapes(done) == shapes(stored)
    pictures = [output for cell in shapes(done) for output in cell if output == ["image/png"]]
    assert pictures or path.stem != "quickstart"
    assert path.stat().st_size < LARGEST
    assert not any(path.name in file.name for file in FOLDER.iterdir() if file != path)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_one_of_format_4_and_names_no_place_of_a_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    names = [cell["id"] for cell in notebook["cells"]]
    assert len(set(names)) == len(names)
    places = (ROOT, Path.home(), tempfile.gettempdir())
    assert not any(f"{place}/" in text for place in places)
