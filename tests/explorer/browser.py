"""Chromium for the explorer's tests: found on this machine, started once per file, with a record of every
request.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from playwright.sync_api import Browser, Page, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
NONE = (
    "No browser was found: the explorer's browser tests are skipped. Install chromium, or set LARK_BROWSER to"
    " a Chromium."
)
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-domain-reliability",
]


PATIENCE = 60_000
"""Milliseconds to wait for anything that will happen. Other processes may use the cores; a test that passes
does not wait.
"""
expect.set_options(timeout=PATIENCE)


def executable() -> str | None:
    """The path of a Chromium: LARK_BROWSER, or the first that is installed."""
    return os.environ.get("LARK_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable(), args=ARGUMENTS, timeout=2 * PATIENCE
        )
        yield browser
        browser.close()


@dataclass
class Tab:
    """A page, and everything that it asked for or complained about."""

    page: Page
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def foreign(self, *hosts: str) -> list[str]:
        """Requests to anywhere but these hosts."""
        return [url for url in self.requests if not url.startswith(hosts) and not url.startswith("data:")]

    def open(self, url: str) -> None:
        """Go to an address of the explorer and wait until everything on it is loaded."""
        self.page.goto(
            "about:blank"
        )  # otherwise a change after # only redraws, and the old page would pass for the new one
        self.page.goto(url)
        self.page.wait_for_selector("main h1, main [role=alert]", state="attached")
        self.page.wait_for_selector("[aria-busy]", state="detached")


@contextmanager
def tab(browser: Browser, width: int = 1280, height: int = 860, theme: str = "light") -> Iterator[Tab]:
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    found = Tab(page)
    page.on("request", lambda request: found.requests.append(request.url))
    page.on("pageerror", lambda error: found.errors.append(str(error)))
    page.on("console", lambda message: found.errors.append(message.text) if message.type == "error" else None)

    def dismiss(dialog) -> None:  # type: ignore[no-untyped-def]
        found.dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", dismiss)
    yield found
    context.close()
