"""Readers for the layouts of pools. Each yields raw records, one at a time, with their location.

Readers hold at most one batch of records in memory. Errors name the file and the line or item.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lark import config as conf
from lark.errors import LarkError
from lark.pool.hashing import hash64
from lark.reading.rows import Row, is_table, json_array, rows
from lark.reading.untrusted import parse

ALIASES = {
    "question_id": ("question_id", "problem_id"),
    "question": ("question", "problem"),
    "response": ("response", "completion"),
}
"""Accepted names of a column, unless `pool.fields` sets another."""


def value(row: Row, name: str, pool: conf.Pool) -> Any:
    """The value of our column `name`, which may have another name in the row."""
    names = (pool.fields[name],) if name in pool.fields else ALIASES.get(name, (name,))
    return next((row.values[n] for n in names if row.values.get(n) is not None), None)


def turns(row: Row, pool: conf.Pool) -> tuple[str | None, str, str]:
    """System, question and response, from `messages` or from separate columns."""
    messages = value(row, "messages", pool)
    if messages is None:
        system, question, response = (value(row, name, pool) for name in ("system", "question", "response"))
        for name, text in (("question", question), ("response", response)):
            if text is not None and not isinstance(text, str):
                raise LarkError(f"{row.where}: `{name}` must be a string, not {text!r:.40}.")
            if text is None:
                raise LarkError(
                    f"{row.where}: there is no `{name}` and no `messages`; the row has {', '.join(row.values)}. "
                    f"Name the column with pool.fields.{name}=<column>."
                )
        if not isinstance(system, str | None):
            raise LarkError(f"{row.where}: `system` must be a string.")
    else:
        system, question, response = _roles(row, messages)
    return system, question, response


def _roles(row: Row, messages: Any) -> tuple[Any, Any, Any]:
    """The contents of a chat's system, user and assistant turns."""
    if isinstance(messages, str):
        messages = parse(messages, f"{row.where}: `messages` is a string")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise LarkError(f"{row.where}: `messages` must be a list of objects with `role` and `content`.")
    roles = [message.get("role") for message in messages]
    if roles not in (["user", "assistant"], ["system", "user", "assistant"]):
        raise LarkError(
            f"{row.where}: `messages` must be an optional system turn, one user turn and one assistant turn; "
            f"it has {', '.join(map(str, roles)) or 'none'}."
        )
    contents = [message.get("content") for message in messages]
    if not all(isinstance(content, str) for content in contents):
        raise LarkError(f"{row.where}: the content of every message must be a string.")
    return (contents[0] if len(contents) == 3 else None), contents[-2], contents[-1]


def source_files(pool: conf.Pool) -> list[Path]:
    """The files of a local pool, used for its fingerprint. Empty for the demo and for a dataset on the hub."""
    if pool.format == "demo" or pool.path is None:
        return []
    path = Path(pool.path).expanduser()
    if pool.format == "hub":
        return sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith(".")) if path.is_dir() else []
    pattern = "*.json" if pool.format == "rsr" else "*"
    if path.is_dir():
        files = sorted(p for p in path.glob(pattern) if is_table(p))
    else:
        found = [path] if path.is_file() else Path(path.anchor).glob(str(path.relative_to(path.anchor)))
        files = sorted(p for p in found if p.is_file())
    if not files:
        raise LarkError(
            f"pool.path={pool.path}: there is no such file. Give a JSONL or Parquet file, a folder or a glob pattern."
        )
    return files


def _rows(pool: conf.Pool) -> Iterator[Row]:
    for path in source_files(pool):
        yield from rows(path)


def _hub_rows(pool: conf.Pool) -> Iterator[Row]:
    try:
        import datasets  # noqa: PLC0415  # only this format needs it
    except ImportError as error:
        raise LarkError("pool.format=hub needs the `datasets` package: pip install datasets.") from error
    assert pool.path is not None
    folder = Path(pool.path).expanduser()
    try:
        if (folder / "dataset_info.json").exists() or (folder / "dataset_dict.json").exists():
            data = datasets.load_from_disk(str(folder))
            data = data[pool.split] if isinstance(data, datasets.DatasetDict) else data
        else:
            data = datasets.load_dataset(pool.path, split=pool.split, revision=pool.revision, streaming=True)
    except Exception as error:
        raise LarkError(f"pool.path={pool.path}: the dataset cannot be read ({type(error).__name__}: {error}).") from error
    for number, values in enumerate(data, start=1):
        yield Row(values, f"{pool.path}, row {number}")


def _rsr_rows(pool: conf.Pool) -> Iterator[Row]:
    """The paper's layout. All files must have the same questions in the same order."""
    first: list[int] = []
    files = source_files(pool)
    names = teachers_and_rollouts([path.stem for path in files])
    for number, (path, (teacher, rollout)) in enumerate(zip(files, names, strict=True)):
        index = -1
        for index, values in enumerate(json_array(path)):  # its last value is checked below
            where = f"{path}, item {index + 1}"
            if not isinstance(values, dict):
                raise LarkError(f"{where}: a JSON object with `messages` is expected.")
            row = Row({"question_id": f"{index:05d}", "teacher": teacher, "rollout": rollout,
                        "candidate_id": f"{teacher}.{rollout}", **values}, where)  # fmt: skip
            key = hash64(turns(row, pool)[1])
            if number == 0:
                first.append(key)
            elif index >= len(first) or first[index] != key:
                raise LarkError(
                    f"{where}: the question differs from the one at this position in {files[0].name}; "
                    "all files must have the same questions in the same order."
                )
            yield row
        if index + 1 != len(first):
            raise LarkError(
                f"{path}: {index + 1} items, but {files[0].name} has {len(first)}; all files must have the same questions."
            )


def teachers_and_rollouts(stems: Sequence[str]) -> list[tuple[str, int]]:
    """Teachers and rollouts from file names: `qwq-32b_rollout2` -> ("qwq-32b", 2), `phi-4` -> ("phi-4", 0).

    A number at the end is the rollout if a word marks it as one, or if several files differ in nothing else and their numbers
    count up from 0 or 1 (qwq-32b_1, qwq-32b_2, qwq-32b_3). Otherwise it is part of the teacher's name, and the rollout is 0.
    """
    matches = [re.fullmatch(r"(.+?)[._-]+(?:(rollout|run|sample|seed)|r|v)?[._-]?(\d+)", stem) for stem in stems]
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


READERS: dict[str, Callable[[conf.Pool], Iterator[Row]]] = {"rows": _rows, "rsr": _rsr_rows, "hub": _hub_rows}
