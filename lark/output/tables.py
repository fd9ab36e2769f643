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
    lines = [[markdown(name) for name in header], ["---"] * len(header)]
    for row in rows:
        lines.append([cell.markdown if isinstance(cell, Cell) else markdown(cell) for cell in row])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


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
    is_formula = re.match(r"[=@\t]|[+-](?![\d.]+(?:e[+-]?\d+)?$)", text, re.IGNORECASE)
    return f"'{text}" if is_formula else text


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
    "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "±": r"$\pm$", "–": "--", "−": "$-$", "ρ": r"$\rho$", "κ": r"$\kappa$",
    "≥": r"$\geq$", "χ": r"$\chi$", "τ": r"$\tau$", "×": r"$\times$", "Δ": r"$\Delta$", "²": "$^2$",
    "·": r"$\cdot$", "\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "‖": r"$\Vert$",
    "∇": r"$\nabla$", "θ": r"$\theta$", "π": r"$\pi$", "≈": r"$\approx$", "≤": r"$\leq$",
    "…": r"\ldots{}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    "⏎": r"$\hookleftarrow$", "ĝ": r"$\hat{g}$", "Σ": r"$\Sigma$", "η": r"$\eta$", "∫": r"$\int$",
}  # fmt: skip
LETTER = re.compile(".\u0302?", re.DOTALL)
"""A character, with its combining circumflex if it has one."""


def _latex(letter: re.Match[str]) -> str:
    text = LATEX.get(letter[0][0], letter[0][0])
    return text if len(letter[0]) == 1 else f"$\\hat{{{text.strip('$')}}}$"


MOST_COLUMNS = 8
"""A table with more is scaled down to the line width."""


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
    is_wide = len(header) > MOST_COLUMNS
    types = columns or "l" * labels + "c" * (len(header) - labels)
    titles = [Cell(name, best=True) for name in header]
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        r"\small",
        rf"\caption{{{Cell(caption).latex}}}",
        rf"\label{{tab:{label}}}",
        *([r"\resizebox{\linewidth}{!}{%"] if is_wide else []),
        rf"\begin{{tabular}}{{{types}}}",
        r"\toprule",
        _latex_row(titles),
        r"\midrule",
    ]
    for number, row in enumerate(rows):
        is_grouped = labels > 1 and number > 0
        if is_grouped and row[0] == rows[number - 1][0]:
            lines.append(_latex_row([Cell(""), *row[1:]]))
            continue
        if is_grouped:
            lines.append(r"\midrule")
        lines.append(_latex_row(row))
    end = r"\end{tabular}}" if is_wide else r"\end{tabular}"
    lines += [r"\bottomrule", end, r"\end{table}"]
    return "\n".join(lines) + "\n"


def _latex_row(cells: Sequence[Cell]) -> str:
    return " & ".join(cell.latex for cell in cells) + r" \\"
