"""What makes a site of the Markdown in this repository (`make docs`, mkdocs.yml).

The navigation is the index, docs/README.md: its headings are sections and its links are pages. Files outside
docs/ are pages too: README.md is the first page, and notebooks are shown with their outputs. Links between
files of the repository become links between pages.
"""

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
HOME = "README.md"
INDEX = "docs/README.md"
ELSEWHERE = {
    HOME: "index.md",
    INDEX: "pages.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "AGENTS.md": "agents.md",
}
"""Pages whose place on the site is not their place in docs/."""
LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
FAVICON = "lark/explorer/static/favicon.svg"


def pages() -> dict[str, str]:
    """Files of the repository that are pages, and their places on the site."""
    notebooks = [path.stem for path in ROOT.glob("examples/*.ipynb")]
    return ELSEWHERE | {f"examples/{name}.ipynb": f"examples/{name}.md" for name in notebooks}


def on_config(config: MkDocsConfig) -> None:
    """The navigation, from the index."""
    sections: list[Any] = [{"Home": "index.md"}, {"All pages": "pages.md"}]
    entries: list[dict[str, str]] = []
    for line in (ROOT / INDEX).read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            entries = []
            sections.append({line.removeprefix("## "): entries})
        link = re.match(r"\| \[([^\]]+)\]\(([^)#]+)\)", line)
        if link:
            entries.append({link[1]: place_of(INDEX, link[2])})
    config.nav = sections


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside docs/."""
    index = files.get_file_from_path("README.md")
    if index is not None:
        files.remove(index)
    for name, place in pages().items():
        text = (ROOT / name).read_text(encoding="utf-8")
        content = notebook(json.loads(text)) if name.endswith(".ipynb") else text
        files.append(File.generated(config, place, content=content))
    files.append(File.generated(config, "pictures/favicon.svg", abs_src_path=str(ROOT / FAVICON)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files of the repository into links to pages."""
    sources = {place: name for name, place in pages().items()}
    source = sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def link(match: re.Match[str]) -> str:
        target = match[1]
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        place = posixpath.relpath(place_of(source, target), posixpath.dirname(page.file.src_uri) or ".")
        return f"]({place}{match[2] or ''})"

    return deeper(LINK.sub(link, markdown))


def deeper(markdown: str) -> str:
    """Indent what belongs to a numbered item by 4 spaces instead of 3, and separate the items, as Python's
    Markdown expects.
    """
    lines: list[str] = []
    is_code = False
    for line in markdown.splitlines():
        if line.startswith("```"):
            is_code = not is_code
        is_part = line.startswith("   ") and not is_code
        is_item = not is_code and re.match(r"\d+\. ", line) is not None
        if is_item and lines and lines[-1].startswith("   "):
            lines.append("")
        lines.append(f" {line}" if is_part else line)
    return "\n".join(lines)


def place_of(source: str, target: str) -> str:
    """The place on the site of a file that another file of the repository links to."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    return pages().get(path, path.removeprefix("docs/"))


def notebook(content: dict[str, Any]) -> str:
    """A notebook as Markdown, with the outputs that it contains."""
    parts = []
    for cell in content["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "code":
            text = f"```python\n{text}\n```"
        parts.append(text)
        for output in cell.get("outputs", []):
            parts.append(_output(output))
    return "\n\n".join(parts)


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img alt="figure" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
    text = "".join(output.get("text", data.get("text/plain", [])))
    return f"```text\n{text}\n```"
