"""Tables that a long step writes part by part. A part that was damaged, or that has other rows, is computed again."""

import logging
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lark.errors import first_line
from lark.runtime.store import atomic

log = logging.getLogger(__name__)


def write_part(table: pa.Table, path: Path) -> None:
    """Write a table with checksums of its pages."""
    with atomic(path) as draft:
        pq.write_table(table, draft, compression="zstd", write_page_checksum=True)


def intact(path: Path, is_expected: Callable[[pa.Table], bool]) -> bool:
    """Whether a table exists, can be read to its end, and is the expected one. Otherwise it is removed and counts as missing."""
    if not path.exists():
        return False
    try:
        harm = (
            None if is_expected(pq.read_table(path, page_checksum_verification=True)) else "its rows are not the expected ones"
        )
    except (pa.ArrowException, OSError, KeyError) as error:
        harm = first_line(error)
    if harm is None:
        return True
    log.warning("%s is damaged (%s): computing it again", path, harm)
    path.unlink(missing_ok=True)
    return False
