"""Rows of JSONL, JSON, Parquet and CSV files, one at a time. At most one batch of rows is in memory."""

import bz2
import contextlib
import csv
import gzip
import io
import json
import lzma
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import IO, Any, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lark.errors import LarkError, first_line
from lark.reading.untrusted import BOM, DECODER, described, parse_object, problem

SPACE = " \t\r\n"
"""White space in JSON."""
LONGEST = 1 << 28
"""Longest line or list item in bytes. Longer ones are refused, because they would fill the memory."""
LONGEST_FIELD = 1 << 27
"""Longest field of a CSV file."""
WHOLE = re.compile(r"0|-?[1-9][0-9]*")
"""A whole number as Python writes it."""


@dataclass(frozen=True)
class Row:
    """The values of a row and its location, for error messages."""

    values: Mapping[str, Any]
    where: str


class FloatText(str):
    """A value of a CSV column in which every value is written as Python and pandas write a float: `5.0`,
    not `5` or `5.00`.
    """

    __slots__ = ()


class MixedFloatText(str):
    """A float, such as `5.0`, of a CSV column that has whole numbers too. As an id it is a number: a file
    may be made of parts of which only some have floats. As an answer it is text.
    """

    __slots__ = ()


class ShortFloat(float):
    """A value of a column with less than 64 bits, as the number that its shortest text means: 0.1, not
    0.10000000149011612.
    """

    __slots__ = ()


def plain_text(value: object) -> str:
    """A value as text. Whole floats and decimals lose their `.0`: tables often store the answer 5 as 5.0.
    No number has an exponent: 1e-05, which is how Python writes 0.00001, is not how an answer is written.
    Text is unchanged, except FloatText.
    """
    if isinstance(value, FloatText):
        value = float(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, float | Decimal) and math.isfinite(value):
        text = f"{value if isinstance(value, Decimal) else Decimal(str(value)):f}"
        return text.rstrip("0").rstrip(".") if isinstance(value, Decimal) and "." in text else text
    return str(value)


def id_text(value: object) -> str:
    """An id as text: 7, 7.0 and `7 ` are the same id, because a table stores the integers of a column with
    a gap as floats.
    """
    return plain_text(FloatText(value) if isinstance(value, MixedFloatText) else value).strip()


def is_invisible(text: str) -> bool:
    """Whether a text has no visible character: it is empty, or only white space and marks such as a
    zero-width space. A lone surrogate is half of a character, so such a text is damaged and not empty.
    """
    return not any(_is_visible(character) or "\ud800" <= character <= "\udfff" for character in text)


def _is_visible(character: str) -> bool:
    return character.isprintable() and not character.isspace()


def rows(path: Path) -> Iterator[Row]:
    """Rows of a file by its ending (see READERS); files with an unknown ending are JSON Lines."""
    return READERS.get(ending(path), json_rows)(path)


def ending(path: Path) -> str:
    """The ending that decides how a file is read: `.jsonl` for `Pool.JSONL.gz`."""
    return Path(path.stem.lower()).suffix if compression(path) else path.suffix.lower()


def compression(path: Path) -> str | None:
    """The ending of a compressed file."""
    return next((end for end in COMPRESSED if path.name.lower().endswith(end)), None)


def is_table(path: Path) -> bool:
    """Whether the file's ending names a format that `rows` reads."""
    return ending(path) in READERS


def is_json_list(path: Path) -> bool:
    """Whether the file starts with `[`."""
    with _opened(path) as handle:
        return handle.read(1024).removeprefix(BOM).lstrip().startswith(b"[")


def json_rows(path: Path) -> Iterator[Row]:
    """Rows of a JSON list, or of JSON Lines if the file does not start with `[`."""
    if not is_json_list(path):
        yield from jsonl_rows(path)
        return
    for number, values in enumerate(json_array(path), start=1):
        where = f"{path}, item {number}"
        if not isinstance(values, dict):
            raise LarkError(f"{where}: a JSON object is expected, {{…}}, not {described(values)}.")
        yield Row(values, where)


def jsonl_rows(path: Path) -> Iterator[Row]:
    """Rows of a JSON Lines file. Empty lines are skipped."""
    with _opened(path) as handle:
        number, found = 0, False
        while line := handle.readline(LONGEST + 1):
            number += 1
            where = f"{path}, line {number}"
            if len(line) > LONGEST:
                raise LarkError(
                    f"{where}: the line is longer than {LONGEST >> 20} MiB. Split the file into one row per"
                    " line."
                )
            if line.strip():
                try:
                    values = parse_object(line, where)
                except LarkError as error:
                    raise error if found else LarkError(f"{error} {_expected(path)}") from error
                found = True
                yield Row(values, where)


