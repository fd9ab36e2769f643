"""Read and check another tool's scores (method=external): a Parquet or CSV file with question_id,
candidate_id, score, or the authors' scores.json.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lark.config import Method
from lark.errors import LarkError, first_line
from lark.pool.trajectories import KEY
from lark.reading.rows import csv_rows
from lark.reading.values import id_text
from lark.scoring import external_checks as checks
from lark.scoring.authors_scores import read_authors_scores
from lark.scoring.external_checks import SCORE_COLUMN

NO_SCORE = frozenset({"", "na", "n/a", "nan", "null", "none", "<na>"})
"""Values of a missing score in a CSV file, in upper or lower case. An id with such a value stays an id."""


@dataclass(frozen=True)
class Matched:
    """Another tool's scores, matched to the pool's trajectories."""

    score: np.ndarray
    """[R] In the pool's order; NaN where a score is missing."""
    counts: dict[str, int]
    """Counts for the manifest."""
    notes: list[str]
    """Messages about scores that are missing or do not match."""


def scores_file(method: Method) -> Path:
    """Path of another tool's scores (method=external)."""
    checks.check_path_given(method.path)
    path = Path(str(method.path)).expanduser()
    checks.check_is_file(path)
    return path


def read_scores(path: Path) -> pd.DataFrame:
    """The file as a table of strings and float64: question_id, candidate_id, score (NaN: missing)."""
    with path.open("rb") as handle:
        magic = handle.read(4)
    if magic == b"PAR1":
        table = _parquet(path)
    elif magic.lstrip().startswith(b"{"):
        table = read_authors_scores(path)
    else:
        table = _csv(path)
    checks.check_not_empty(path, table)
    checks.check_ids(path, table)
    checks.check_distinct(path, table)
    return table


def match(scores: pd.DataFrame, pool: pd.DataFrame, path: Path) -> Matched:
    """Scores of the pool's trajectories. Missing and unknown ones are counted; it is an error if nothing
    matches.
    """
    # A table stores the integers of a column with a gap as floats, so either side may have 7.0 for 7.
    ours = _with_plain_ids(pool[KEY])
    theirs = _with_plain_ids(scores)
    merged = ours.merge(theirs, on=KEY, how="left", indicator=True, validate="1:1")
    n_matched = int((merged["_merge"] == "both").sum())
    checks.check_matches(path, n_matched, scores, pool)
    score = merged[SCORE_COLUMN].to_numpy(dtype=np.float64)
    infinite = np.isinf(score)
    score = np.where(infinite, np.nan, score)  # an infinite score gives no usable weight
    n_infinite = int(infinite.sum())
    n_missing = int(np.isnan(score).sum())
    n_unknown = len(scores) - n_matched
    notes = []
    if n_infinite:
        notes.append(f"{n_infinite} scores are infinite and count as missing")
    if n_missing:
        notes.append(
            f"{n_missing} of the pool's {len(pool)} trajectories have no score and cannot be selected"
        )
    if n_unknown:
        unknown = scores[~pd.MultiIndex.from_frame(theirs[KEY]).isin(pd.MultiIndex.from_frame(ours))]
        example = checks.first_id(unknown)
        notes.append(f"{n_unknown} of {len(scores)} rows match no trajectory in this pool, e.g. {example}")
    counts = {"unscored": n_missing, "infinite_scores": n_infinite, "unknown_scores": n_unknown}
    return Matched(score, counts, [f"{path}: {note}" for note in notes])


def _with_plain_ids(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(**{name: table[name].map(_plain_id) for name in KEY})


def _plain_id(text: str) -> str:
    return re.sub(r"\A(-?[0-9]+)\.0\Z", r"\1", text.strip())


def _parquet(path: Path) -> pd.DataFrame:
    table = _read_parquet(path)
    checks.check_number_type(path, table[SCORE_COLUMN].type)
    # Not safe: large integers and decimals may lose digits that a score does not need.
    numbers = table[SCORE_COLUMN].cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    columns = {name: _ids(table[name].to_pylist()) for name in KEY}
    return pd.DataFrame({**columns, SCORE_COLUMN: numbers.astype(np.float64)})


def _read_parquet(path: Path) -> pa.Table:
    try:
        file = pq.ParquetFile(path)
        checks.check_columns(path, file.schema_arrow.names)
        return file.read(columns=[*KEY, SCORE_COLUMN])
    except (pa.ArrowException, OSError, ValueError) as error:
        raise LarkError(
            f"{path}: this looks like a Parquet file but cannot be read ({first_line(error)})."
        ) from error


def _ids(values: list[Any]) -> list[str]:
    """Ids as text, like the pool's; empty where one is missing."""
    return ["" if value is None else id_text(value) for value in values]


def _csv(path: Path) -> pd.DataFrame:
    checks.check_no_json(path)
    # Not with pandas: it fills short rows, cuts long ones and takes the first of two columns with the same
    # name.
    rows: list[Mapping[str, str]] = []
    for row in csv_rows(path, spaced=True):
        if not rows:
            checks.check_columns(path, list(row.values))
        rows.append({name: row.values[name] for name in [*KEY, SCORE_COLUMN]})
    # As text: an id may be "007", "NA" or "null".
    table = pd.DataFrame(rows, columns=[*KEY, SCORE_COLUMN], dtype=object)
    if table.empty:
        return table
    texts = table[SCORE_COLUMN].str.strip()
    numbers = pd.to_numeric(texts, errors="coerce").astype(np.float64)
    checks.check_numbers(path, table, texts, numbers.isna() & ~texts.str.lower().isin(NO_SCORE))
    return table[KEY].assign(**{SCORE_COLUMN: numbers})
