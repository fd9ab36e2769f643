"""The documentation as a site: built strictly, every page in its navigation, nothing that needs a network."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytest.importorskip("mkdocs", reason="mkdocs is not installed (make setup)")
pytest.importorskip("material", reason="mkdocs-material is not installed (make setup)")

FOREIGN = re.compile(r'<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)="?(?:https?:)?//')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. mkdocs.yml is strict: a link that leads nowhere, an anchor that is missing, or a page
    that is not in the navigation ends the build.
    """
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_in_the_navigation_and_in_the_search(site: Path) -> None:
    names = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"README"}
    expected = {f"{name}.html" for name in names | {"index", "pages", "contributing", "changelog", "agents"}}
    home = (site / "index.html").read_text(encoding="utf-8")
    assert expected <= set(re.findall(r'<a href="([^"#]+)"', home)) | {"index.html"}
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    assert expected <= {entry["location"].partition("#")[0] for entry in index["docs"]}


def test_the_site_needs_no_network_and_has_its_pictures(site: Path) -> None:
    pages = [page for page in site.rglob("*.html") if page.name != "404.html"]  # its addresses are a server's
    assert len(pages) > 20
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not FOREIGN.search(text), page.name
        for picture in re.findall(r'<img [^>]*src="([^":]+)"', text):
            assert (page.parent / picture).is_file(), f"{page.name}: {picture}"


def test_text_in_numbered_items_stays_in_them(site: Path) -> None:
    """A list with code and a table between its items counts on."""
    text = (site / "add-a-method.html").read_text(encoding="utf-8")
    steps = re.search(r"<ol>.*?</ol>", text, re.S)
    assert steps is not None
    assert steps[0].count("<li>") > 2 and "<table>" in steps[0] and "<pre>" in steps[0]


def test_a_notebook_is_shown_with_its_outputs() -> None:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    assert spec is not None and spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    outputs = [
        {"output_type": "stream", "text": ["2\n"]},
        {"output_type": "display_data", "data": {"image/png": "aGk=\n", "text/plain": ["<Figure>"]}},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# Title"]},
        {"cell_type": "code", "source": ["print(1 + 1)"], "outputs": outputs},
    ]
    shown = hooks.notebook({"cells": cells})
    assert shown.startswith("# Title\n\n```python\nprint(1 + 1)\n```\n\n```text\n2\n")
    assert 'src="data:image/png;base64,aGk="' in shown and "<Figure>" not in shown
