"""The report of an experiment and its files: outputs/report/<name>.{md,csv}, with .tex or .{png,pdf}, and
index.md.

Reports of other scales than the demo are in a subfolder with the scale's name (outputs/report/paper), so
that they do not overwrite each other.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from experiments.harness.sweep import Sweep, Trial, available, dashed
from lark.errors import LarkError
from lark.names import is_demo
from lark.output import style as figures
from lark.output.tables import Cell, csv_text, latex_table, markdown_table
from lark.pool.formats import source_files
from lark.printing import counted
from lark.store.store import write_text
from lark.work.tracking import Tracker

log = logging.getLogger(__name__)

PAGES = "explorer"
"""Folder of the explorer's pages (experiments/harness/pages.py)."""


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
    found: bool = True
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
    folder = top if is_demo(sweep.scale) else top / sweep.scale
    folder.mkdir(parents=True, exist_ok=True)
    base = folder / sweep.title
    texts = {base.with_suffix(".csv"): report.data.map(csv_text).to_csv(index=False, lineterminator="\n")}
    texts[base.with_suffix(".md")] = _markdown(sweep, report)
    figure = report.figure if report.found else None
    images = [base.with_suffix(suffix) for suffix in (".png", ".pdf")] if figure else []
    if report.tables and not figure:
        texts[base.with_suffix(".tex")] = "\n".join(
            latex_table(
                t.header, t.rows, _latex_caption(sweep, report, t), f"{sweep.title}-{i}", t.labels, t.columns
            )
            for i, t in enumerate(report.tables)
        )
    for suffix in (".tex", ".png", ".pdf"):  # left by an earlier report with more, or fewer, results
        if (path := base.with_suffix(suffix)) not in (*texts, *images):
            path.unlink(missing_ok=True)
    same = all(path.exists() and path.read_text(encoding="utf-8") == text for path, text in texts.items())
    if not same or not all(path.exists() for path in images):
        if figure:
            figures.save(figure, base)
        for path, text in texts.items():
            write_text(path, text)
        _track(sweep, report, folder, images[:1])
    write_index(folder)
    if folder != top:
        write_index(top)
    return [*texts, *images]


def unfinished(sweep: Sweep) -> list[tuple[Trial, str]]:
    """The trials with unfinished artifacts, and the reason, if it is recorded."""
    found = []
    for trial in sweep.trials:
        artifacts = [artifact for step in trial.steps for artifact in step.artifacts]
        missing = [artifact for artifact in artifacts if sweep.store.state(artifact) != "finished"]
        if missing:
            said = (sweep.store.manifest(artifact).error for artifact in missing)
            found.append((trial, next((str(error) for error in said if error), None) or _without_pool(trial)))
    return found


def _without_pool(trial: Trial) -> str:
    """Why a trial may have ended before it started its first artifact."""
    try:
        source_files(trial.config.pool)
    except LarkError as error:
        return str(error)
    return "it is not finished"


def write_index(folder: Path) -> None:
    """Write one page with every report in the folder, and links to those of other scales."""
    pages = [(name, folder / f"{dashed(name)}.md") for name in available()]
    pages = [(name, page) for name, page in pages if page.exists()]
    texts = {name: page.read_text(encoding="utf-8") for name, page in pages}
    titles = {name: text.splitlines()[0].removeprefix("# ") for name, text in texts.items()}
    contents = [f"- [{titles[name]}](#{dashed(name)})" for name, _ in pages]
    scales = [
        f"- at scale {path.parent.name}: [index]({path.parent.name}/index.md)"
        for path in sorted(folder.glob("*/index.md"))
    ]
    parts = ["# The paper's tables and figures", "\n".join([*contents, *scales, *_link_to_pages(folder)])]
    for name, page in pages:
        files = [
            path
            for path in sorted(folder.glob(f"{page.stem}.*"))
            if path.suffix in (".md", ".csv", ".tex", ".png", ".pdf")
        ]
        links = ", ".join(f"[{path.name}]({path.name})" for path in files)
        body = texts[name].split("\n", 1)[1].strip()
        parts.append(f'<a id="{dashed(name)}"></a>\n\n## {titles[name]}\n\n{body}\n\nFiles: {links}')
    text = "\n\n".join(parts) + "\n"
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
    if report.figure and report.found:
        parts.append(f"![{report.title}]({sweep.title}.png)")
    note = report.scope or _scale_note(sweep)
    parts += [
        _not_run(sweep, report),
        report.caption,
        note if sweep.scale == "paper" else f"**{note}**",
        _changed(sweep),
    ]
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
        parts += [
            _not_run(sweep, report),
            report.scope or _scale_note(sweep),
            _changed(sweep).replace("`", ""),
        ]
    return " ".join(part for part in parts if part)


def _not_run(sweep: Sweep, report: Report) -> str:
    scale = "" if is_demo(sweep.scale) else f" SCALE={sweep.scale}"
    return "" if report.found else f"Not run yet: make {sweep.title}{scale}."


def _changed(sweep: Sweep) -> str:
    return (
        f"Changed from the experiment's settings: `{' '.join(sweep.overrides)}`." if sweep.overrides else ""
    )


def _scale_note(sweep: Sweep) -> str:
    students = ", ".join(dict.fromkeys(trial.config.student.name for trial in sweep.trials))
    if sweep.scale == "paper":
        return f"Scale: paper ({students})."
    what = (
        "This is the demo, a miniature"
        if is_demo(sweep.scale)
        else f"This is at scale {sweep.scale}, far below the paper's"
    )
    return (
        f"{what} (student {students}): it shows that the code works and does not reproduce the paper's results. "
        "Numbers that are called the paper's are printed in the paper, measured on its students and data."
    )


def _track(sweep: Sweep, report: Report, folder: Path, images: Sequence[Path]) -> None:
    """Log the finished table in the sweep's W&B group, as a separate run."""
    tracker = Tracker(sweep.trials[0].config, folder, name=f"report/{sweep.title}")
    try:
        data = report.data.astype(object).where(report.data.notna(), None)
        tracker.table(sweep.title, list(data.columns), data.to_numpy().tolist())
        for path in images:
            tracker.image(f"{sweep.title}_figure", path)
    finally:
        tracker.finish()
