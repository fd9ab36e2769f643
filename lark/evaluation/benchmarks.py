"""Load benchmarks: a local JSONL, Parquet or CSV file, a hub dataset, or the generated demo. A new one is one YAML file."""

import hashlib
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lark.config import Task
from lark.errors import LarkError
from lark.evaluation import prompts

SYSTEM_PROMPTS = {"numeric": prompts.NUMERIC, "choice": prompts.CHOICE, "free_form": prompts.FREE_FORM}
LETTERS = "ABCDEFGHIJ"


@dataclass(frozen=True)
class Problem:
    """One problem of a benchmark."""

    id: str
    question: str
    answer: str
    level: int | None = None
    options: tuple[str, ...] = ()
    """Of a multiple-choice problem, as they were shown: the shuffle is stored, not only its seed."""


def load(name: str, task: Task) -> list[Problem]:
    """The problems of a benchmark, checked."""
    problems = [_problem(row, index, name, task) for index, row in enumerate(_rows(name, task))]
    if task.count is not None and len(problems) != task.count:
        raise LarkError(f"benchmark {name}: {task.path} has {len(problems)} problems, but the benchmark has {task.count}.")
    if len({problem.id for problem in problems}) != len(problems):
        raise LarkError(f"benchmark {name}: two problems have the same id (tasks.{name}.id_field={task.id_field}).")
    return problems[: task.limit]


def _problem(row: Mapping[str, Any], index: int, name: str, task: Task) -> Problem:
    def get(field: str) -> Any:
        value = row.get(field)
        if value is None or value == "" or value != value:  # noqa: PLR0124  # NaN: how Parquet files mark what is missing
            raise LarkError(
                f"benchmark {name}, problem {index + 1}: there is no `{field}`; it has {', '.join(row)}. "
                f"Set benchmark.tasks.{name}.question_field, answer_field and so on to its names."
            )
        return value

    question, answer = str(get(task.question_field)), str(get(task.answer_field))
    identity = str(get(task.id_field)) if task.id_field else str(index)
    level = _level(get(task.level_field), index, name) if task.level_field else None
    if not task.distractor_fields:
        return Problem(identity, question, answer, level)
    options = [answer, *(str(get(field)) for field in task.distractor_fields)]
    if len({option.strip() for option in options}) < len(options):
        raise LarkError(f"benchmark {name}, problem {index + 1}: two options are the same, so its answer has no one letter.")
    _shuffle(options, f"{name}/{question}")
    letter = LETTERS[options.index(answer)]
    listed = "\n".join(f"{LETTERS[i]}) {option.strip()}" for i, option in enumerate(options))
    return Problem(identity, f"{question.strip()}\n\n{listed}", letter, level, tuple(options))


def _level(value: Any, index: int, name: str) -> int:
    try:
        return int(value)
    except ValueError as error:
        raise LarkError(f"benchmark {name}, problem {index + 1}: its level {value!r} is no whole number.") from error


def _shuffle(options: list[str], key: str) -> None:
    """In an order that depends on the question alone, so that it is the same in every run and for every student."""
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
    random.Random(seed).shuffle(options)


def _rows(name: str, task: Task) -> Iterator[Mapping[str, Any]]:
    if task.path == "demo":
        from lark.demo.benchmarks import problems  # noqa: PLC0415  # the demo is generated, not read

        yield from problems(name)
        return
    if not task.path:
        raise LarkError(f"benchmark {name} needs its file: add benchmark.tasks.{name}.path=<JSONL, Parquet or CSV file>.")
    path = Path(task.path).expanduser()
    if path.is_file():
        yield from _file_rows(path)
    elif path.suffix in (".jsonl", ".json", ".parquet", ".csv"):
        raise LarkError(f"benchmark.tasks.{name}.path={task.path}: there is no such file.")
    else:
        yield from _hub_rows(name, task)


def _file_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    if path.suffix in (".parquet", ".csv"):
        import pandas as pd  # noqa: PLC0415  # JSONL needs none of it

        # As text: `073`, `1e5` and `NA` are answers, which pandas would read as numbers and nothing.
        table = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path, dtype=str, keep_default_na=False)
        yield from table.to_dict("records")  # type: ignore[misc]
        return
    with path.open(encoding="utf-8") as handle:
        for number, line in enumerate(handle, start=1):
            if line.strip():
                try:
                    yield json.loads(line)
                except json.JSONDecodeError as error:
                    raise LarkError(f"{path}, line {number}: broken JSON ({error.msg} at column {error.colno}).") from error


def _hub_rows(name: str, task: Task) -> Iterator[Mapping[str, Any]]:
    try:
        import datasets  # noqa: PLC0415  # only hub benchmarks need it
    except ImportError as error:
        raise LarkError(
            f"benchmark {name} is a hub dataset: pip install datasets, or give a file with tasks.{name}.path."
        ) from error
    try:
        yield from datasets.load_dataset(task.path, split=task.split, revision=task.revision)
    except Exception as error:
        raise LarkError(
            f"benchmark.tasks.{name}.path={task.path}: neither a file nor a hub dataset that can be read "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})."
        ) from error