def _expected(path: Path) -> str:
    """What a file must look like whose first row cannot be read."""
    known = ", ".join(READERS)
    why = "" if is_table(path) else f", because its ending {ending(path)!r} is not one of {known}"
    return (
        f"The file is read as JSON Lines{why}: write every row as an object on a line of its own, or all rows"
        " as one list, […]."
    )


def parquet_rows(path: Path) -> Iterator[Row]:
    """Rows of a Parquet file, in small batches, because row groups of other writers can have any size."""
    number = 0
    try:
        file = pq.ParquetFile(path, pre_buffer=False)
        _check_columns(path, file.schema_arrow.names)
        for batch in file.iter_batches(256):
            narrow = {field.name: NARROW[field.type] for field in batch.schema if field.type in NARROW}
            for values in batch.to_pylist():
                number += 1
                values |= {name: _shortest(values[name], kind) for name, kind in narrow.items()}
                yield Row(values, f"{path}, row {number}")
    except (pa.ArrowException, OSError, OverflowError, ValueError) as error:
        raise LarkError(
            f"{path}, after row {number}: cannot be read as Parquet ({first_line(error)})."
        ) from error


NARROW: dict[pa.DataType, Callable[[float], np.floating[Any]]] = {
    pa.float32(): np.float32,
    pa.float16(): np.float16,
}


def _shortest(value: float | None, narrow: Callable[[float], np.floating[Any]]) -> float | None:
    """A narrow float as the number that its shortest text means."""
    return None if value is None else ShortFloat(str(narrow(value)))


def csv_table_rows(path: Path) -> Iterator[Row]:
    """`csv_rows`, with floats as FloatText or MixedFloatText in columns of numbers. The file is read twice,
    because all of a column decides.
    """
    columns: dict[str, type[FloatText | MixedFloatText]] = {}
    with contextlib.suppress(LarkError):  # raised again below, after the rows before it
        columns = _number_columns(csv_rows(path))
    for row in csv_rows(path):
        floats = {
            name: kind(row.values[name]) for name, kind in columns.items() if _is_float(row.values[name])
        }
        yield Row({**row.values, **floats}, row.where)


def _number_columns(rows: Iterator[Row]) -> dict[str, type[FloatText | MixedFloatText]]:
    """Columns with a value, in which every value is written as Python writes a number, and what their
    floats are. The others are text: `007`, `1e5`, `2.50`.
    """
    text: set[str] = set()
    numbers: set[str] = set()
    mixed: set[str] = set()
    for row in rows:
        numbers |= {name for name, value in row.values.items() if value and name not in text}
        mixed |= {name for name in numbers if WHOLE.fullmatch(row.values[name])}
        text |= {name for name in numbers if row.values[name] and not _is_number(row.values[name])}
        numbers -= text
        if len(text) == len(row.values):
            break
    return {name: MixedFloatText if name in mixed else FloatText for name in numbers}


def _is_number(text: str) -> bool:
    return WHOLE.fullmatch(text) is not None or _is_float(text)


def _is_float(text: str) -> bool:
    try:
        return repr(float(text)) == text and math.isfinite(float(text))
    except ValueError:
        return False


def csv_rows(path: Path, spaced: bool = False) -> Iterator[Row]:
    """Rows of a CSV file with a header. Values are strings; a row must have as many values as the header
    has names.

    A missing or additional comma would shift values into other columns, so ragged rows are refused.
    `spaced`: spaces after commas do not belong to the values.
    """
    csv.field_size_limit(LONGEST_FIELD)
    with _opened(path) as handle:
        text = io.TextIOWrapper(handle, encoding="utf-8-sig", newline="")
        reader = csv.reader(text, strict=True, skipinitialspace=spaced)
        try:
            header = next(reader, None)
            if header is None:
                return
            _check_columns(path, [name for name in header if name.strip()])
            for values in reader:
                if values:
                    yield Row(_csv_row(header, values, where := f"{path}, line {reader.line_num}"), where)
        except csv.Error as error:
            raise LarkError(
                f"{path}, line {reader.line_num}: cannot be read as CSV ({first_line(error)})."
            ) from error
        except UnicodeDecodeError as error:
            raise LarkError(f"{path}, after line {reader.line_num}: {problem(error)}.") from error


