"""Append-only records of long runs: one JSON object per line, flushed as a whole. `kill -9` loses only unfinished answers."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any


def read(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Yield every complete record. An incomplete last line (of a killed run, or of one that is writing) is skipped."""
    for path in sorted(paths):
        with path.open("rb") as handle:
            for line in handle:
                if line.endswith(b"\n"):
                    yield json.loads(line)


class Journal:
    """Appends records to a file of this process only. Continues where a killed process stopped."""

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
