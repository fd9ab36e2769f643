"""The report of an experiment and its files: outputs/report/<name>.{md,csv}, with .tex or .{png,pdf}, and
index.md.

Reports of other scales than the demo are in a subfolder with the scale's name (outputs/report/paper), so
that they do not overwrite each other.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from experiments.harness.sweep import Sweep, Trial, available, dashed
from lark.config.schema import DEFAULT_SCALE
from lark.errors import LarkError
from lark.output import style as figures
from lark.output.tables import MISSING, Cell, csv_text, latex_table, markdown_table
from lark.pool.formats import source_files
from lark.printing import counted
from lark.store.store import write_text
from lark.work.tracking import Tracker

log = logging.getLogger(__name__)

SUFFIXES = (".md", ".csv", ".tex", ".png", ".pdf")
PAGES = "explorer"
"""Folder of the explorer's pages (experiments/harness/pages.py)."""


Column = tuple[str, str, str]
"""A column of a table: its heading, the column of the data that it shows, and the format of its values."""


def number(value: Any, form: str) -> Cell:
    """A value in its format, or a dash if it is missing. Differences (`{:+.2f}`) have a true minus sign, and
    a value that is a cell already stays as it is.
    """
    if isinstance(value, Cell):
        return value
    if pd.isna(value):
        return MISSING
    text = form.format(value)
    return Cell(text.replace("-", "−") if "+" in form else text)


@dataclass(frozen=True)
class Table:
    """One table of a report."""

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    labels: int = 1
    """Number of columns that name the row."""
    columns: str | None = None
    """LaTeX column types, for long text."""
    ours: bool = True
    """Whether its numbers are ours; otherwise they are the paper's."""

    @classmethod
    def of(cls, data: pd.DataFrame, columns: Sequence[Column], caption: str = "", labels: int = 1) -> "Table":
        """The rows of `data` as a table."""
        rows = []
        for record in data.to_dict("records"):
            rows.append([number(record[name], form) for _, name, form in columns])
        return cls([heading for heading, _, _ in columns], rows, caption, labels)

    def markdown(self) -> str:
        caption = f"{self.caption}\n\n" if self.caption else ""
        return caption + markdown_table(self.header, self.rows)


@dataclass(frozen=True)
class Report:
    """A table or figure of the paper, made from our artifacts."""

    title: str
    """Its name in the paper: `Table 1`, `Figure 2a`."""
    caption: str
    """What it shows, and what the paper finds."""
    data: pd.DataFrame
    """All numbers, one per row, for the CSV file."""
    tables: Sequence[Table] = ()
    figure: Figure | None = None
    notes: Sequence[str] = field(default_factory=list)
    """What the reader must know to interpret it correctly."""
    measured: bool = True
    """Whether any results of ours exist yet."""
    scope: str = ""
    """What the numbers are about, in place of the note on the sweep's scale."""
    summary: str = ""
    """The result in a few lines, which the command also prints."""


def write(sweep: Sweep, report: Report) -> list[Path]:
    """Write the report's files and return their paths. If nothing has changed, nothing is written or
    tracked.
    """
    top = sweep.store.root / "report"
    folder = top if sweep.scale == DEFAULT_SCALE else top / sweep.scale
    folder.mkdir(parents=True, exist_ok=True)
    base = folder / sweep.title
    texts = {
        base.with_suffix(".csv"): report.data.map(csv_text).to_csv(index=False, lineterminator="\n"),
        base.with_suffix(".md"): _markdown(sweep, report),
    }
    images: list[Path] = []
    if report.figure and report.measured:
        images = [base.with_suffix(".png"), base.with_suffix(".pdf")]
    elif report.tables:
        texts[base.with_suffix(".tex")] = _latex(sweep, report)
    for suffix in (".tex", ".png", ".pdf"):  # left by an earlier report with more, or fewer, results
        path = base.with_suffix(suffix)
        if path not in (*texts, *images):
            path.unlink(missing_ok=True)
    if not _is_written(texts, images):
        if report.figure and images:
            figures.save(report.figure, base)
        for path, text in texts.items():
            write_text(path, text)
        _track(sweep, report, folder, images[:1])
    write_index(folder)
    if folder != top:
        write_index(top)
    return [*texts, *images]


def _is_written(texts: Mapping[Path, str], images: Sequence[Path]) -> bool:
    """True if all files are there and the texts have not changed. Images are made from the same numbers."""
    if not all(path.exists() for path in (*texts, *images)):
        return False
    return all(path.read_text(encoding="utf-8") == text for path, text in texts.items())


def _latex(sweep: Sweep, report: Report) -> str:
    tables = []
    for place, table in enumerate(report.tables):
        caption = _latex_caption(sweep, report, table)
        label = f"{sweep.title}-{place}"
        tables.append(latex_table(table.header, table.rows, caption, label, table.labels, table.columns))
    return "\n".join(tables)


