"""Tables in Markdown, CSV and LaTeX from the same rows; those of the terminal are in lark/printing.py.

Cells contain names that other people chose (teachers, questions, benchmarks). Each format escapes what has
a meaning in it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lark.printing import visible

Row = Sequence[str]


def markdown_table(header: Row, rows: Sequence[Sequence["str | Cell"]]) -> str:
    """A table in Markdown. Text is escaped; cells may be bold."""
    cells = [
        [cell.markdown if isinstance(cell, Cell) else markdown(cell) for cell in row]
        for row in [header, *rows]
    ]
    cells.insert(1, ["---"] * len(header))
    return "\n".join(f"| {' | '.join(row)} |" for row in cells) + "\n"


def markdown(text: str) -> str:
    """Text that Markdown shows as it is: no columns, HTML, links, images or emphasis."""
    return re.sub(r"([\\|<>\[\]`*])", r"\\\1", visible(text, lines=False))


def csv_text(value: object) -> object:
    """A value for a CSV file. A text that a spreadsheet would run as a formula gets an apostrophe, which
    spreadsheets hide.
    """
    if not isinstance(value, str):
        return value
    text = visible(value)
    return f"'{text}" if re.match(r"[=@\t]|[+-](?![\d.]+(?:e[+-]?\d+)?$)", text, re.IGNORECASE) else text


@dataclass(frozen=True)
class Cell:
    """A cell of a table for a paper."""

    text: str
    best: bool = False
    """Set in bold."""

    @property
    def markdown(self) -> str:
        text = markdown(self.text)
        return f"**{text}**" if self.best else text

    @property
    def latex(self) -> str:
        text = LETTER.sub(_latex, visible(self.text, lines=False))
        return rf"\textbf{{{text}}}" if self.best else text


MISSING = Cell("–")
"""A result that does not exist yet."""

LATEX = {
    "&": r"\&",
    "%": r"\%",
    "_": r"\_",
    "#": r"\#",
    "$": r"\$",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "±": r"$\pm$",
    "–": "--",
    "−": r"$-$",
    "ρ": r"$\rho$",
    "κ": r"$\kappa$",
    "≥": r"$\geq$",
    "χ": r"$\chi$",
    "τ": r"$\tau$",
    "×": r"$\times$",
    "Δ": r"$\Delta$",
    "²": r"$^2$",
    "·": r"$\cdot$",
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "‖": r"$\Vert$",
    "∇": r"$\nabla$",
    "θ": r"$\theta$",
    "π": r"$\pi$",
    "≈": r"$\approx$",
    "≤": r"$\leq$",
    "…": r"\ldots{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "⏎": r"$\hookleftarrow$",
    "ĝ": r"$\hat{g}$",
    "Σ": r"$\Sigma$",
    "η": r"$\eta$",
    "∫": r"$\int$",
}
LETTER = re.compile(".\u0302?", re.DOTALL)
"""A character, with its combining circumflex if it has one."""


def _latex(letter: re.Match[str]) -> str:
    text = LATEX.get(letter[0][0], letter[0][0])
    return text if len(letter[0]) == 1 else f"$\\hat{{{text.strip('$')}}}$"


WIDE = 8
"""Columns. A table with more is scaled down to the line width."""


def latex_table(
    header: Row,
    rows: Sequence[Sequence[Cell]],
    caption: str,
    label: str,
    labels: int = 1,
    columns: str | None = None,
) -> str:
    """A `table` environment (booktabs, graphicx). The first `labels` columns are left-aligned. If there are
    several, rows with the same first cell form a group: its name is printed once, and a rule separates
    groups. `columns` sets the column types.
    """
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        r"\small",
        rf"\caption{{{Cell(caption).latex}}}",
        rf"\label{{tab:{label}}}",
    ]
    wide = len(header) > WIDE
    lines += [r"\resizebox{\linewidth}{!}{%"] if wide else []
    lines += [rf"\begin{{tabular}}{{{columns or 'l' * labels + 'c' * (len(header) - labels)}}}", r"\toprule"]
    lines += [" & ".join(Cell(name, best=True).latex for name in header) + r" \\", r"\midrule"]
    for number, row in enumerate(rows):
        continues = labels > 1 and number > 0 and row[0] == rows[number - 1][0]
        if labels > 1 and number > 0 and not continues:
            lines.append(r"\midrule")
        lines.append(
            " & ".join(cell.latex for cell in [Cell("") if continues else row[0], *row[1:]]) + r" \\"
        )
    lines += [r"\bottomrule", r"\end{tabular}" + ("}" if wide else ""), r"\end{table}"]
    return "\n".join(lines) + "\n"
