"""Logs of Inspect: a `.eval` file is a zip archive with a header and a JSON file for each sample."""

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lark.errors import LarkError, first_line
from lark.reading.checks import require_header
from lark.reading.untrusted import parse_object

HEADERS = ("header.json", "_journal/start.json")
"""The header of a finished log, and that of one whose evaluation was stopped."""
SAMPLES = "samples/"
LONGEST_SAMPLE = 1 << 28
"""Bytes of the longest sample. A longer one would fill the memory."""


def eval_samples(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """The samples of a log, each as `{"eval": …, "samples": [sample]}`, and their locations."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            header = next((name for name in HEADERS if name in names), None)
            task = _member(archive, require_header(header, path), path).get("eval")
            for name in sorted(name for name in names if name.startswith(SAMPLES) and name.endswith(".json")):
                yield {"eval": task, "samples": [_member(archive, name, path)]}, f"{path}, {name}"
    except (OSError, EOFError, zipfile.BadZipFile, NotImplementedError, RuntimeError, zlib.error) as error:
        raise LarkError(f"{path}: cannot be read as a log of Inspect ({first_line(error)}).") from error


def _member(archive: zipfile.ZipFile, name: str, path: Path) -> dict[str, Any]:
    # The size in the archive's list may be a lie, so the limit holds for what is read.
    with archive.open(name) as handle:
        data = handle.read(LONGEST_SAMPLE + 1)
    if len(data) > LONGEST_SAMPLE:
        raise LarkError(f"{path}, {name}: the sample is longer than {LONGEST_SAMPLE >> 20} MiB.")
    return parse_object(data, f"{path}, {name}")