def unfinished(sweep: Sweep) -> list[tuple[Trial, str]]:
    """The trials with unfinished artifacts, and the reason, if it is recorded."""
    trials = []
    for trial in sweep.trials:
        missing = []
        for step in trial.steps:
            missing += sweep.pending(step)
        if missing:
            errors = filter(None, [sweep.store.manifest(artifact).error for artifact in missing])
            trials.append((trial, next(errors, None) or _without_pool(trial)))
    return trials


def _without_pool(trial: Trial) -> str:
    """Why a trial may have ended before it started its first artifact."""
    try:
        source_files(trial.config.pool)
    except LarkError as error:
        return str(error)
    return "it is not finished"


def write_index(folder: Path) -> None:
    """Write one page with every report in the folder, and links to those of other scales."""
    contents = []
    sections = []
    for name in map(dashed, available()):
        page = folder / f"{name}.md"
        if not page.exists():
            continue
        heading, body = page.read_text(encoding="utf-8").split("\n", 1)
        title = heading.removeprefix("# ")
        contents.append(f"- [{title}](#{name})")
        files = [path.name for path in sorted(folder.glob(f"{name}.*")) if path.suffix in SUFFIXES]
        links = ", ".join(f"[{file}]({file})" for file in files)
        sections.append(f'<a id="{name}"></a>\n\n## {title}\n\n{body.strip()}\n\nFiles: {links}')
    for path in sorted(folder.glob("*/index.md")):
        scale = path.parent.name
        contents.append(f"- at scale {scale}: [index]({scale}/index.md)")
    contents += _link_to_pages(folder)
    text = "\n\n".join(["# The paper's tables and figures", "\n".join(contents), *sections]) + "\n"
    path = folder / "index.md"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


def _link_to_pages(folder: Path) -> list[str]:
    """A link to the explorer's pages, which are beside the index or, for another scale, one folder above."""
    for where in (PAGES, f"../{PAGES}"):
        if (folder / where / "index.html").exists():
            return [
                f"- [single questions in the browser]({where}/index.html) (serve the folder to open them)"
            ]
    return []


def _markdown(sweep: Sweep, report: Report) -> str:
    parts = [f"# {report.title}"]
    if report.figure and report.measured:
        parts.append(f"![{report.title}]({sweep.title}.png)")
    note = report.scope or _scale_note(sweep)
    if sweep.scale != "paper":
        note = f"**{note}**"
    parts += [_not_run(sweep, report), report.caption, note, _changed(sweep)]
    missing = [] if report.scope else unfinished(sweep)
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        parts.append(
            f"Missing (–): {len(missing)} of {counted(len(sweep.trials), 'trial')} {verb} not finished."
        )
    parts += [report.summary, *report.notes, *(table.markdown().strip() for table in report.tables)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _latex_caption(sweep: Sweep, report: Report, table: Table) -> str:
    """The caption without the table's number, which LaTeX adds, and always with the scale if the numbers
    are ours.
    """
    title = re.sub(r"^Table \d+\. ", "", report.title)
    parts = [f"{title}.", table.caption or report.caption]
    if table.ours:
        note = report.scope or _scale_note(sweep)
        parts += [_not_run(sweep, report), note, _changed(sweep).replace("`", "")]
    return " ".join(part for part in parts if part)


def _not_run(sweep: Sweep, report: Report) -> str:
    if report.measured:
        return ""
    scale = "" if sweep.scale == DEFAULT_SCALE else f" SCALE={sweep.scale}"
    return f"Not run yet: make {sweep.title}{scale}."


def _changed(sweep: Sweep) -> str:
    if not sweep.overrides:
        return ""
    return f"Changed from the experiment's settings: `{' '.join(sweep.overrides)}`."


def _scale_note(sweep: Sweep) -> str:
    students = ", ".join(dict.fromkeys(trial.config.student.name for trial in sweep.trials))
    if sweep.scale == "paper":
        return f"Scale: paper ({students})."
    size = f"This is at scale {sweep.scale}, far below the paper's"
    if sweep.scale == DEFAULT_SCALE:
        size = "This is the demo, a miniature"
    return (
        f"{size} (student {students}): it shows that the code works and does not reproduce the paper's"
        " results. Numbers that are called the paper's are printed in the paper, measured on its students and"
        " data."
    )


def _track(sweep: Sweep, report: Report, folder: Path, images: Sequence[Path]) -> None:
    """Log the finished table in the sweep's group, as a separate run."""
    tracking = sweep.trials[0].config.tracking
    tracker = Tracker(tracking, folder, sweep.store.root, name=f"report/{sweep.title}")
    try:
        data = report.data.astype(object).where(report.data.notna(), None)
        tracker.table(sweep.title, list(data.columns), data.to_numpy().tolist())
        for path in images:
            tracker.image(f"{sweep.title}_figure", path)
    finally:
        tracker.finish()
