"""The documentation as a site: built strictly, every page in its navigation, nothing that needs a network."""

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
    pages = list(site.rglob("*.html"))
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
