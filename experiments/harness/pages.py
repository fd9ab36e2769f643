"""The explorer's pages of some questions beside the reports: outputs/report/explorer, to which their index
links.
"""

import logging
from pathlib import Path

from experiments.harness.report import PAGES, write_index
from lark.errors import LarkError
from lark.explorer.context import Context
from lark.explorer.export import NothingToExportError, export

log = logging.getLogger(__name__)

QUESTIONS = 10
"""Questions of each pool."""


def write_pages(outputs: Path) -> list[str]:
    """Write the pages, and the link to them in every index. Return what went wrong."""
    top = outputs / "report"
    try:
        files, size = export(Context(outputs.resolve()), top / PAGES, QUESTIONS)
    except NothingToExportError:
        return []
    except LarkError as error:
        return [f"{top / PAGES}: {error}"]
    log.info("%s: %s files, %.1f MB", top / PAGES, f"{files:,}", size / 1e6)
    for folder in (top, *sorted(path.parent for path in top.glob("*/index.md"))):
        if (folder / "index.md").exists():
            write_index(folder)
    return []
