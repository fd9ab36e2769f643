"""Tables for the terminal, Markdown, CSV and LaTeX from the same rows."""

from collections.abc import Sequence

Row = Sequence[str]


def text_table(header: Row, rows: Sequence[Row], right: int = 1) -> str:
    """For the terminal: columns aligned, those from `right` on to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(row: Row) -> str:
        cells = [cell.ljust(w) if i < right else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))]
        return "  ".join(cells).rstrip()

    return "\n".join([line(header), line(["─" * w for w in widths]), *map(line, rows)])


def markdown_table(header: Row, rows: Sequence[Row]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rows]) + "\n"
