"""Indicators of a response that need only its text, one number each: `text.parquet`. No model code.

Computed one row group of the pool at a time, so that no method has to hold the texts of a whole pool. A
method that uses the text in another way adds its indicator here.
"""

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lark.models.dialogue import response_text
from lark.pool import trajectories as pools
from lark.pool.trajectories import KEY
from lark.scoring.sources import INDICATORS, TEXT_TABLE
from lark.scoring.taken import Taken
from lark.store.store import atomic
from lark.work.operation import Job

KEYWORDS = {
    "self_verification": ("check", "verify"),
    "exploration": ("perhaps", "might"),
    "granularity": ("therefore", "since"),
}
"""Keyword groups of rule-based quality (App. C.2)."""
# A pattern that begins with its word is searched like a plain string, six times as fast as one that begins
# with \b.
KEYWORD_PATTERNS = [[re.compile(rf"{word}(?<=\b{word})\b") for word in group] for group in KEYWORDS.values()]
INDICATORS_SCHEMA = pa.schema(dict.fromkeys(KEY, pa.string()) | dict.fromkeys(INDICATORS, pa.float64()))


def indicators(text: str) -> list[float]:
    """[4] Words (between white space), and the frequency of each keyword group among them, as whole words
    in any case.
    """
    words = len(text.split())
    lower = text.lower()
    numbers = [float(words)]
    for group in KEYWORD_PATTERNS:
        count = sum(len(pattern.findall(lower)) for pattern in group)
        numbers.append(count / max(words, 1))
    return numbers


def write_indicators(job: Job) -> dict[str, Any]:
    """The indicators of every trajectory, in the pool's order. Returns counts for the manifest."""
    count = 0
    taken = Taken(job.folder)
    with (
        atomic(job.folder / TEXT_TABLE.file) as draft,
        pq.ParquetWriter(draft, INDICATORS_SCHEMA, compression="zstd") as writer,
    ):
        for table in taken.completed_groups(
            job.inputs["pool"] / pools.FILE, pools.TEXT_COLUMNS, indicator_table
        ):
            writer.write_table(table)
            count += len(table)
    return {"trajectories": count, **taken.finish()}


def indicator_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    table = []
    for row in rows:
        values = indicators(response_text(row))
        table.append({name: row[name] for name in KEY} | dict(zip(INDICATORS, values, strict=True)))
    return pa.Table.from_pylist(table, schema=INDICATORS_SCHEMA)
