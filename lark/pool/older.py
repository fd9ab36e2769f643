"""What older versions read differently. It is part of a pool's fingerprint, so that pools made by them are not reused."""

import contextlib
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from lark.config import Source
from lark.errors import LarkError
from lark.pool.columns import Columns
from lark.pool.layouts import LAYOUTS, drafts
from lark.pool.rsr import marks_generations
from lark.reading.rows import Row, rows
from lark.runtime.store import Checksums

HEAD = 10
"""Rows of a file whose features a fingerprint lists. If they have none, all rows are inspected, once per file."""
PLAIN = {"columns", "messages"}
"""Layouts that older versions read too."""


def differences(source: Source, files: list[Path], checksums: Checksums) -> dict[str, Any]:
    """What older versions did not read in these files, or read differently. Empty if there is nothing."""
    listed = _first_features(source, files)
    if source.format == "rsr" and marks_generations(files):
        listed["rollouts"] = "gen"
    if listed:
        return listed
    what = f"later rows, {source.layout}, {sorted(source.fields.items())}"
    later = any(checksums.cached(file, what, lambda file: _is_different(file, source)) for file in files)
    return {"later": True} if later else {}


def _first_features(source: Source, files: list[Path]) -> dict[str, Any]:
    """Layouts and features of the first rows of each file, as a fingerprint has them."""
    found: set[str] = set()
    for file in files:
        stamp = file.stat()
        found |= _head(file, (stamp.st_size, stamp.st_mtime_ns), source.layout, tuple(source.fields.items()))
    layouts = sorted(found & (LAYOUTS.keys() - PLAIN))
    return {
        **({"layout": layouts} if layouts and not source.layout else {}),
        **dict.fromkeys(sorted(found - LAYOUTS.keys()), True),
    }


@lru_cache(4096)
def _head(file: Path, stamp: tuple[int, int], layout: str | None, fields: tuple[tuple[str, str], ...]) -> frozenset[str]:
    """Layouts and features of the first rows of a file. `stamp` identifies the file's content."""
    return frozenset(
        name for found in islice(_features(file, Source(layout=layout, fields=dict(fields))), HEAD) for name in found
    )


def _is_different(file: Path, source: Source) -> bool:
    return any(found - (LAYOUTS.keys() if source.layout else PLAIN) for found in _features(file, source))


def _features(file: Path, source: Source) -> Iterator[set[str]]:
    """The layout of each row and the features of its trajectories. Ends at a row that cannot be read: reading reports it."""
    with contextlib.suppress(LarkError, pa.ArrowException, OSError):
        for row in _arrow_rows(file) if file.suffix == ".arrow" else rows(file):
            columns = Columns(row, source.fields)
            form, trajectories = drafts(columns, source)
            found = {form.name}
            for draft in trajectories:
                features = {
                    "thinking": draft.turns.thinking,
                    "conversation": draft.turns.messages,
                    "answer": isinstance(draft.answer, float) and (draft.answer.is_integer() or "e" in str(draft.answer)),
                    "system": form.name == "messages" and draft.turns.system and "system" in columns.used,
                }
                found |= {name for name, present in features.items() if present}
            yield found


def _arrow_rows(file: Path) -> Iterator[Row]:
    """The rows of a file that `datasets` saved."""
    with pa.memory_map(str(file)) as handle, pa.ipc.open_stream(handle) as reader:
        for batch in reader:
            for values in batch.to_pylist():
                yield Row(values, str(file))
