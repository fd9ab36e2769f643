"""Write the files of a `tokens` artifact, which lark/scoring/tokens.py describes and reads. No model code."""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lark.scoring.tokens import (
    ID_COLUMNS,
    INDEX_FILE,
    INDEX_SCHEMA,
    LIST_TYPES,
    PIECES,
    QUESTIONS_KEY,
    TOKENS_SCHEMA,
    TOTAL_KEY,
    TrajectoryTokens,
    footer,
)
from lark.store.part_files import ORIGIN, artifact, seal
from lark.store.store import atomic

HALF_MAX = float(np.finfo(np.float16).max)
RANK_MAX = int(np.iinfo(np.uint16).max)


def write_shard(
    path: Path, trajectories: Iterable[TrajectoryTokens], metadata: Mapping[bytes, bytes] | None = None
) -> None:
    """A shard's file: a row group per run of trajectories of one question. `metadata`: further ones."""
    questions: list[str] = []
    n_tokens = 0
    schema = TOKENS_SCHEMA.with_metadata({ORIGIN: artifact(path), **(metadata or {})})
    # Plain values under zstd: in real trajectories, dictionaries and byte streams make no column smaller.
    plain: dict[str, Any] = {"use_dictionary": False, "write_statistics": False}
    with atomic(path) as draft:
        with pq.ParquetWriter(draft, schema, compression="zstd", write_page_checksum=True, **plain) as writer:
            for question, group in groupby(trajectories, key=lambda trajectory: trajectory.question_id):
                rows = list(group)
                writer.write_table(_as_table(rows), row_group_size=len(rows))
                questions.append(question)
                n_tokens += sum(map(len, rows))
            writer.add_key_value_metadata({QUESTIONS_KEY: json.dumps(questions), TOTAL_KEY: str(n_tokens)})
        seal(draft)


def _as_table(rows: Sequence[TrajectoryTokens]) -> pa.Table:
    columns = {}
    for name in ID_COLUMNS:
        columns[name] = pa.array([getattr(row, name) for row in rows], pa.string())
    for name, kind in LIST_TYPES.items():
        columns[name] = _lists([getattr(row, name) for row in rows], kind)
    return pa.table(columns, schema=TOKENS_SCHEMA)


def _lists(parts: Sequence[np.ndarray], kind: pa.DataType) -> pa.ListArray:
    """A list per trajectory, in the small type: numbers beyond its largest are clipped."""
    offsets = np.cumsum([0, *(part.size for part in parts)], dtype=np.int32)
    values = np.concatenate([part.reshape(-1) for part in parts])
    if pa.types.is_float16(kind):
        values = np.minimum(values, HALF_MAX).astype(np.float16)
    elif pa.types.is_uint16(kind):
        values = np.minimum(values, RANK_MAX).astype(np.uint16)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, kind))


def write_index(folder: Path, shards: Sequence[Path]) -> dict[str, int]:
    """Write `questions.parquet` when all shards exist. Returns counts for the manifest."""
    rows: list[dict[str, Any]] = []
    n_tokens = 0
    for shard in shards:
        shard_footer = footer(shard)
        n_tokens += shard_footer.tokens
        for group, question in enumerate(shard_footer.questions):
            candidates = shard_footer.metadata.row_group(group).num_rows
            row = {"question_id": question, "file": shard.name, "row_group": group, "candidates": candidates}
            rows.append(row)
    with atomic(folder / INDEX_FILE) as draft:
        pq.write_table(pa.Table.from_pylist(rows, schema=INDEX_SCHEMA), draft, compression="zstd")
    questions = {row["question_id"] for row in rows}
    return {"tokens": n_tokens, "questions": len(questions), "files": len(shards)}


def write_pieces(folder: Path, pieces: Sequence[bytes], special: Sequence[bool]) -> None:
    """Write `pieces.parquet` (lark/models/pieces.py)."""
    table = pa.table({"bytes": pa.array(pieces, pa.binary()), "special": pa.array(special, pa.bool_())})
    with atomic(folder / PIECES) as draft:
        pq.write_table(table, draft, compression="zstd")
