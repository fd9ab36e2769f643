"""Files that may be compressed, as bytes."""

import bz2
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
        """`padding`: bytes that the format allows between and after streams."""
        self.raw = raw
        self.start = start
        self.padding = padding
        self.stream = start()

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
        rest = self.stream.unused_data.lstrip(self.padding)
        while not rest:
            chunk = self.raw.read(CHUNK)
            if not chunk:
                return None
            rest = chunk.lstrip(self.padding)
        self.stream = self.start()
        return rest


def _zstandard(raw: IO[bytes]) -> IO[bytes]:
    return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd"))


COMPRESSED: dict[str, Callable[[IO[bytes]], IO[bytes]]] = {
    ".gz": lambda raw: gzip.GzipFile(fileobj=raw),  # type: ignore[dict-item, return-value]
    ".bz2": lambda raw: io.BufferedReader(_Streams(raw, bz2.BZ2Decompressor)),
    ".xz": lambda raw: io.BufferedReader(_Streams(raw, lzma.LZMADecompressor, b"\0")),
    ".zst": _zstandard,
}
"""How compressed files are opened, by their ending in lower case."""
