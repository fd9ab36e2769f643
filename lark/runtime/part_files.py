"""Tables that a long step writes part by part. A part that was damaged, that has other rows or that another artifact's step wrote
is computed again."""

import logging
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lark.errors import first_line
from lark.runtime.store import atomic

log = logging.getLogger(__name__)


ORIGIN = b"lark"
"""Metadata of a file: the artifact whose step wrote it."""


def write_part(table: pa.Table, path: Path, compression: str = "zstd") -> None:
    """Write a table with checksums of its pages and the name of the artifact that it is a part of."""
    named = table.replace_schema_metadata({**(table.schema.metadata or {}), ORIGIN: artifact(path)})
    with atomic(path) as draft:
        pq.write_table(named, draft, compression=compression, write_page_checksum=True)


def artifact(path: Path) -> bytes:
    """Kind and fingerprint of the artifact whose folder has a file. Its label may change."""
    return f"{path.parent.parent.name}/{path.parent.name.rpartition('-')[2]}".encode()


def intact(path: Path, is_expected: Callable[[pa.Table], bool]) -> bool:
    """Whether a table exists, can be read to its end, and is the expected one. Otherwise it is removed and counts as missing."""
    if not path.exists():
        return False
    try:
        harm = _harm(pq.read_table(path, page_checksum_verification=True), path, is_expected)
    except (pa.ArrowException, OSError, KeyError) as error:
        harm = first_line(error)
    if harm is None:
        return True
    log.warning("%s is damaged (%s): computing it again", path, harm)
    path.unlink(missing_ok=True)
    return False


def _harm(table: pa.Table, path: Path, is_expected: Callable[[pa.Table], bool]) -> str | None:
    """Why a table that can be read is not the expected one; None if it is. Those of earlier versions have no origin."""
    origin = (table.schema.metadata or {}).get(ORIGIN, artifact(path))
    if origin != artifact(path):
        return f"it belongs to {origin.decode(errors='replace')}"
    return None if is_expected(table) else "its rows are not the expected ones"
