"""A cache of what was read, bounded by its size. An entry is valid as long as the files it was read from do
not change.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
DEEPEST = 20
Stamp = tuple[tuple[int, int], ...]


def stamp(*paths: Path) -> Stamp:
    """Time and size of files; a missing one counts as empty."""
    stamps = []
    for path in paths:
        try:
            stat = path.stat()
            stamps.append((stat.st_mtime_ns, stat.st_size))
        except OSError:
            stamps.append((0, -1))
    return tuple(stamps)


class Cache:
    """Values by key. The least recently used ones are dropped when their sizes add up to more than `limit`
    bytes.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.entries: OrderedDict[Hashable, tuple[Any, Any, int]] = OrderedDict()
        self.size = 0
        """Bytes of all entries."""
        self.lock = threading.Lock()
        self.making: dict[Hashable, threading.Lock] = {}

    def get(self, key: Hashable, version: Any, make: Callable[[], T]) -> T:
        """The value of `key`, made again if its version (the stamp of its files) is another one. Made once
        at a time.
        """
        with self.lock:
            making = self.making.setdefault(key, threading.Lock())
        with making:
            with self.lock:
                entry = self.entries.get(key)
                if entry is not None and entry[0] == version:
                    self.entries.move_to_end(key)
                    return entry[1]
            # Without the lock of the whole cache: making a value can take a second.
            value = make()
            size = size_of(value)
            with self.lock:
                self._put(key, version, value, size)
                if len(self.making) > 10_000:
                    self.making.clear()
            return value

    def _put(self, key: Hashable, version: Any, value: Any, size: int) -> None:
        if key in self.entries:
            self.size -= self.entries.pop(key)[2]
        self.entries[key] = (version, value, size)
        self.size += size
        while self.size > self.limit and len(self.entries) > 1:
            _, (_, _, dropped) = self.entries.popitem(last=False)
            self.size -= dropped


def size_of(value: Any, depth: int = 0) -> int:
    """Approximate size in bytes: exact for arrays, by length for texts and containers."""
    size = getattr(value, "nbytes", None)  # NumPy, Arrow, and classes of ours that know it
    if isinstance(size, int):
        return size
    if isinstance(value, str | bytes):
        return len(value) + 60
    if depth > DEEPEST:
        return 60
    if isinstance(value, dict):
        return 200 + _sum(value.keys(), depth) + _sum(value.values(), depth)
    if isinstance(value, list | tuple):
        return 60 + _sum(value, depth)
    return 60 + _sum(getattr(value, "__dict__", {}).values(), depth)


def _sum(values: Iterable[Any], depth: int) -> int:
    items = list(values)
    sample = items[:: max(1, len(items) // 500)]  # long lists have elements of similar size
    return sum(size_of(item, depth + 1) for item in sample) * len(items) // max(1, len(sample))