def _csv_row(header: list[str], values: list[str], where: str) -> dict[str, str]:
    if len(values) != len(header):
        raise LarkError(
            f"{where}: {len(values)} values, but the header has {len(header)} columns ({', '.join(header)})."
            " Put a value that contains a comma in double quotes, and remove commas at the end of the line."
        )
    if any(value and not name.strip() for name, value in zip(header, values, strict=True)):
        raise LarkError(f"{where}: a value in a column without a name. Name every column in the header.")
    return {name: value for name, value in zip(header, values, strict=True) if name.strip()}


def _check_columns(path: Path, names: list[str]) -> None:
    (name, times), *_ = Counter(names).most_common(1) or [("", 0)]
    if times > 1:
        raise LarkError(f"{path}: the column {name!r} appears {times} times. Give every column its own name.")


def json_array(path: Path, chunk: int = 1 << 20) -> Iterator[Any]:
    """Yield the items of a JSON list one at a time. These files are too large to load as a whole."""
    try:
        with _opened(path) as binary, io.TextIOWrapper(binary, encoding="utf-8-sig") as handle:
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
                    item, end = DECODER.raw_decode(text, start)
                except json.JSONDecodeError as error:
                    more = handle.read(max(chunk, len(text) - at)) if len(text) - at < LONGEST else ""
                    if not more:
                        raise LarkError(f"{path}, item {number + 1}: broken JSON ({error.msg}).") from error
                    text, at = text[at:] + more, 0
                    continue
                except (ValueError, RecursionError) as error:
                    raise LarkError(f"{path}, item {number + 1}: {problem(error)}.") from error
                number, at = number + 1, end
                yield item
    except UnicodeDecodeError as error:
        raise LarkError(f"{path}: {problem(error)}.") from error


def _require_end(path: Path, handle: TextIO, rest: str, items: int) -> None:
    """Raise if anything follows the list: a second list, as in concatenated files, would be lost."""
    while True:
        if rest.strip(SPACE):
            raise LarkError(
                f"{path}: unexpected {rest.lstrip(SPACE)[:20]!r} after the list of {items} items. Put all"
                " items into one list."
            )
        rest = handle.read(1 << 20)
        if not rest:
            return


def _skip_space(text: str, at: int) -> int:
    match = re.compile(f"[{SPACE}]*").match(text, at)
    return match.end() if match else at


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, decompressed if its ending says so."""
    try:
        with path.open("rb") as raw:
            packed = compression(path)
            yield COMPRESSED[packed](raw) if packed else raw
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or first_line(error)
        raise LarkError(f"{path}: cannot be read ({reason}).") from error


class _Streams(io.RawIOBase):
    """The bytes of one or more compressed streams. Anything else after a stream is an error: Python's own
    readers stop there, and a stream behind it would be lost.
    """

    def __init__(
        self,
        raw: IO[bytes],
        start: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor],
        padding: bytes = b"",
    ) -> None:
        """`padding`: what the format allows between and after streams."""
        self.raw, self.start, self.padding, self.stream = raw, start, padding, start()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = b""
        while not data:
            if self.stream.eof:
                rest = self.stream.unused_data.lstrip(self.padding)
                while not rest and (more := self.raw.read(1 << 20)):
                    rest = more.lstrip(self.padding)
                if not rest:
                    return 0
                self.stream = self.start()
                data = self.stream.decompress(rest, len(buffer))
                continue
            given = self.raw.read(1 << 20) if self.stream.needs_input else b""
            if self.stream.needs_input and not given:
                raise EOFError("Compressed file ended before the end-of-stream marker was reached")
            data = self.stream.decompress(given, len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _zstandard(raw: IO[bytes]) -> IO[bytes]:
    return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd"))


COMPRESSED: dict[str, Callable[[IO[bytes]], IO[bytes]]] = {
    ".gz": lambda raw: gzip.GzipFile(fileobj=raw),  # type: ignore[dict-item, return-value]
    ".bz2": lambda raw: io.BufferedReader(_Streams(raw, bz2.BZ2Decompressor)),
    ".xz": lambda raw: io.BufferedReader(_Streams(raw, lzma.LZMADecompressor, b"\0")),
    ".zst": _zstandard,
}
"""How compressed files are opened, by their ending in lower case."""
READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": json_rows,
    ".json": json_rows,
    ".ndjson": json_rows,
    ".parquet": parquet_rows,
    ".csv": csv_table_rows,
}
"""How files are read, by their ending in lower case and without that of a compression."""
