"""Teachers by the names of files, for pools with one file (or one folder) per teacher and no such column."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from lark.config import Source
from lark.pool.files import table_files
from lark.pool.rsr import teachers_and_rollouts

NOT_A_TEACHER = re.compile(
    r"(?:train|test|val|valid|validation|dev|eval|data|dataset|pool|part|chunk|shard|split|batch|file|rows"
    r"|rollouts?|results?|samples?|responses?|generations?|trajector(?:y|ies)|output|session|run)?"
    r"[-_.\d]*(?:of)?[-_.\d]*"
)
"""Names that are parts of a dataset, or say what the file has."""
ENVIRONMENT = re.compile(r".+?--(.+)")
"""The folder in which verifiers saves an evaluation: environment and model."""


def teachers_of_files(source: Source) -> dict[Path | None, str]:
    """The teacher of each file, if there are several files and their names are those of teachers."""
    if source.format != "rows":
        return {}
    files = table_files(source).files
    teachers = _by_folder(files) or _by_name(files)
    names = set(teachers.values())
    is_one_each = len(names) > 1 and not any(NOT_A_TEACHER.fullmatch(name.lower()) for name in names)
    return teachers if is_one_each else {}


def _by_folder(files: Sequence[Path]) -> dict[Path | None, str]:
    """Teachers by the first folder in which the files' paths differ; empty if they are all in one."""
    if len({file.parent for file in files}) < 2:
        return {}
    root = Path(os.path.commonpath([file.parent for file in files]))
    parts = {file: file.relative_to(root).parts for file in files}
    if any(len(path) < 2 for path in parts.values()):
        return {}
    return {file: _without_environment(path[0]) for file, path in parts.items()}


def _by_name(files: Sequence[Path]) -> dict[Path | None, str]:
    stems = [file.name.split(".json")[0].rsplit(".parquet", 1)[0].rsplit(".csv", 1)[0] for file in files]
    names = teachers_and_rollouts(stems)
    return {file: teacher for file, (teacher, _) in zip(files, names, strict=True)}


def _without_environment(name: str) -> str:
    match = ENVIRONMENT.fullmatch(name)
    return match[1].replace("--", "/") if match else name
