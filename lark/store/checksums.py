"""Checksums of files, and a cache of those of a run's inputs."""

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lark.reading.untrusted import readable_object
from lark.store.checks import unreadable_input
from lark.store.writing import write_text


def checksum(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


class Checksums:
    """SHA-256 of input files, cached by size and times: a pool of gigabytes is read once, not in every run.

    The times are those of the last change of the content, which programs can set, and of the file's entry,
    which they cannot. An entry is [size, time, time, checksum, digest of all this]: a damaged one is not
    used.
    """

    def __init__(self, root: Path) -> None:
        self.path = root / ".cache" / "checksums.json"
        self.entries: dict[str, list[Any]] = {}
        for key, entry in (readable_object(self.path) or {}).items():
            if isinstance(entry, list) and entry[4:] == [self._digest(key, entry[:4])]:
                self.entries[key] = entry

    def __call__(self, path: Path) -> str:
        key = os.path.realpath(path)
        try:
            stat = path.stat()
            stamp = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
            if self.entries.get(key, [])[:3] != stamp:
                entry = [*stamp, checksum(path)]
                self.entries[key] = [*entry, self._digest(key, entry)]
                self._save()
        except OSError as error:
            raise unreadable_input(path, error) from error
        return str(self.entries[key][3])

    @staticmethod
    def _digest(key: str, entry: Sequence[Any]) -> str:
        return hashlib.sha256(json.dumps([key, *entry]).encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def _save(self) -> None:
        """Write the cache, if the disk allows it: without it, the files are only read again."""
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.path, json.dumps(self.entries))
