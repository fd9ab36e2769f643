"""Logs of Inspect: a `.eval` file is a zip archive with a header and a JSON file for each sample.

Inspect compresses their members with zstd since 2026, which zipfile cannot read before Python 3.14.
"""

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from lark.errors import LarkError, first_line
from lark.reading.checks import require_header
from lark.reading.untrusted import parse_object

HEADERS = ("header.json", "_journal/start.json")
"""The header of a finished log, and that of one whose evaluation was stopped."""
SAMPLES = "samples/"
LONGEST_SAMPLE = 1 << 28
"""Bytes of the longest sample. A longer one would fill the memory."""

ZSTD = 93
"""Zip's number for members that are compressed with zstd."""
LOCAL_HEADER = struct.Struct("<4s22xHH")
"""Signature of a member's header, and the lengths of its name and of the extra field, which come after it."""


def eval_samples(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """The samples of a log, each as `{"eval": …, "samples": [sample]}`, and their locations."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            header = next((name for name in HEADERS if name in names), None)
            task = _member(archive, require_header(header, path), path).get("eval")
            for name in sorted(name for name in names if name.startswith(SAMPLES) and name.endswith(".json")):
                yield {"eval": task, "samples": [_member(archive, name, path)]}, f"{path}, {name}"
    except (
        OSError,
        EOFError,
        zipfile.BadZipFile,
        NotImplementedError,
        RuntimeError,
        zlib.error,
        struct.error,
    ) as error:
        raise LarkError(f"{path}: cannot be read as a log of Inspect ({first_line(error)}).") from error


def _member(archive: zipfile.ZipFile, name: str, path: Path) -> dict[str, Any]:
    # The size in the archive's list may be a lie, so the limit holds for what is read.
    with _opened(archive, name) as handle:
        data = handle.read(LONGEST_SAMPLE + 1)
    if len(data) > LONGEST_SAMPLE:
        raise LarkError(f"{path}, {name}: the sample is longer than {LONGEST_SAMPLE >> 20} MiB.")
    return parse_object(data, f"{path}, {name}")


def _opened(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    """A member's bytes."""
    member = archive.getinfo(name)
    if member.compress_type != ZSTD:
        return archive.open(name)
    file = archive.fp
    assert file is not None
    file.seek(member.header_offset)
    signature, name_length, extra_length = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
    if signature != b"PK\x03\x04":
        raise zipfile.BadZipFile("Bad magic number for file header")
    file.seek(name_length + extra_length, io.SEEK_CUR)
    packed = io.BytesIO(file.read(min(member.compress_size, LONGEST_SAMPLE)))
    return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), "zstd"))
