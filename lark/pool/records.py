"""Records of JSONL, JSON and Parquet files, one at a time, each with the place it comes from, for error messages.

Nothing here holds more than a batch of records. Pools and training sets are read through this.
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


def json_rows(path: Path) -> Iterator[Record]:
    """A JSON list, or, where the first character says otherwise, JSON lines."""
    with path.open("rb") as handle:
        is_list = handle.read(1024).removeprefix(BOM).lstrip().startswith(b"[")
    if not is_list:
        yield from jsonl_rows(path)
        return
    for number, values in enumerate(json_array(path), start=1):
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


def parquet_rows(path: Path) -> Iterator[Record]:
    number = 0
    try:
        # Small batches: the row groups of a file that others wrote may be of any size.
        for batch in pq.ParquetFile(path, pre_buffer=False).iter_batches(256):
            for values in batch.to_pylist():
                number += 1
                yield Record(values, f"{path}, row {number}")
    except (pa.ArrowException, OSError) as error:
        raise LarkError(f"{path}, after row {number}: not a Parquet file that can be read ({error}).") from error


def json_array(path: Path, chunk: int = 1 << 20) -> Iterator[Any]:
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


def hash64(*parts: str) -> int:
    text = "\x00".join(parts).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
