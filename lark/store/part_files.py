"""Tables that a long step writes part by part. A part that was damaged, that has other rows or that another
artifact's step wrote is computed again.

Checksums of pages, which Parquet has, do not cover the footer: names, types and metadata. So a digest of
all other bytes is written between the last page and the footer. Readers find pages by the footer's offsets
and never look there.
"""

import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from lark.errors import first_line
from lark.store.writing import atomic

log = logging.getLogger(__name__)


ORIGIN = b"lark"
"""Metadata of a file: the artifact whose step wrote it."""
MARK = b"lark-blake2b"
DIGEST_BYTES = 32
BLOCK_BYTES = 2**20


def write_part(table: pa.Table, path: Path, compression: str = "zstd") -> None:
    """Write a table with a digest of the file and the name of the artifact that it is a part of."""
    named = table.replace_schema_metadata({**(table.schema.metadata or {}), ORIGIN: artifact(path)})
    with atomic(path) as draft:
        pq.write_table(named, draft, compression=compression, write_page_checksum=True)
        seal(draft)


def artifact(path: Path) -> bytes:
    """Kind and fingerprint of the artifact whose folder has a file. Its label may change."""
    return f"{path.parent.parent.name}/{path.parent.name.rpartition('-')[2]}".encode()


def seal(path: Path) -> None:
    """Write a digest of a Parquet file into it."""
    with path.open("r+b") as file:
        start = _footer_start(file)
        digest = _digest(file, (0, file.seek(0, os.SEEK_END)))
        file.seek(start)
        footer = file.read()
        file.seek(start)
        file.write(MARK + digest + footer)


def _is_changed(path: Path) -> bool:
    """True if a file has other bytes than when it was sealed. Files of earlier versions have no digest."""
    with path.open("rb") as file:
        end = _footer_start(file)
        start = end - len(MARK) - DIGEST_BYTES
        file.seek(max(start, 0))
        if start < 0 or file.read(len(MARK)) != MARK:
            return False
        return file.read(DIGEST_BYTES) != _digest(file, (0, start), (end, file.seek(0, os.SEEK_END)))


def _footer_start(file: BinaryIO) -> int:
    """Where the footer begins. A Parquet file ends with the footer's length in 4 bytes and `PAR1`."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - 8, 0))
    return max(size - 8 - int.from_bytes(file.read(4), "little"), 0)


def _digest(file: BinaryIO, *ranges: tuple[int, int]) -> bytes:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for start, stop in ranges:
        file.seek(start)
        remaining = stop - start
        while remaining > 0:
            block = file.read(min(remaining, BLOCK_BYTES))
            if not block:
                break
            digest.update(block)
            remaining -= len(block)
    return digest.digest()


def intact(path: Path, is_expected: Callable[[pa.Table], bool]) -> bool:
    """True if a table exists, can be read to its end, and is the expected one. Otherwise it is removed and
    counts as missing.
    """
    if not path.exists():
        return False
    try:
        harm = _harm(path, is_expected)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        harm = first_line(error)
    if harm is None:
        return True
    log.warning("%s is damaged (%s): computing it again", path, harm)
    path.unlink(missing_ok=True)
    return False


def _harm(path: Path, is_expected: Callable[[pa.Table], bool]) -> str | None:
    """Why a table is not the expected one; None if it is. Files of earlier versions have no origin."""
    if _is_changed(path):
        return "its content has changed"
    table = pq.read_table(path, page_checksum_verification=True)
    origin = (table.schema.metadata or {}).get(ORIGIN, artifact(path))
    if origin != artifact(path):
        return f"it belongs to {origin.decode(errors='replace')}"
    return None if is_expected(table) else "its rows are not the expected ones"
