"""Read records of JSONL, JSON and Parquet files one at a time, each with its location for error messages.

At most one batch of records is in memory. Used for pools and training sets.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from lark import config as conf
from lark.errors import LarkError

SPACE = " \t\r\n"
"""White space in JSON."""
BOM = b"\xef\xbb\xbf"
ALIASES = {
    "question_id": ("question_id", "problem_id"),
    "question": ("question", "problem"),
    "response": ("response", "completion"),
}
"""Accepted names of a column, unless `pool.fields` sets another."""


@dataclass(frozen=True)
class Record:
    """A raw record and its location, for error messages."""

    values: Mapping[str, Any]
    where: str

    def get(self, name: str, pool: conf.Pool) -> Any:
        """The value of our column `name`, which may have another name in the record."""
        names = (pool.fields[name],) if name in pool.fields else ALIASES.get(name, (name,))
        return next((self.values[n] for n in names if self.values.get(n) is not None), None)


def json_rows(path: Path) -> Iterator[Record]:
    """Records of a JSON list, or of JSON Lines if the file does not start with `[`."""
    with path.open("rb") as handle:
        is_list = handle.read(1024).removeprefix(BOM).lstrip().startswith(b"[")
    if not is_list:
        yield from jsonl_rows(path)
        return
    for number, values in enumerate(json_array(path), start=1):
        where = f"{path}, item {number}"
        if not isinstance(values, dict):
            raise LarkError(f"{where}: a JSON object is expected, one trajectory per item.")
        yield Record(values, where)


def jsonl_rows(path: Path) -> Iterator[Record]:
    """Records of a JSON Lines file. Empty lines are skipped."""
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
                raise LarkError(f"{where}: a JSON object is expected, one trajectory per line.")
            yield Record(values, where)


def parquet_rows(path: Path) -> Iterator[Record]:
    number = 0
    try:
        # Small batches, because row groups of other writers can have any size.
        for batch in pq.ParquetFile(path, pre_buffer=False).iter_batches(256):
            for values in batch.to_pylist():
                number += 1
                yield Record(values, f"{path}, row {number}")
    except (pa.ArrowException, OSError) as error:
        raise LarkError(f"{path}, after row {number}: cannot be read as Parquet ({error}).") from error


def json_array(path: Path, chunk: int = 1 << 20) -> Iterator[Any]:
    """Yield the items of a JSON list one at a time. These files are too large to load as a whole."""
    decoder = json.JSONDecoder()
    try:
        with path.open(encoding="utf-8-sig") as handle:
            text = handle.read(chunk)
            at, number = _skip_space(text, 0), 0
            if not text.startswith("[", at):
                raise LarkError(f"{path}: a JSON list is expected, one item per question.")
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
    """Raise if anything follows the list: a second list, as in concatenated files, would be lost."""
    while True:
        if rest.strip(SPACE):
            raise LarkError(
                f"{path}: unexpected {rest.lstrip(SPACE)[:20]!r} after the list of {items} items. Put all items into one list."
            )
        rest = handle.read(1 << 20)
        if not rest:
            return


def _skip_space(text: str, at: int) -> int:
    match = re.compile(f"[{SPACE}]*").match(text, at)
    return match.end() if match else at


def hash64(*parts: str) -> int:
    text = "\x00".join(parts).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
