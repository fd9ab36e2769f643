"""The local files of a pool, and what else is in its folder."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from lark.config import Source
from lark.errors import LarkError
from lark.limits import time_limit
from lark.printing import some
from lark.reading.rows import is_table

SECONDS = 60.0
"""Time limit for listing the files of a pool."""
INFORMATION = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}
"""Files that `datasets` writes next to the data."""

EXCLUDED = "named in pool.exclude"
"""Why a file is not read."""


@dataclass(frozen=True)
class SourceFiles:
    """The files of a source."""

    files: list[Path] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Files that are not read, and why."""
    notes: list[str] = field(default_factory=list)


@contextmanager
def readable(source: Source) -> Iterator[None]:
    """Report a path that the file system refuses: forbidden, too long, or with characters no path has."""
    try:
        sentence = f"pool.path={source.path}: listing its files takes longer than {SECONDS:g} seconds."
        with time_limit(SECONDS, f"{sentence} Name a folder."):
            yield
    except (OSError, ValueError, NotImplementedError, RuntimeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        if isinstance(error, OSError) and error.filename and len(str(error.filename)) < 200:
            reason = f"{error.filename}: {reason}"
        raise LarkError(
            f"pool.path={source.path}: cannot be read ({reason}). Give a file, a folder or a glob pattern."
        ) from error


def table_files(source: Source) -> SourceFiles:
    """The files of a pool of rows: a file, the files of a folder, or those that match a pattern.

    A folder is read without its subfolders, unless all of its files are in subfolders.
    """
    with readable(source):
        path = Path(source.path or "").expanduser()
        if path.is_dir():
            return _in_folder(path, source)
        _check_readable(path, source)
        matches = [path] if path.is_file() else _matches(path)
        files = sorted(file for file in matches if file.is_file())
        root = next(parent for parent in path.parents if "*" not in str(parent))
        odd = _odd(matches, root)
    # A pattern like `data/*` is for all files, also those that are not tables; others name their files.
    is_for_all = path.name.endswith("*")
    if is_for_all:
        files = [file for file in files if not _is_hidden(file, root)]
    files, skipped = split_excluded(files, root, source)
    if is_for_all:
        files, others = _split_tables(files, root)
        skipped |= others
    skipped |= odd
    _check_not_empty(files, skipped, source)
    return SourceFiles(files, skipped)


def _matches(pattern: Path) -> list[Path]:
    return list(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))))


def _check_readable(path: Path, source: Source) -> None:
    reason = not_a_file(path)  # reading a pipe would wait for a writer
    if reason:
        raise LarkError(
            f"pool.path={source.path}: this is {reason}. Give a JSONL, Parquet or CSV file, a folder or a"
            " pattern."
        )


def _check_not_empty(files: list[Path], skipped: Mapping[str, str], source: Source) -> None:
    if not files:
        refuse_excluded(skipped, source)
        raise LarkError(
            f"pool.path={source.path}: there is no such file. Give a JSONL, Parquet or CSV file, a folder or"
            " a glob pattern."
        )


def _in_folder(folder: Path, source: Source) -> SourceFiles:
    files, skipped = split_excluded(visible_files(folder), folder, source)
    for name, reason in _odd(sorted(folder.rglob("*")), folder).items():
        if not any(is_excluded(name, pattern) for pattern in source.exclude):
            skipped[name] = reason
    tables, others = _split_tables(files, folder)
    _check_tables(tables, files, skipped, source)
    skipped |= others
    top = [file for file in tables if file.parent == folder]
    if not top:
        return SourceFiles(tables, skipped)
    reason = f"in a subfolder; to read it too, use pool.path={source.path}/**/*"
    for file in tables:
        if file.parent != folder:
            skipped[relative(file, folder)] = reason
    return SourceFiles(top, skipped)


def _split_tables(files: list[Path], folder: Path) -> tuple[list[Path], dict[str, str]]:
    """The tables among some files, and why the others are not read."""
    tables = []
    skipped = {}
    for file in files:
        reason = _not_a_table(file)
        if reason:
            skipped[relative(file, folder)] = reason
        else:
            tables.append(file)
    return tables, skipped


def _check_tables(tables: list[Path], files: list[Path], skipped: Mapping[str, str], source: Source) -> None:
    """Refuse a folder without tables."""
    if not tables:
        refuse_excluded(skipped, source)
        is_saved = any(file.suffix == ".arrow" for file in files)
        advice = " Read a dataset that `datasets` saved with pool=hub." if is_saved else ""
        raise LarkError(
            f"pool.path={source.path}: there is no such file: the folder has no JSONL, JSON, Parquet or CSV"
            f" file. It has {some(file.name for file in files)}.{advice}"
        )


def _not_a_table(file: Path) -> str | None:
    """Why a file of a folder is not read."""
    if file.name in INFORMATION:
        return "information about a dataset"
    return None if is_table(file) else "not a JSONL, JSON, Parquet or CSV file"


def not_a_file(path: Path) -> str | None:
    """Why a path cannot be read (dangling link, pipe, device), or None."""
    if path.is_symlink() and not path.exists():
        return "a link that leads nowhere"
    if path.is_symlink() and path.is_dir():
        return "a link to a folder, which is not followed"
    if path.exists() and not (path.is_file() or path.is_dir()):
        return "a pipe, a socket or a device, not a file"
    return None


def _odd(paths: Iterable[Path], folder: Path) -> dict[str, str]:
    """Names that are not those of files, and why they are not read."""
    odd = {}
    for path in paths:
        reason = not_a_file(path)
        if reason and not _is_hidden(path, folder):
            odd[relative(path, folder)] = reason
    return odd


def visible_files(folder: Path) -> list[Path]:
    """All files below a folder, without hidden ones."""
    return sorted(path for path in folder.rglob("*") if not _is_hidden(path, folder) and path.is_file())


def _is_hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in Path(relative(file, folder)).parts)


def split_excluded(files: list[Path], folder: Path, source: Source) -> tuple[list[Path], dict[str, str]]:
    """The files that pool.exclude leaves, and those it names. A name that matches nothing is an error."""
    matched: set[str] = set()
    kept: list[Path] = []
    skipped: dict[str, str] = {}
    for file in files:
        name = relative(file, folder)
        patterns = {pattern for pattern in source.exclude if is_excluded(name, pattern)}
        matched |= patterns
        if patterns:
            skipped[name] = EXCLUDED
        else:
            kept.append(file)
    for pattern in source.exclude:
        if pattern not in matched:
            names = some(file.name for file in files)
            raise LarkError(f"pool.exclude={pattern}: matches no file of {source.path}; it has {names}.")
    return kept, skipped


def refuse_excluded(skipped: Mapping[str, str], source: Source) -> None:
    """Refuse a pool without files if pool.exclude is the reason. `skipped`: its files that are not read,
    and why.
    """
    excluded = [name for name, reason in skipped.items() if reason == EXCLUDED]
    if excluded:
        raise LarkError(
            f"pool.path={source.path}: pool.exclude leaves out {some(excluded)}, and nothing is left to read."
            " Exclude fewer files."
        )


def is_excluded(name: str, pattern: str) -> bool:
    """Whether a pattern matches a file's relative name, its last part, or one of its folders."""
    pattern = pattern.rstrip("/")
    return any(fnmatch(part, pattern) for part in (name, *name.split("/")))


def relative(file: Path, folder: Path) -> str:
    if file.is_relative_to(folder):
        file = file.relative_to(folder)
    return file.as_posix()
