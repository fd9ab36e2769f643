"""The pictures of README and docs: the pipeline as `make pipeline` draws it, and pages of the explorer.

Run as: python -m tests.explorer.pictures outputs/pictured docs/pictures        (`make pictures`)
"""

import argparse
import io
import logging
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page

from tests.explorer.browser import chromium, tab
from tests.explorer.conftest import serving
from tests.explorer.screenshots import addresses

log = logging.getLogger(__name__)

QUESTION = 19
"""The place in the demo's pool of the question that `make pipeline` draws (conf/experiment/pipeline.yaml)."""
COLOURS = 256
"""Pages have few colours: with a palette, a picture has a third of the size."""
LARGEST = 300_000
"""Bytes. A README is read on phones too."""


def save(picture: Image.Image, path: Path) -> None:
    """Save with a palette."""
    picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    assert size < LARGEST, f"{path} has {size} bytes"
    log.info("%s (%d kB)", path, size // 1000)


def photograph(page: Page, path: Path) -> None:
    save(Image.open(io.BytesIO(page.screenshot())), path)


def explorer(outputs: Path, folder: Path) -> None:
    """A candidate that LARK chose and why; two candidates token by token; where methods agree."""
    with serving(outputs) as server, chromium() as browser, tab(browser, 1280, 900) as opened:
        page = opened.page
        opened.open(server.url)
        places = addresses(page, server.base)
        opened.open(f"{places['pool'].replace('#/pool/', '#/question/')}/{QUESTION}")
        page.locator(".why").wait_for()
        photograph(page, folder / "why.png")
        opened.open(places["compare"])
        photograph(page, folder / "tokens.png")
        opened.open(places["methods"])
        page.get_by_role("heading", name="Agreement").evaluate("heading => heading.scrollIntoView()")
        photograph(page, folder / "agreement.png")


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.explorer.pictures", description=__doc__)
    parser.add_argument("outputs", type=Path, help="the store, of a run with scoring.tokens")
    parser.add_argument("folder", type=Path, help="where the pictures go")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options.folder.mkdir(parents=True, exist_ok=True)
    explorer(options.outputs, options.folder)
    figure = options.outputs / "report" / "pipeline.png"
    shutil.copy(figure, options.folder / "pipeline.png")


if __name__ == "__main__":
    main()
