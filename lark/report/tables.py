"""Tables for the terminal, Markdown, CSV and LaTeX from the same rows."""

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Cell:
    """An entry of a table that goes into a paper."""

    text: str
    best: bool = False
    """Set in bold."""

    @property
    def markdown(self) -> str:
        return f"**{self.text}**" if self.best else self.text.replace("|", r"\|")

    @property
    def latex(self) -> str:
        text = "".join(LATEX.get(character, character) for character in self.text)
        return rf"\textbf{{{text}}}" if self.best else text


MISSING = Cell("–")
"""Not there yet."""

LATEX = {
    "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}",
    "±": r"$\pm$", "–": "--", "−": r"$-$", "ρ": r"$\rho$", "ĝ": r"$\hat g$", "κ": r"$\kappa$", "≥": r"$\geq$", "χ": r"$\chi$",
    "×": r"$\times$", "Δ": r"$\Delta$", "²": r"$^2$", "·": r"$\cdot$", "\\": r"\textbackslash{}", "^": r"\textasciicircum{}",
}  # fmt: skip


def latex_table(header: Row, rows: Sequence[Sequence[Cell]], caption: str, label: str, labels: int = 1) -> str:
    """A `table` environment (booktabs); the first `labels` columns are to the left, and a line parts their first one."""
    lines = [r"\begin{table}[t]", r"\centering", r"\small", rf"\caption{{{Cell(caption).latex}}}", rf"\label{{tab:{label}}}"]
    lines += [rf"\begin{{tabular}}{{{'l' * labels}{'c' * (len(header) - labels)}}}", r"\toprule"]
    lines.append(" & ".join(Cell(name, best=True).latex for name in header) + r" \\")
    previous = None
    for row in rows:
        if row[0] != previous:
            lines.append(r"\midrule")
        first = Cell("") if row[0] == previous else row[0]
        lines.append(" & ".join(cell.latex for cell in [first, *row[1:]]) + r" \\")
        previous = row[0]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"
