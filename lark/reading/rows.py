"""Rows of JSONL, JSON, Parquet and CSV files, one at a time. At most one batch of rows is in memory."""

import contextlib
import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lark.errors import LarkError, first_line
from lark.reading.checks import check_columns, check_length, check_named, not_csv
from lark.reading.compressed import compression, opened
from lark.reading.eval_logs import eval_samples
from lark.reading.json_list import json_array
from lark.reading.untrusted import BOM, described, parse_object, parsed
from lark.reading.values import FloatText, MixedFloatText, ShortFloat

LONGEST = 1 << 28
"""Longest line in bytes. Longer ones are refused, because they would fill the memory."""
LONGEST_FIELD = 1 << 27
"""Longest field of a CSV file."""
WHOLE = re.compile(r"0|-?[1-9][0-9]*")
"""A whole number as Python writes it."""


@dataclass(frozen=True)
class Row:
    """The values of a row and its location, for error messages."""

    values: Mapping[str, Any]
    where: str
    path: Path | None = None
    """The file, if the reader of a pool needs its name."""


def rows(path: Path) -> Iterator[Row]:
    """Rows of a file by its ending (see READERS); files with an unknown ending are JSON Lines."""
    return READERS.get(ending(path), json_rows)(path)


def ending(path: Path) -> str:
    """The ending that decides how a file is read: `.jsonl` for `Pool.JSONL.gz`."""
    if compression(path):
        path = Path(path.stem)
    return path.suffix.lower()


def is_table(path: Path) -> bool:
    """Whether the file's ending names a format that `rows` reads."""
    return ending(path) in READERS


def is_json_list(path: Path) -> bool:
    """Whether the file starts with `[`."""
    with opened(path) as handle:
        return handle.read(1024).removeprefix(BOM).lstrip().startswith(b"[")


def json_rows(path: Path) -> Iterator[Row]:
    """Rows of a JSON list, of a file that is one object, or else of JSON Lines."""
    if not is_json_list(path):
        whole = _whole_object(path) if ending(path) == ".json" else None
        yield from jsonl_rows(path) if whole is None else [Row(whole, str(path))]
        return
    for number, values in enumerate(json_array(path), start=1):
        where = f"{path}, item {number}"
        if not isinstance(values, dict):
            raise LarkError(f"{where}: a JSON object is expected, {{…}}, not {described(values)}.")
        yield Row(values, where)


def _whole_object(path: Path) -> dict[str, Any] | None:
    """The object that a file consists of, if it is written on several lines."""
    with opened(path) as handle:
        first = handle.readline(LONGEST + 1)
        if not first.removeprefix(BOM).lstrip().startswith(b"{") or parsed(first) is not None:
            return None
        text = first + handle.read(LONGEST + 1 - len(first))
    if len(text) > LONGEST:
        return None
    whole = parsed(text)
    return whole if isinstance(whole, dict) else None


def eval_rows(path: Path) -> Iterator[Row]:
    """Rows of a log of Inspect, one for each sample."""
    for values, where in eval_samples(path):
        yield Row(values, where)


def jsonl_rows(path: Path) -> Iterator[Row]:
    """Rows of a JSON Lines file. Empty lines are skipped."""
    has_rows = False
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            values = parse_object(line, where)
        except LarkError as error:
            # If nothing could be read yet, the file probably has another format.
            advice = "" if has_rows else f" {_expected(path)}"
            raise LarkError(f"{error}{advice}") from error
        has_rows = True
        yield Row(values, where)


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a file. Longer ones than LONGEST are refused."""
    number = 0
    with opened(path) as handle:
        while line := handle.readline(LONGEST + 1):
            number += 1
            if len(line) > LONGEST:
                raise LarkError(
                    f"{path}, line {number}: the line is longer than {LONGEST >> 20} MiB. Split the file into"
                    " one row per line."
                )
            yield line


def _expected(path: Path) -> str:
    """The form of a file whose first row cannot be read."""
    endings = ", ".join(READERS)
    reason = "" if is_table(path) else f", because its ending {ending(path)!r} is not one of {endings}"
    return (
        f"The file is read as JSON Lines{reason}: write every row as an object on a line of its own, or all"
        " rows as one list, […]."
    )


def parquet_rows(path: Path) -> Iterator[Row]:
    """Rows of a Parquet file, in small batches, because row groups of other writers can have any size."""
    number = 0
    try:
        file = pq.ParquetFile(path, pre_buffer=False)  # pre_buffer would load a whole row group
        check_columns(path, file.schema_arrow.names)
        for batch in file.iter_batches(256):
            narrow = {field.name: NARROW[field.type] for field in batch.schema if field.type in NARROW}
            for values in batch.to_pylist():
                number += 1
                for name, kind in narrow.items():
                    values[name] = _shortest(values[name], kind)
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
        values = dict(row.values)
        for name, kind in columns.items():
            if _is_float(values[name]):
                values[name] = kind(values[name])
        yield Row(values, row.where)


def _number_columns(rows: Iterator[Row]) -> dict[str, type[FloatText | MixedFloatText]]:
    """Columns with a value, in which every value is written as Python writes a number, and the type of
    their floats. The others are text: `007`, `1e5`, `2.50`.
    """
    text: set[str] = set()
    numbers: set[str] = set()
    mixed: set[str] = set()
    for row in rows:
        for name, value in row.values.items():
            if not value or name in text:
                continue
            if WHOLE.fullmatch(value):
                mixed.add(name)
            elif not _is_float(value):
                text.add(name)
            numbers.add(name)
        if len(text) == len(row.values):  # every column is text, and stays so
            break
    kinds: dict[str, type[FloatText | MixedFloatText]] = dict.fromkeys(numbers - text, FloatText)
    kinds.update(dict.fromkeys(mixed - text, MixedFloatText))
    return kinds


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
    csv.field_size_limit(LONGEST_FIELD)  # a setting of the module; its default is 128 KiB
    with opened(path) as handle:
        text = io.TextIOWrapper(handle, encoding="utf-8-sig", newline="")
        reader = csv.reader(text, strict=True, skipinitialspace=spaced)
        try:
            header = next(reader, None)
            if header is None:
                return
            check_columns(path, [name for name in header if name.strip()])
            for values in reader:
                if values:
                    where = f"{path}, line {reader.line_num}"
                    check_length(header, values, where)
                    check_named(header, values, where)
                    pairs = zip(header, values, strict=True)
                    yield Row({name: value for name, value in pairs if name.strip()}, where)
        except (csv.Error, UnicodeDecodeError) as error:
            raise not_csv(error, path, reader.line_num) from error


READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": json_rows,
    ".json": json_rows,
    ".ndjson": json_rows,
    ".parquet": parquet_rows,
    ".csv": csv_table_rows,
    ".eval": eval_rows,
}
"""How files are read, by their ending in lower case and without that of a compression."""
