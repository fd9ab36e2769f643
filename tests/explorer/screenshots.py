"""Pictures of every page of a store, at two widths, light and dark, to look at.

Run as: python -m tests.explorer.screenshots outputs pictures
"""

import argparse
import logging
from pathlib import Path

from playwright.sync_api import Page

from tests.explorer.browser import chromium, tab
from tests.explorer.conftest import serving

log = logging.getLogger(__name__)

WIDTHS = {1280: 860, 400: 800}
"""Width and height of the window."""


def addresses(page: Page, base: str) -> dict[str, str]:
    """The address of each page, found by clicks from the overview."""
    found = {"overview": page.url}
    page.get_by_role("link", name="Pool", exact=True).click()
    page.get_by_role("table", name="Questions").locator("tbody tr").nth(0).wait_for()
    found["pool"] = page.url
    page.get_by_role("table", name="Questions").locator("tbody tr").nth(0).click()
    rows = page.locator("table.candidates tbody tr")
    rows.nth(0).wait_for()
    found["question"] = page.url
    rows.nth(0).get_by_role("button").click()
    rows.nth(5).get_by_role("button").click()
    page.get_by_role("link", name="Compare them").click()
    page.locator(".tokens").nth(1).wait_for()
    found["compare"] = page.url
    page.get_by_role("link", name="Methods", exact=True).click()
    page.wait_for_url("**/methods/**")
    found["methods"] = page.url
    page.get_by_role("link", name="Answers", exact=True).click()
    page.get_by_role("table", name="Problems").locator("tbody tr").nth(0).click()
    page.locator(".sides > section").nth(0).wait_for()
    found["problem"] = page.url
    return {**found, "answers": base + "#/answers"}


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m tests.explorer.screenshots", description="Pictures of the explorer's pages."
    )
    parser.add_argument("outputs", type=Path, help="the store, of a run with scoring.tokens")
    parser.add_argument("folder", type=Path, help="where the pictures go")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options.folder.mkdir(parents=True, exist_ok=True)
    with serving(options.outputs) as server, chromium() as browser:
        with tab(browser) as opened:
            opened.open(server.url)
            pages = addresses(opened.page, server.base)
        for width, height in WIDTHS.items():
            for theme in ("light", "dark"):
                with tab(browser, width, height, theme) as opened:
                    opened.open(server.url)
                    for name, url in pages.items():
                        opened.open(url)
                        path = options.folder / f"{name}-{width}-{theme}.png"
                        opened.page.screenshot(path=path, full_page=True)
                        log.info("%s", path)


if __name__ == "__main__":
    main()
