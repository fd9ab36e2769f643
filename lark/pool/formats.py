"""The layouts that pools come in: each reader yields raw records, one at a time, that know where they stand.

Nothing here holds more than a batch of records; what is wrong with a file is said with its name and the line or item.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from lark import config as conf
from lark.errors import LarkError

SPACE = " \t\r\n"
"""What JSON takes for white space."""
BOM = b"\xef\xbb\xbf"
ALIASES = {
    "question_id": ("question_id", "problem_id"),
    "question": ("question", "problem"),
    "response": ("response", "completion"),
}
"""Column names that are taken for ours when `pool.fields` does not say otherwise."""


@dataclass(frozen=True)
class Record:
    """A raw record and where it stands, for error messages."""

    values: Mapping[str, Any]
    where: str

    def get(self, name: str, pool: conf.Pool) -> Any:
        """The value of one of our columns, whatever the record calls it."""
        names = (pool.fields[name],) if name in pool.fields else ALIASES.get(name, (name,))
        return next((self.values[n] for n in names if self.values.get(n) is not None), None)


def turns(row: Record, pool: conf.Pool) -> tuple[str | None, str, str]:
    """System, question and response, from `messages` or from columns of their own."""
    messages = row.get("messages", pool)
    if messages is None:
        system, question, response = (row.get(name, pool) for name in ("system", "question", "response"))
        for name, value in (("question", question), ("response", response)):
            if value is not None and not isinstance(value, str):
                raise LarkError(f"{row.where}: `{name}` must be a text, not {value!r:.40}.")
            if value is None:
                raise LarkError(
                    f"{row.where}: there is no `{name}` (nor `messages`); it has {', '.join(row.values)}. "
                    f"Name the column with pool.fields.{name}=<column>."
                )
        if not isinstance(system, str | None):
            raise LarkError(f"{row.where}: `system` must be a string.")
    else:
        system, question, response = _roles(row, messages)
    return system, question, response


def _roles(row: Record, messages: Any) -> tuple[Any, Any, Any]:
    """The contents of a chat's system, user and assistant turns."""
    if isinstance(messages, str):
        try:
            messages = json.loads(messages)
        except json.JSONDecodeError as error:
            raise LarkError(f"{row.where}: `messages` is a text, but broken as JSON ({error.msg}).") from error
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
    """The files that a local pool is made of; what its fingerprint is taken from. None for a dataset of the hub."""
    if pool.format == "demo" or pool.path is None:
        return []
    path = Path(pool.path).expanduser()
    if pool.format == "hub":
        return sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith(".")) if path.is_dir() else []
    pattern = "*.json" if pool.format == "rsr" else "*"
    if path.is_dir():
        files = sorted(p for p in path.glob(pattern) if p.suffix in (".json", ".jsonl", ".parquet"))
    else:
        found = [path] if path.is_file() else Path(path.anchor).glob(str(path.relative_to(path.anchor)))
        files = sorted(p for p in found if p.is_file())
    if not files:
        raise LarkError(
            f"pool.path={pool.path}: there is no such file. Give a JSONL or Parquet file, a folder or a glob pattern."
        )
    return files


def _rows(pool: conf.Pool) -> Iterator[Record]:
    readers = {".parquet": _parquet_rows, ".json": _json_rows}
    for path in source_files(pool):
        yield from readers.get(path.suffix, jsonl_rows)(path)


def _json_rows(path: Path) -> Iterator[Record]:
    """A JSON list, or, where the first character says otherwise, JSON lines."""
    with path.open("rb") as handle:
        is_list = handle.read(1024).removeprefix(BOM).lstrip().startswith(b"[")
    if not is_list:
        yield from jsonl_rows(path)
        return
    for number, values in enumerate(_json_array(path), start=1):
        where = f"{path}, item {number}"
        if not isinstance(values, dict):
            raise LarkError(f"{where}: a JSON object is expected, one trajectory an item.")
        yield Record(values, where)


def jsonl_rows(path: Path) -> Iterator[Record]:
    """Its lines; empty ones are passed over."""
    with path.open("rb") as handle:
        for number, line in enumerate(handle, start=1):
            where = f"{path}, line {number}"
            if not line.strip():
                continue
            try:
                values = json.loads((line.removeprefix(BOM) if number == 1 else line).decode("utf-8"))
            except UnicodeDecodeError as error:
                raise LarkError(
                    f"{where}: not UTF-8 (byte {error.start}: {error.reason}). Convert the file to UTF-8."
                ) from error
            except json.JSONDecodeError as error:
                raise LarkError(f"{where}: broken JSON ({error.msg} at column {error.colno}).") from error
            if not isinstance(values, dict):
                raise LarkError(f"{where}: a JSON object is expected, one trajectory a line.")
            yield Record(values, where)


