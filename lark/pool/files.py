"""The local files of a pool, and what else is in its folder."""

from collections.abc import Iterator, Mapping
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
class Found:
    """The files of a source."""

    files: list[Path] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Files that are not read, and why."""
    notes: list[str] = field(default_factory=list)
    empty: set[str] = field(default_factory=set)
    """Files without rows, known after they are read."""


@contextmanager
def readable(source: Source) -> Iterator[None]:
    """Report a path that the file system refuses: forbidden, too long, or with characters that no path has."""
    try:
        with time_limit(
            SECONDS,
            f"pool.path={source.path}: listing its files takes longer than {SECONDS:g} seconds. Name a"
            " folder.",
        ):
            yield
    except (OSError, ValueError, NotImplementedError, RuntimeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        if isinstance(error, OSError) and error.filename and len(str(error.filename)) < 200:
            reason = f"{error.filename}: {reason}"
        raise LarkError(
            f"pool.path={source.path}: cannot be read ({reason}). Give a file, a folder or a glob pattern."
        ) from error


def table_files(source: Source) -> Found:
    """The files of a pool of rows: a file, the files of a folder, or those that match a pattern.

    A folder is read without its subfolders, unless all of its files are in subfolders.
    """
    with readable(source):
        path = Path(source.path or "").expanduser()
        if path.is_dir():
            return _in_folder(path, source)
        if reason := not_a_file(path):
            raise LarkError(
                f"pool.path={source.path}: this is {reason}. Give a JSONL, Parquet or CSV file, a folder or a"
                " pattern."
            )
        found = [path] if path.is_file() else list(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
        files = sorted(file for file in found if file.is_file())
        odd = {file: reason for file in found if (reason := not_a_file(file))}
    root = next(parent for parent in path.parents if "*" not in str(parent))
    if path.name.endswith("*"):  # a pattern for all files, also those that are not tables
        files = [file for file in files if not _is_hidden(file, root)]
    kept, skipped = split_excluded(files, root, source)
    if path.name.endswith("*"):
        skipped |= {relative(file, root): reason for file in kept if (reason := _not_a_table(file))}
        kept = [file for file in kept if not _not_a_table(file)]
    skipped |= {relative(file, root): reason for file, reason in odd.items() if not _is_hidden(file, root)}
    if not kept:
        refuse_excluded(skipped, source)
        raise LarkError(
            f"pool.path={source.path}: there is no such file. Give a JSONL, Parquet or CSV file, a folder or"
            " a glob pattern."
        )
    return Found(kept, skipped)


def _in_folder(folder: Path, source: Source) -> Found:
    kept, skipped = split_excluded(visible_files(folder), folder, source)
    skipped |= odd_files(folder, source)
    tables = [file for file in kept if not _not_a_table(file)]
    top = [file for file in tables if file.parent == folder]
    if not tables:
        refuse_excluded(skipped, source)
        saved = (
            " Read a dataset that `datasets` saved with pool=hub."
            if any(f.suffix == ".arrow" for f in kept)
            else ""
        )
        raise LarkError(
            f"pool.path={source.path}: there is no such file: the folder has no JSONL, JSON, Parquet or CSV"
            f" file. It has {some(file.name for file in kept)}.{saved}"
        )
    files = top or tables
    skipped |= {relative(file, folder): reason for file in kept if (reason := _not_a_table(file))}
    if top:
        remedy = f"in a subfolder; to read it too, use pool.path={source.path}/**/*"
        skipped |= {relative(file, folder): remedy for file in tables if file.parent != folder}
    return Found(files, skipped)


def _not_a_table(file: Path) -> str | None:
    """Why a file of a folder is not read."""
    if file.name in INFORMATION:
        return "information about a dataset"
    return None if is_table(file) else "not a JSONL, JSON, Parquet or CSV file"


def not_a_file(path: Path) -> str | None:
    """What a path is, if it exists but can be neither read nor listed: it would be left out without a word."""
    if path.is_symlink() and not path.exists():
        return "a link that leads nowhere"
    if path.is_symlink() and path.is_dir():
        return "a link to a folder, which is not followed"
    return (
        "a pipe, a socket or a device, not a file"
        if path.exists() and not (path.is_file() or path.is_dir())
        else None
    )


def odd_files(folder: Path, source: Source) -> dict[str, str]:
    """What else is in a folder, and why it is not read."""
    found = {
        relative(path, folder): reason for path in sorted(folder.rglob("*")) if (reason := not_a_file(path))
    }
    names = (name for name in found if not any(part.startswith(".") for part in Path(name).parts))
    return {
        name: found[name]
        for name in names
        if not any(is_excluded(name, pattern) for pattern in source.exclude)
    }


def visible_files(folder: Path) -> list[Path]:
    """All files below a folder, without hidden ones."""
    return sorted(path for path in folder.rglob("*") if not _is_hidden(path, folder) and path.is_file())


def _is_hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in Path(relative(file, folder)).parts)


def split_excluded(files: list[Path], folder: Path, source: Source) -> tuple[list[Path], dict[str, str]]:
    """The files that pool.exclude leaves, and those that it names. A name that matches nothing is an error."""
    matched: set[str] = set()
    skipped = {}
    for file in files:
        name = relative(file, folder)
        hits = {pattern for pattern in source.exclude if is_excluded(name, pattern)}
        matched |= hits
        if hits:
            skipped[name] = EXCLUDED
    for pattern in source.exclude:
        if pattern not in matched:
            raise LarkError(
                f"pool.exclude={pattern}: matches no file of {source.path}; it has"
                f" {some(f.name for f in files)}."
            )
    return [file for file in files if relative(file, folder) not in skipped], skipped


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
    return fnmatch(name, pattern.rstrip("/")) or any(
        fnmatch(part, pattern.rstrip("/")) for part in name.split("/")
    )


def relative(file: Path, folder: Path) -> str:
    return file.relative_to(folder).as_posix() if file.is_relative_to(folder) else file.as_posix()
