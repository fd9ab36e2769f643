"""What is printed or logged: control characters are shown as escapes, and credentials are redacted.

Names of teachers, ids of questions and paths come from files that other people wrote. Printed as they are,
they could move the cursor, change colours, or reverse the direction of a line.
"""

import logging
import sys
from collections.abc import Sequence
from typing import TextIO

from lark.secrets import redact

Row = Sequence[str]
"""Cells of a table."""
KEPT = frozenset("\n\t\u00a0")


def visible(text: str, lines: bool = True) -> str:
    """The text with control, bidirectional and invisible characters as escapes (`\\x1b`). `lines`: line
    breaks are kept.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (lines and c in KEPT) else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def message(text: object) -> str:
    """A message for the terminal or a file."""
    return redact(visible(str(text)))


def counted(number: int, noun: str) -> str:
    """`1 shard`, `2,000 shards`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def text_table(header: Row, rows: Sequence[Row], right: int = 1) -> str:
    """A table for the terminal. Columns from index `right` on are right-aligned."""
    header, rows = _printable(header), [_printable(row) for row in rows]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(row: Row) -> str:
        cells = [
            cell.ljust(w) if i < right else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return "\n".join([line(header), line(["─" * w for w in widths]), *map(line, rows)])


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
