"""The paper's pool: JSON lists with the same questions in the same order, one for each teacher and rollout.

Two arrangements are read: all files in one folder and named after teacher and rollout, and, as published
(`Umean/RSR_data`), a folder for each teacher with a file for each rollout.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lark.config import Source
from lark.errors import LarkError
from lark.pool import files as pool_files
from lark.pool.files import SourceFiles, readable, relative
from lark.pool.hashing import hash64
from lark.printing import some
from lark.reading.rows import Row, ending, is_json_list, json_array

SELECTED = "selected_by_rsr"
"""A folder of the published dataset that is left out."""
SELECTION_REASON = "a selection from the pool, not a teacher"
WORDS = "rollout|run|sample|seed|generation|gen"
"""Words that mark a number at the end of a file's name as the rollout."""


@dataclass(frozen=True)
class TeacherFile:
    """The trajectories of one teacher's rollout."""

    path: Path
    teacher: str
    rollout: int
    candidate: str


def rsr_files(source: Source) -> SourceFiles:
    """The pool's files, flat or in a folder per teacher."""
    with readable(source):
        path = Path(source.path or "").expanduser()
        if path.is_file():
            return SourceFiles([path])
        _check_folder(path, source)
        candidates, skipped = pool_files.split_excluded(pool_files.visible_files(path), path, source)
        lists = [file for file in candidates if _may_be_teachers(relative(file, path))]
        flat = [file for file in lists if file.parent == path]
        nested = [file for file in lists if file.parent.parent == path]
        # A published dataset may have other JSON files beside the teachers' folders, but no lists.
        is_nested = bool(nested) and not any(map(is_json_list, flat))
    files = nested if is_nested else flat
    _check_lists(files, skipped, source)
    for file in candidates:
        name = relative(file, path)
        if file not in files:
            is_selection = pool_files.is_excluded(name, SELECTED)
            skipped[name] = SELECTION_REASON if is_selection else "not a teacher's JSON file"
    return SourceFiles(files, skipped, _check_folders(path, files) if is_nested else [])


def _may_be_teachers(name: str) -> bool:
    return ending(Path(name)) == ".json" and not pool_files.is_excluded(name, SELECTED)


def _check_folder(path: Path, source: Source) -> None:
    if not path.is_dir():
        raise LarkError(
            f"pool.path={source.path}: there is no such file. Give the folder with the pool's JSON files, or"
            " a dataset id."
        )


def _check_lists(files: list[Path], skipped: Mapping[str, str], source: Source) -> None:
    if not files:
        pool_files.refuse_excluded(skipped, source)
        raise LarkError(f"pool.path={source.path}: there is no such file: the folder has no JSON files.")


def _check_folders(path: Path, files: list[Path]) -> list[str]:
    """Refuse a folder with other files than most folders have: it is not a teacher's. Returns notes on
    files that are missing.
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
    notes = []
    for folder, names in folders.items():
        missing = sorted(usual - names)
        if missing:
            notes.append(f"{folder.name}: {some(missing)} is missing; most folders have it.")
    return notes


def teacher_files(source: Source, files: Sequence[Path]) -> list[TeacherFile]:
    """The teacher and rollout of each file. In a folder per teacher, the folder's name is the teacher."""
    root = Path(source.path or "").expanduser()
    if all(root not in (file.parent, file) for file in files):
        return _in_teachers_folders(files)
    names = teachers_and_rollouts([_stem(file) for file in files])
    named = zip(files, names, strict=True)
    return [TeacherFile(file, teacher, rollout, f"{teacher}.{rollout}") for file, (teacher, rollout) in named]


def _in_teachers_folders(files: Sequence[Path]) -> list[TeacherFile]:
    rollouts = {file: _rollout(file) for file in files}
    times = Counter((file.parent, rollout) for file, rollout in rollouts.items())
    teachers = []
    for file, rollout in rollouts.items():
        teacher = file.parent.name
        # Files may have names without a number: then all of them have rollout 0, and their names differ.
        is_unique = times[file.parent, rollout] == 1
        candidate = f"{teacher}.{rollout}" if is_unique else f"{teacher}.{_stem(file)}"
        teachers.append(TeacherFile(file, teacher, rollout, candidate))
    return teachers


def _rollout(file: Path) -> int:
    """The rollout by the file's name alone: the folder's name is the teacher."""
    ((_, rollout),) = teachers_and_rollouts([_stem(file)])
    return rollout


def _stem(file: Path) -> str:
    return file.name[: file.name.lower().rindex(".json")]


def rsr_rows(source: Source, files: Sequence[Path], question: Callable[[Row], str]) -> Iterator[Row]:
    """The rows of all files, with the teacher and rollout of their file. All files must have the same
    questions in the same order. `question` reads a row's question.
    """
    first: list[int] = []
    """Hashes of the questions in the first file."""
    for number, file in enumerate(teacher_files(source, files)):
        count = 0
        for row in _file_rows(file):
            key = hash64(question(row))
            if number == 0:
                first.append(key)
            _check_order(key, first[count : count + 1], files[0].name, row.where)
            count += 1
            yield row
        _check_count(count, len(first), files[0].name, file.path)


def _file_rows(file: TeacherFile) -> Iterator[Row]:
    for index, values in enumerate(json_array(file.path)):
        where = f"{file.path}, item {index + 1}"
        if not isinstance(values, dict):
            raise LarkError(f"{where}: a JSON object with `messages` is expected.")
        yield Row(_with_names(values, file, index), where)


def _check_order(key: int, expected: list[int], first: str, where: str) -> None:
    """Refuse another question than the first file has at this position, or one beyond its end."""
    if expected != [key]:
        raise LarkError(
            f"{where}: the question differs from the one at this position in {first}; all files must have the"
            " same questions in the same order. To leave files out, use pool.exclude=[<file or folder>]."
        )


def _check_count(count: int, expected: int, first: str, path: Path) -> None:
    if count != expected:
        raise LarkError(
            f"{path}: {count} items, but {first} has {expected}; all files must have the same questions. To"
            " leave files out, use pool.exclude=[<file or folder>]."
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
    for numbered in filter(None, matches):
        numbers[numbered[1]].append(int(numbered[3]))

    names: list[tuple[str, int]] = []
    for stem, match in zip(stems, matches, strict=True):
        if match and (match[2] or _counts_up(numbers[match[1]])):
            names.append((match[1], int(match[3])))
        else:
            names.append((stem, 0))
    return names


def _counts_up(numbers: Sequence[int]) -> bool:
    """Whether there are several numbers, and they count up from 0 or 1."""
    count = len(numbers)
    return count > 1 and sorted(numbers) in (list(range(count)), list(range(1, count + 1)))
