"""Append-only records of long runs: one JSON object per line, flushed as a whole. `kill -9` loses only
unfinished answers.

Every line has a checksum of its record and of the journal's owner. So a line that was damaged later, or
that belongs to the journal of another model, is recognised. Readers leave out such a line, and only it: its
work is done again.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lark.errors import LarkError
from lark.reading.untrusted import parse_object, parsed

CHECK = "check"
"""Key of a line's checksum."""
RecordCheck = Callable[[Mapping[str, Any]], str | None]
"""The problem of a record as a phrase, or None."""


class Place(NamedTuple):
    """Where a line is."""

    path: Path
    start: int
    """Its first byte."""


def read(
    paths: Iterable[Path], owner: str, problem: RecordCheck, lost: list[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield every valid record. `lost` gets one phrase per line that is left out, with the file and the
    line's number.

    An incomplete last line (of a killed run, or of one that is writing) is not reported.
    """
    for record, _ in located(paths, owner, problem, lost):
        yield record


def located(
    paths: Iterable[Path], owner: str, problem: RecordCheck, lost: list[str] | None = None
) -> Iterator[tuple[dict[str, Any], Place]]:
    """The same, each with its place: journals that do not fit into memory are read again line by line
    (`record_at`).
    """
    for path in sorted(paths):
        start = 0
        with path.open("rb") as handle:
            for number, line in enumerate(handle, start=1):
                place = Place(path, start)
                start += len(line)
                if not line.endswith(b"\n"):
                    continue
                record, reason = _parsed(line, owner, problem)
                if reason is None:
                    yield record, place
                elif lost is not None:
                    lost.append(f"{path.name}, line {number}: {reason}")


def record_at(place: Place) -> dict[str, Any]:
    """The record of a line that `located` has found valid."""
    with place.path.open("rb") as handle:
        handle.seek(place.start)
        record = parse_object(handle.readline(), str(place.path))
    del record[CHECK]
    return record


def values(line: bytes) -> dict[str, Any]:
    """A line's record without any check; empty if it is damaged."""
    record = parsed(line)
    return record if isinstance(record, dict) else {}


def _parsed(line: bytes, owner: str, problem: RecordCheck) -> tuple[dict[str, Any], str | None]:
    """A record, and why it is left out, or None."""
    if not line.strip():
        return {}, "the line is empty"
    try:
        record = parse_object(line, "")
    except LarkError as error:
        return {}, str(error).removeprefix(": ").rstrip(".")
    if record.pop(CHECK, None) != checksum(record, owner):
        return record, "the line has changed since it was written, or belongs to another run"
    return record, problem(record)


def checksum(record: Mapping[str, Any], owner: str) -> str:
    text = json.dumps(record, ensure_ascii=False)
    return hashlib.sha256(f"{owner}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()[:16]


class Journal:
    """Appends records to a file of this process only. Continues where a killed process stopped."""

    def __init__(self, path: Path, owner: str) -> None:
        """`owner`: what the records belong to; readers must give the same."""
        self.path = path
        self.owner = owner
        self.handle = path.open("a+b")
        self._drop_torn_line()

    def _drop_torn_line(self) -> None:
        self.handle.seek(0)
        complete = sum(len(line) for line in self.handle if line.endswith(b"\n"))
        self.handle.truncate(complete)

    def append(self, record: Mapping[str, Any]) -> None:
        line = {**record, CHECK: checksum(record, self.owner)}
        self.handle.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        self.handle.flush()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        os.fsync(self.handle.fileno())
        self.handle.close()
