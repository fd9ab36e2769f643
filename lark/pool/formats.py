"""The sources of a pool's rows (`pool.format`). Readers hold at most one batch of rows in memory."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from lark import config as conf
from lark.config import Source
from lark.config.pool import TAUGHT
from lark.pool.agent_layouts import results_beside
from lark.pool.batch_requests import request_files, with_requests
from lark.pool.columns import Columns
from lark.pool.files import SourceFiles, readable, table_files, visible_files
from lark.pool.hub import hub_rows, is_remote, snapshot
from lark.pool.layouts import drafts
from lark.pool.mixing import naming
from lark.pool.rsr import rsr_files, rsr_rows
from lark.pool.sessions import gathered
from lark.pool.taught import taught_rows
from lark.reading.rows import Row, rows


def source_files(pool: conf.Pool) -> list[Path]:
    """The local files of a pool. Empty for the demo and for a dataset on the hub."""
    if pool.format != "mix":
        return find(pool).files
    files: list[Path] = []
    for name, source in pool.mix.items():
        with naming(name):
            files += find(source).files
    return files


def find(source: Source) -> SourceFiles:
    """The local files of a source, without downloading anything."""
    if source.is_generated or is_remote(source) or source.format == TAUGHT:
        return SourceFiles()
    if source.format == "hub":
        with readable(source):
            return SourceFiles(visible_files(Path(str(source.path)).expanduser()))
    return rsr_files(source) if source.format == "rsr" else table_files(source)


def companions(source: Source) -> list[Path]:
    """Files that are read beside those of the rows: requests of a batch, and results of Harbor's trials."""
    files = set(request_files(source))
    for file in find(source).files:
        files.update(results_beside(file))
    return sorted(files)


def source_rows(source: Source, empty: set[str]) -> tuple[SourceFiles, Iterator[Row]]:
    """A source's rows and files. Downloads a dataset in the paper's layout. `empty`: see `file_rows`."""
    if source.format == "hub":
        return SourceFiles(), hub_rows(source)
    if source.format == TAUGHT:
        return SourceFiles(), taught_rows(Path(str(source.path)))
    if source.format == "rsr":
        if is_remote(source):
            source = replace(source, path=str(snapshot(source)))
        files = rsr_files(source)
        return files, rsr_rows(source, files.files, lambda row: _question(row, source))
    files = table_files(source)
    return files, file_rows(files.files, empty, source)


def file_rows(files: Sequence[Path], empty: set[str], source: Source) -> Iterator[Row]:
    """The rows of several files. Adds files without rows to `empty`: an interrupted download, or a CSV file
    without a header.
    """
    stored = _file_rows(files, empty)
    return with_requests(stored, source) if source.requests else stored


def _file_rows(files: Sequence[Path], empty: set[str]) -> Iterator[Row]:
    for path in files:
        is_empty = True
        for row in gathered(rows(path)):
            is_empty = False
            yield Row(row.values, row.where, path)
        if is_empty:
            empty.add(path.name)


def _question(row: Row, source: Source) -> str:
    _, trajectories = drafts(Columns(row, source), source)
    return next(trajectories).turns.question
