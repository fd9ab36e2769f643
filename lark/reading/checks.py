"""Refusals of tables, each with its sentence."""

from collections import Counter
from pathlib import Path

from lark.errors import LarkError, first_line
from lark.reading.untrusted import problem


def not_csv(error: Exception, path: Path, line: int) -> LarkError:
    if isinstance(error, UnicodeDecodeError):
        return LarkError(f"{path}, after line {line}: {problem(error)}.")
    return LarkError(f"{path}, line {line}: cannot be read as CSV ({first_line(error)}).")


def check_length(header: list[str], values: list[str], where: str) -> None:
    """Refuse a row of a CSV file that does not fit its header."""
    if len(values) != len(header):
        raise LarkError(
            f"{where}: {len(values)} values, but the header has {len(header)} columns ({', '.join(header)})."
            " Put a value that contains a comma in double quotes, and remove commas at the end of the line."
        )


def check_named(header: list[str], values: list[str], where: str) -> None:
    """Refuse a value that has no name. An empty column, as after a comma at the end of each line, may be."""
    if any(value and not name.strip() for name, value in zip(header, values, strict=True)):
        raise LarkError(f"{where}: a value in a column without a name. Name every column in the header.")


def check_columns(path: Path, names: list[str]) -> None:
    """Refuse a column that appears twice: it is unknown which of the two is meant."""
    (name, times), *_ = Counter(names).most_common(1) or [("", 0)]
    if times > 1:
        raise LarkError(f"{path}: the column {name!r} appears {times} times. Give every column its own name.")


def require_header(header: str | None, path: Path) -> str:
    """Refuse a log of Inspect without a header."""
    if header is None:
        raise LarkError(f"{path}: cannot be read as a log of Inspect (it has no header.json).")
    return header
