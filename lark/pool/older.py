"""What older versions read differently. It is part of a pool's fingerprint, so that pools made by them are not reused."""

import contextlib
from collections.abc import Iterator
from decimal import Decimal
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from lark.config import Source
from lark.errors import LarkError
from lark.pool.columns import Columns
from lark.pool.layouts import LAYOUTS, Draft, drafts
from lark.pool.rsr import marks_generations
from lark.reading.rows import FloatText, Row, ShortFloat, id_text, plain_text, rows
from lark.runtime.store import Checksums

HEAD = 10
"""Rows of a file whose features a fingerprint lists. If they have none, all rows are inspected, once per file."""
NEWER = ("ids", "numbers", "refused")
"""Features of which a single row of a pool is part of its fingerprint: ids and numbers that older versions read as other text, and
rows that they read and this one refuses."""
PLAIN = {"columns", "messages"}
"""Layouts that older versions read too."""


def differences(source: Source, files: list[Path], checksums: Checksums) -> dict[str, Any]:
    """What older versions did not read in these files, or read differently. Empty if there is nothing."""
    listed = _first_features(source, files)
    if source.format == "rsr" and marks_generations(files):
        listed["rollouts"] = "gen"
    settings = f"{source.layout}, {sorted(source.fields.items())}"
    if not listed and any(
        checksums.cached(file, f"later rows, {settings}", lambda file: _is_different(file, source)) for file in files
    ):
        listed = {"later": True}
    newer = {
        name
        for file in files
        for name in checksums.cached(file, f"{', '.join(NEWER)}, {settings}", lambda file: _newer_features(file, source))
    }
    return listed | dict.fromkeys(sorted(newer), True)


def _first_features(source: Source, files: list[Path]) -> dict[str, Any]:
    """Layouts and features of the first rows of each file, as a fingerprint has them."""
    found: set[str] = set()
    for file in files:
        stamp = file.stat()
        found |= _head(file, (stamp.st_size, stamp.st_mtime_ns), source.layout, tuple(source.fields.items()))
    layouts = sorted(found & (LAYOUTS.keys() - PLAIN))
    return {
        **({"layout": layouts} if layouts and not source.layout else {}),
        **dict.fromkeys(sorted(found - LAYOUTS.keys() - set(NEWER)), True),
    }


@lru_cache(4096)
def _head(file: Path, stamp: tuple[int, int], layout: str | None, fields: tuple[tuple[str, str], ...]) -> frozenset[str]:
    """Layouts and features of the first rows of a file. `stamp` identifies the file's content."""
    return frozenset(
        name for found in islice(_features(file, Source(layout=layout, fields=dict(fields))), HEAD) for name in found
    )


def _is_different(file: Path, source: Source) -> bool:
    return any(found - set(NEWER) - (LAYOUTS.keys() if source.layout else PLAIN) for found in _features(file, source))


def _newer_features(file: Path, source: Source) -> list[str]:
    return sorted({name for found in _features(file, source) for name in found if name in NEWER})


def _features(file: Path, source: Source) -> Iterator[set[str]]:
    """The layout of each row and the features of its trajectories. Ends at a row that cannot be read: reading reports it."""
    with contextlib.suppress(LarkError, pa.ArrowException, OSError):
        for row in _arrow_rows(file) if file.suffix == ".arrow" else rows(file):
            columns = Columns(row, source.fields)
            form, trajectories = drafts(columns, source)
            found = {form.name}
            try:
                for draft in trajectories:
                    found |= _draft_features(draft, form.name, columns)
            except LarkError:
                yield {"refused"}
                return
            yield found


def _draft_features(draft: Draft, form: str, columns: Columns) -> set[str]:
    answer = draft.answer[0] if isinstance(draft.answer, list) and len(draft.answer) == 1 else draft.answer
    features = {
        "thinking": draft.turns.thinking,
        "conversation": draft.turns.messages,
        "answer": isinstance(draft.answer, float) and (draft.answer.is_integer() or "e" in str(draft.answer)),
        "system": form == "messages" and draft.turns.system and "system" in columns.used,
        "ids": any(
            isinstance(id, str | float | Decimal) and id_text(id) != str(id) for id in (draft.question_id, draft.candidate_id)
        ),
        "numbers": isinstance(answer, ShortFloat)
        or (isinstance(answer, FloatText | Decimal) and plain_text(answer) != str(answer)),
    }
    return {name for name, present in features.items() if present}


def _arrow_rows(file: Path) -> Iterator[Row]:
    """The rows of a file that `datasets` saved."""
    with pa.memory_map(str(file)) as handle, pa.ipc.open_stream(handle) as reader:
        for batch in reader:
            for values in batch.to_pylist():
                yield Row(values, str(file))
