"""The paper's pool: JSON lists with the same questions in the same order, one for each teacher and rollout.

Two arrangements are read: all files in one folder and named after teacher and rollout, and, as published
(`Umean/RSR_data`), a folder for each teacher with a file for each rollout.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lark.config import Source
from lark.errors import LarkError
from lark.pool.files import (
    Found,
    is_excluded,
    readable,
    refuse_excluded,
    relative,
    some,
    split_excluded,
    visible_files,
)
from lark.pool.hashing import hash64
from lark.reading.rows import Row, ending, is_json_list, json_array

NOT_TEACHERS = {"selected_by_rsr": "a selection from the pool, not a teacher"}
"""Folders of the published dataset that are left out."""
WORDS = "rollout|run|sample|seed|generation|gen"
"""Words that mark a number at the end of a file's name as the rollout."""


@dataclass(frozen=True)
class TeacherFile:
    """The trajectories of one teacher's rollout."""

    path: Path
    teacher: str
    rollout: int
    candidate: str


def rsr_files(source: Source) -> Found:
    """The pool's files, flat or in a folder per teacher."""
    with readable(source):
        path = Path(source.path or "").expanduser()
        if path.is_file():
            return Found([path])
        if not path.is_dir():
            raise LarkError(
                f"pool.path={source.path}: there is no such file. Give the folder with the pool's JSON files,"
                " or a dataset id."
            )
        kept, skipped = split_excluded(visible_files(path), path, source)
        for name, reason in NOT_TEACHERS.items():
            skipped |= {
                relative(file, path): reason for file in kept if is_excluded(relative(file, path), name)
            }
        lists = [file for file in kept if relative(file, path) not in skipped and ending(file) == ".json"]
        flat = [file for file in lists if file.parent == path]
        nested = [file for file in lists if file.parent.parent == path]
        files = flat if any(map(is_json_list, flat)) or not nested else nested
    if not files:
        refuse_excluded(skipped, source)
        raise LarkError(f"pool.path={source.path}: there is no such file: the folder has no JSON files.")
    skipped = {
        relative(file, path): "not a teacher's JSON file" for file in kept if file not in set(files)
    } | skipped
    return Found(files, skipped, _check_folders(path, files) if files is nested else [])


def _check_folders(path: Path, files: list[Path]) -> list[str]:
    """Every folder has files with the names that most folders have, or it is not a teacher's. Returns what
    is missing.
    """
    folders: defaultdict[Path, set[str]] = defaultdict(set)
    for file in files:
        folders[file.parent].add(file.name)
    counts = Counter(name for names in folders.values() for name in names)
    usual = {name for name, count in counts.items() if count > len(folders) / 2}
    for folder, names in folders.items():
        if usual and not names <= usual:
            raise LarkError(
                f"{folder}: it has {some(sorted(names - usual))}, which most of the {len(folders)} folders in"
                f" {path} do not have. If it is not a teacher's folder, leave it out with"
                f" pool.exclude=[{folder.name}]."
            )
    return [
        f"{folder.name}: {some(sorted(usual - names))} is missing; most folders have it."
        for folder, names in folders.items()
        if usual - names
    ]


def teacher_files(source: Source, files: Sequence[Path]) -> list[TeacherFile]:
    """The teacher and rollout of each file. In a folder per teacher, the folder's name is the teacher."""
    root = Path(source.path or "").expanduser()
    if all(root not in (file.parent, file) for file in files):
        rollouts = [teachers_and_rollouts([_stem(file)])[0][1] for file in files]
        times = Counter((file.parent, rollout) for file, rollout in zip(files, rollouts, strict=True))
        return [
            TeacherFile(
                file, name, rollout, f"{name}.{rollout if times[file.parent, rollout] == 1 else _stem(file)}"
            )
            for file, rollout in zip(files, rollouts, strict=True)
            for name in [file.parent.name]
        ]
    names = teachers_and_rollouts([_stem(file) for file in files])
    return [
        TeacherFile(file, teacher, rollout, f"{teacher}.{rollout}")
        for file, (teacher, rollout) in zip(files, names, strict=True)
    ]


def _stem(file: Path) -> str:
    return file.name[: file.name.lower().rindex(".json")]


def rsr_rows(source: Source, files: Sequence[Path], question: Callable[[Row], str]) -> Iterator[Row]:
    """The rows of all files, with the teacher and rollout of their file. All files must have the same
    questions in the same order. `question` reads a row's question.
    """
    first: list[int] = []
    for number, file in enumerate(teacher_files(source, files)):
        index = -1
        for index, values in enumerate(json_array(file.path)):  # its last value is checked below
            where = f"{file.path}, item {index + 1}"
            if not isinstance(values, dict):
                raise LarkError(f"{where}: a JSON object with `messages` is expected.")
            row = Row(_with_names(values, file, index), where)
            key = hash64(question(row))
            if number == 0:
                first.append(key)
            elif index >= len(first) or first[index] != key:
                raise LarkError(
                    f"{where}: the question differs from the one at this position in {files[0].name}; all"
                    " files must have the same questions in the same order. To leave files out, use"
                    " pool.exclude=[<file or folder>]."
                )
            yield row
        if index + 1 != len(first):
            raise LarkError(
                f"{file.path}: {index + 1} items, but {files[0].name} has {len(first)}; all files must have"
                " the same questions. To leave files out, use pool.exclude=[<file or folder>]."
            )


def question_name(index: int) -> str:
    """The id of a question of this pool: its place in every file, from 0 (the paper's pid)."""
    return f"{index:05d}"


def _with_names(values: dict[str, Any], file: TeacherFile, index: int) -> dict[str, Any]:
    return {
        "question_id": question_name(index),
        "teacher": file.teacher,
        "rollout": file.rollout,
        "candidate_id": file.candidate,
        **values,
    }


def teachers_and_rollouts(stems: Sequence[str]) -> list[tuple[str, int]]:
    """Teachers and rollouts from file names: `qwq-32b_rollout2` -> ("qwq-32b", 2), `phi-4` -> ("phi-4", 0).

    A number at the end is the rollout if a word marks it as one, or if several files differ in nothing else
    and their numbers count up from 0 or 1 (qwq-32b_1, qwq-32b_2, qwq-32b_3). Otherwise it is part of the
    teacher's name, and the rollout is 0. So are numbers of more than nine digits, such as dates.
    """
    matches = [re.fullmatch(rf"(.+?)[._-]+(?:({WORDS})|r|v)?[._-]?(\d{{1,9}})", stem) for stem in stems]
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for match in filter(None, matches):
        numbers[match[1]].append(int(match[3]))

    def counts_up(teacher: str) -> bool:
        found = sorted(numbers[teacher])
        return len(found) > 1 and found[0] in (0, 1) and found == list(range(found[0], found[0] + len(found)))

    return [
        (match[1], int(match[3])) if match and (match[2] or counts_up(match[1])) else (stem, 0)
        for stem, match in zip(stems, matches, strict=True)
    ]
