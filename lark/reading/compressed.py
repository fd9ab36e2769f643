"""Files that may be compressed, as bytes."""

import contextlib
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from lark.errors import LarkError, first_line

CHUNK = 1 << 20
"""Bytes that are read at a time."""
PADDING = b"\0"
"""Bytes that the format of xz allows between and after streams."""


@contextlib.contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, decompressed if its ending says so."""
    try:
        with path.open("rb") as raw:
            packed = compression(path)
            yield COMPRESSED[packed](raw) if packed else raw
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise LarkError(f"{path}: cannot be read ({reason or first_line(error)}).") from error


def compression(path: Path) -> str | None:
    """The ending of a compressed file."""
    return next((ending for ending in COMPRESSED if path.name.lower().endswith(ending)), None)


class _XzStreams(io.RawIOBase):
    """The bytes of one or more xz streams. Anything else after a stream is an error: Python's own reader
    stops there, and a stream behind it would be lost.
    """

    def __init__(self, raw: IO[bytes]) -> None:
        self.raw = raw
        self.stream = lzma.LZMADecompressor()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = b""
        while not data:  # a decompressor may take bytes without giving any
            compressed = self._next()
            if compressed is None:
                return 0
            data = self.stream.decompress(compressed, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _next(self) -> bytes | None:
        """Compressed bytes for the current stream, or for a new one after its end; None after the last."""
        if self.stream.eof:
            return self._next_stream()
        if not self.stream.needs_input:
            return b""
        compressed = self.raw.read(CHUNK)
        if not compressed:
            raise EOFError("Compressed file ended before the end-of-stream marker was reached")
        return compressed

    def _next_stream(self) -> bytes | None:
        rest = self.stream.unused_data.lstrip(PADDING)
        while not rest:
            chunk = self.raw.read(CHUNK)
            if not chunk:
                return None
            rest = chunk.lstrip(PADDING)
        self.stream = lzma.LZMADecompressor()
        return rest


def _with_arrow(codec: str) -> Callable[[IO[bytes]], IO[bytes]]:
    """Opens files with several streams too, and refuses anything else after a stream."""
    return lambda raw: io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), codec))


COMPRESSED: dict[str, Callable[[IO[bytes]], IO[bytes]]] = {
    ".gz": lambda raw: gzip.GzipFile(fileobj=raw),  # type: ignore[dict-item, return-value]
    ".bz2": _with_arrow("bz2"),
    ".xz": lambda raw: io.BufferedReader(_XzStreams(raw)),  # Arrow has no xz
    ".zst": _with_arrow("zstd"),
}
"""How compressed files are opened, by their ending in lower case."""