def _parquet_rows(path: Path) -> Iterator[Record]:
    number = 0
    try:
        # Small batches: the row groups of a file that others wrote may be of any size.
        for batch in pq.ParquetFile(path, pre_buffer=False).iter_batches(256):
            for values in batch.to_pylist():
                number += 1
                yield Record(values, f"{path}, row {number}")
    except (pa.ArrowException, OSError) as error:
        raise LarkError(f"{path}, after row {number}: not a Parquet file that can be read ({error}).") from error


def _hub_rows(pool: conf.Pool) -> Iterator[Record]:
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
        yield Record(values, f"{pool.path}, row {number}")


def _rsr_rows(pool: conf.Pool) -> Iterator[Record]:
    """The paper's layout. Every file must hold the same questions in the same order."""
    first: list[int] = []
    files = source_files(pool)
    names = teachers_and_rollouts([path.stem for path in files])
    for number, (path, (teacher, rollout)) in enumerate(zip(files, names, strict=True)):
        index = -1
        for index, values in enumerate(_json_array(path)):  # its last value is checked below
            where = f"{path}, item {index + 1}"
            if not isinstance(values, dict):
                raise LarkError(f"{where}: a JSON object with `messages` is expected.")
            row = Record({"question_id": f"{index:05d}", "teacher": teacher, "rollout": rollout,
                        "candidate_id": f"{teacher}.{rollout}", **values}, where)  # fmt: skip
            key = hash64(turns(row, pool)[1])
            if number == 0:
                first.append(key)
            elif index >= len(first) or first[index] != key:
                raise LarkError(f"{where}: not the question that stands there in {files[0].name}; the files are not aligned.")
            yield row
        if index + 1 != len(first):
            raise LarkError(f"{path}: {index + 1} items, but {files[0].name} has {len(first)}; the files are not aligned.")


def teachers_and_rollouts(stems: Sequence[str]) -> list[tuple[str, int]]:
    """What the names of a folder's files say: `qwq-32b_rollout2` -> ("qwq-32b", 2), `phi-4` -> ("phi-4", 0).

    A number at the end is the rollout if a word says so, or if several files differ in nothing else and their numbers count
    up from 0 or 1 (qwq-32b_1, qwq-32b_2, qwq-32b_3). Otherwise it is a part of the teacher's name, and the rollout is 0.
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


def _json_array(path: Path, chunk: int = 1 << 20) -> Iterator[Any]:
    """The items of a JSON list, one at a time: such files are too large to load whole."""
    decoder = json.JSONDecoder()
    try:
        with path.open(encoding="utf-8-sig") as handle:
            text = handle.read(chunk)
            at, number = _skip_space(text, 0), 0
            if not text.startswith("[", at):
                raise LarkError(f"{path}: a JSON list is expected, one item a question.")
            at += 1
            while True:
                at = _skip_space(text, at)
                if text.startswith("]", at):
                    _require_end(path, handle, text[at + 1 :], number)
                    return
                start = _skip_space(text, at + 1) if number and text.startswith(",", at) else at
                try:
                    if number and start == at:
                        raise json.JSONDecodeError("Expecting ',' or ']'", text, at)
                    item, end = decoder.raw_decode(text, start)
                except json.JSONDecodeError as error:
                    more = handle.read(max(chunk, len(text) - at))
                    if not more:
                        raise LarkError(f"{path}, item {number + 1}: broken JSON ({error.msg}).") from error
                    text, at = text[at:] + more, 0
                    continue
                number, at = number + 1, end
                yield item
    except UnicodeDecodeError as error:
        raise LarkError(f"{path}: not UTF-8 ({error.reason} at byte {error.start}). Convert the file to UTF-8.") from error


def _require_end(path: Path, handle: TextIO, rest: str, items: int) -> None:
    """Nothing may follow the list: a second one, as when files are put one behind the other, would be lost."""
    while True:
        if rest.strip(SPACE):
            raise LarkError(
                f"{path}: after the list of {items} items stands {rest.lstrip(SPACE)[:20]!r}. Make one list of the whole file."
            )
        rest = handle.read(1 << 20)
        if not rest:
            return


def _skip_space(text: str, at: int) -> int:
    match = re.compile(f"[{SPACE}]*").match(text, at)
    return match.end() if match else at


READERS: dict[str, Callable[[conf.Pool], Iterator[Record]]] = {"rows": _rows, "rsr": _rsr_rows, "hub": _hub_rows}


def hash64(*parts: str) -> int:
    text = "\x00".join(parts).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
