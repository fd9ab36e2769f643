"""Append-only records of long runs: one JSON object a line, flushed whole. `kill -9` loses only what was not yet answered."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any


def read(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Every complete record. A last line that was being written (by a killed run, or right now) does not count."""
    for path in sorted(paths):
        with path.open("rb") as handle:
            for line in handle:
                if line.endswith(b"\n"):
                    yield json.loads(line)


class Journal:
    """Appends records to a file of this process alone; goes on where a killed one left off."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle = path.open("a+b")
        self._drop_torn_line()

    def _drop_torn_line(self) -> None:
        self.handle.seek(0)
        complete = sum(len(line) for line in self.handle if line.endswith(b"\n"))
        self.handle.truncate(complete)

    def append(self, record: Mapping[str, Any]) -> None:
        self.handle.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        self.handle.flush()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        os.fsync(self.handle.fileno())
        self.handle.close()
