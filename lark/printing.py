"""Text for terminals and logs: control characters are shown as escapes, and credentials are redacted.

Names of teachers, ids of questions and paths come from files that other people wrote. Printed as they are,
they could move the cursor, change colours, or reverse the direction of a line.
"""

import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from lark.secrets import redact

Row = Sequence[str]
"""Cells of a table."""
LAYOUT = frozenset("\n\t\u00a0")
"""Characters that are not printable and do no harm."""


def visible(text: str, lines: bool = True) -> str:
    """The text with control, bidirectional and invisible characters as escapes (`\\x1b`). `lines`: line
    breaks are kept.
    """
    if text.isprintable():
        return text
    kept = LAYOUT if lines else frozenset[str]()
    return "".join(_visible(character, kept) for character in text)


def _visible(character: str, kept: frozenset[str]) -> str:
    if character.isprintable() or character in kept:
        return character
    return character.encode("unicode_escape").decode("ascii")


def message(text: object) -> str:
    """A message for the terminal or a file."""
    return redact(visible(str(text)))


def counted(number: int, noun: str) -> str:
    """`1 shard`, `2,000 shards`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def near(path: Path) -> str:
    """A path as it is typed here: relative to the current folder if it is below it."""
    here = Path(os.path.realpath(Path.cwd()))
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def some(names: Iterable[str], limit: int = 5) -> str:
    """The first names of a list, and how many more there are: `a, b and 7 more`."""
    listed = list(names)
    rest = f" and {len(listed) - limit:,} more" if len(listed) > limit else ""
    return (", ".join(listed[:limit]) or "none") + rest


def text_table(header: Row, rows: Sequence[Row], right: int = 1) -> str:
    """A table for the terminal. Columns from index `right` on are right-aligned."""
    lines = [_printable(row) for row in [header, *rows]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["─" * width for width in widths]

    def aligned(row: Row) -> str:
        left = [cell.ljust(width) for cell, width in zip(row[:right], widths, strict=False)]
        numbers = [cell.rjust(width) for cell, width in zip(row[right:], widths[right:], strict=True)]
        return "  ".join([*left, *numbers]).rstrip()

    return "\n".join(map(aligned, [lines[0], rule, *lines[1:]]))


def aligned(values: Mapping[str, str]) -> str:
    """Names and values, one pair per line."""
    width = max(map(len, values), default=0)
    return "\n".join(f"{name:{width}}  {visible(value, lines=False)}" for name, value in values.items())


def _printable(row: Row) -> list[str]:
    return [visible(cell, lines=False) for cell in row]


class Formatter(logging.Formatter):
    """Formats records for the terminal and for log files."""

    def format(self, record: logging.LogRecord) -> str:
        return message(super().format(record))


def log_to(stream: TextIO | None = None, level: int = logging.INFO, form: str = "%(message)s") -> None:
    """Log to a stream (default: stderr), in place of all other handlers."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(Formatter(form))
    logging.basicConfig(level=level, handlers=[handler], force=True)
