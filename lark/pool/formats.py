"""Where the rows of a pool come from (`pool.format`). Readers hold at most one batch of rows in memory."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from lark import config as conf
from lark.config import Source
from lark.errors import LarkError
from lark.pool.files import Found, readable, table_files, visible_files
from lark.pool.hub import hub_rows, is_remote, snapshot
from lark.pool.layouts import LAYOUTS, Columns, drafts
from lark.pool.rsr import rsr_files, rsr_rows
from lark.reading.rows import Row, rows

HEAD = 10
"""Rows of a file that decide what a fingerprint records about its layout."""


def sources(pool: conf.Pool) -> dict[str, Source]:
    """The sources of a pool by name. A pool that is not mixed has one, without a name."""
    return dict(pool.mix) if pool.format == "mix" else {"": pool}


def source_files(pool: conf.Pool) -> list[Path]:
    """The local files of a pool. Empty for the demo and for a dataset on the hub."""
    return [file for source in sources(pool).values() for file in find(source).files]


def find(source: Source) -> Found:
    """The local files of a source, without downloading anything."""
    if source.format == "demo" or is_remote(source):
        return Found()
    if source.format == "hub":
        with readable(source):
            return Found(visible_files(Path(str(source.path)).expanduser()))
    return rsr_files(source) if source.format == "rsr" else table_files(source)


def source_rows(source: Source) -> tuple[Found, Iterator[Row]]:
    """The rows of a source, and what else is in its folder. Downloads a dataset in the paper's layout."""
    if source.format == "hub":
        return Found(), hub_rows(source)
    if source.format == "rsr":
        source = replace(source, path=str(snapshot(source))) if is_remote(source) else source
        found = rsr_files(source)
        return found, rsr_rows(source, found.files, lambda row: _question(row, source))
    found = table_files(source)
    return found, (row for path in found.files for row in rows(path))


def _question(row: Row, source: Source) -> str:
    _, found = drafts(Columns(row, source.fields), source)
    return next(found).turns.question


def differences(source: Source, files: list[Path]) -> dict[str, Any]:
    """What the first rows of each file contain that older versions did not read, or read differently. Part of a fingerprint, so
    that pools made by those versions are not reused. Empty for rows with plain columns or plain messages."""
    found: set[str] = set()
    for file in files:
        stamp = file.stat()
        found |= _features(file, (stamp.st_size, stamp.st_mtime_ns), source.layout, tuple(source.fields.items()))
    layouts = sorted(found & (LAYOUTS.keys() - {"columns", "messages"}))
    return {
        **({"layout": layouts} if layouts and not source.layout else {}),
        **dict.fromkeys(sorted(found - LAYOUTS.keys()), True),
    }


@lru_cache(4096)
def _features(file: Path, stamp: tuple[int, int], layout: str | None, fields: tuple[tuple[str, str], ...]) -> frozenset[str]:
    """Layouts of the first rows of a file, and features of their trajectories. `stamp` identifies the file's content."""
    source, found = Source(layout=layout, fields=dict(fields)), set()
    try:
        for row in islice(_arrow_rows(file) if file.suffix == ".arrow" else rows(file), HEAD):
            columns = Columns(row, source.fields)
            form, trajectories = drafts(columns, source)
            found.add(form.name)
            for draft in trajectories:
                features = {
                    "thinking": draft.turns.thinking,
                    "conversation": draft.turns.messages,
                    "answer": isinstance(draft.answer, float) and draft.answer.is_integer(),
                    "system": form.name == "messages" and draft.turns.system and "system" in columns.used,
                }
                found |= {name for name, present in features.items() if present}
    except (LarkError, pa.ArrowException, OSError):  # reported when the pool is read
        pass
    return frozenset(found)


def _arrow_rows(file: Path) -> Iterator[Row]:
    """The first batch of a file that `datasets` saved."""
    with pa.memory_map(str(file)) as handle, pa.ipc.open_stream(handle) as reader:
        for values in reader.read_next_batch().slice(0, HEAD).to_pylist():
            yield Row(values, str(file))
