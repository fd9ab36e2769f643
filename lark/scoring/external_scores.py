"""Read and check another tool's scores (method=external): a Parquet or CSV file with question_id,
candidate_id, score, or the authors' scores.json.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lark.config import Method
from lark.errors import LarkError, first_line
from lark.pool.trajectories import KEY
from lark.reading.rows import csv_rows, id_text
from lark.scoring.authors_scores import SCORE, read_authors_scores

FORMATS = (
    "expected Parquet, or CSV with commas and a header, with the columns question_id, candidate_id, score"
)
NO_SCORE = frozenset({"", "na", "n/a", "nan", "null", "none", "<na>"})
"""Values that mean a missing score in a CSV file, in upper or lower case. An id with such a value stays an
id.
"""


@dataclass(frozen=True)
class Matched:
    """Another tool's scores, matched to the pool's trajectories."""

    score: np.ndarray
    """[R] In the pool's order; NaN where a score is missing."""
    counts: dict[str, int]
    """Counts for the manifest."""
    notes: list[str]
    """Messages about what does not match."""


def scores_file(method: Method) -> Path:
    """Path of another tool's scores (method=external)."""
    if not method.path:
        raise LarkError(
            "method=external needs method.path=<Parquet or CSV with question_id, candidate_id, score>."
        )
    path = Path(method.path).expanduser()
    if not path.is_file():
        what = "this is a folder; give a file" if path.is_dir() else "there is no such file"
        raise LarkError(f"method.path={path}: {what}.")
    return path


def read_scores(path: Path) -> pd.DataFrame:
    """The file as a table of strings and float64: question_id, candidate_id, score. NaN is a missing score."""
    with path.open("rb") as handle:
        magic = handle.read(4)
    if magic == b"PAR1":
        table = _parquet(path)
    elif magic.lstrip().startswith(b"{"):
        table = read_authors_scores(path)
    else:
        table = _csv(path)
    if table.empty:
        raise LarkError(f"{path}: the file has no scores.")
    unnamed = int((table[KEY] == "").any(axis=1).sum())
    if unnamed:
        raise LarkError(f"{path}: {unnamed} of {len(table)} rows have no question_id or no candidate_id.")
    twice = table.duplicated(KEY)
    if twice.any():
        raise LarkError(
            f"{path}: duplicate score for the trajectory {_name(table[twice])}; keep one row per question_id"
            " and candidate_id."
        )
    return table


def match(scores: pd.DataFrame, pool: pd.DataFrame, path: Path) -> Matched:
    """Scores of the pool's trajectories. Missing and unknown ones are counted; it is an error if nothing
    matches.
    """
    ours, theirs = _comparable(pool, scores)
    merged = ours.merge(theirs, on=KEY, how="left", indicator=True, validate="1:1")
    found = int((merged["_merge"] == "both").sum())
    if not found:
        raise LarkError(
            f"{path}: no row matches this pool. First row: {_name(scores)}; first trajectory of the pool:"
            f" {_name(pool)} (question_id / candidate_id, compared as text)."
        )
    score = merged[SCORE].to_numpy(dtype=np.float64)
    infinite = np.isinf(score)
    score = np.where(infinite, np.nan, score)  # an infinite score gives no usable weight
    missing, unknown = int(np.isnan(score).sum()), len(scores) - found
    notes = []
    if infinite.any():
        notes.append(f"{infinite.sum()} scores are infinite and count as missing")
    if missing:
        notes.append(f"{missing} of the pool's {len(pool)} trajectories have no score and cannot be selected")
    if unknown:
        known = pd.MultiIndex.from_frame(ours)
        other = scores[~pd.MultiIndex.from_frame(theirs[KEY]).isin(known)]
        notes.append(f"{unknown} of {len(scores)} rows match no trajectory in this pool, e.g. {_name(other)}")
    counts = {"unscored": missing, "infinite_scores": int(infinite.sum()), "unknown_scores": unknown}
    return Matched(score, counts, [f"{path}: {note}" for note in notes])


def _comparable(pool: pd.DataFrame, scores: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both with ids in one form: 7.0 and `7 ` are 7, whichever of the two files says so (a pool of an older
    version may). With ids as they are written, if different ones of the same file would become the same.
    """
    plain = [
        table.assign(**{name: table[name].map(_plain_id) for name in KEY}) for table in (pool[KEY], scores)
    ]
    ours, theirs = (pool[KEY], scores) if any(table.duplicated(KEY).any() for table in plain) else plain
    return ours, theirs


def _plain_id(text: str) -> str:
    return re.sub(r"\A(-?[0-9]+)\.0\Z", r"\1", text.strip())


def _parquet(path: Path) -> pd.DataFrame:
    try:
        file = pq.ParquetFile(path)
        _check_columns(path, file.schema_arrow.names)
        table = file.read(columns=[*KEY, SCORE])
    except (pa.ArrowException, OSError, ValueError) as error:
        raise LarkError(
            f"{path}: this looks like a Parquet file but cannot be read ({first_line(error)})."
        ) from error
    try:
        columns = {name: _ids(path, name, table[name]) for name in KEY}
    except (
        pa.ArrowException,
        OverflowError,
        ValueError,
    ) as error:  # dates and durations that Python does not have
        raise LarkError(
            f"{path}: its ids cannot be read ({first_line(error)}); ids must be text or whole numbers."
        ) from error
    kind = table[SCORE].type
    if not (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_null(kind)
    ):
        raise LarkError(f"{path}: the column `score` must contain numbers; its type is {kind}.")
    values = table[SCORE].cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).astype(np.float64)
    return pd.DataFrame({**columns, SCORE: values})


def _ids(path: Path, name: str, column: pa.ChunkedArray) -> list[str]:
    """Ids as text, like the pool's: 7 and 7.0 both become "7" (integers with missing values are saved as
    floats).
    """
    values = column.to_pylist()
    if pa.types.is_floating(column.type):
        fraction = next((v for v in values if v is not None and not float(v).is_integer()), None)
        if fraction is not None:
            raise LarkError(
                f"{path}: the column {name} contains {fraction}; ids must be text or whole numbers."
            )
    return ["" if v is None else id_text(v) for v in values]


def _csv(path: Path) -> pd.DataFrame:
    with path.open("rb") as handle:
        head = handle.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    if not head:
        raise LarkError(f"{path}: the file is empty; {FORMATS}.")
    if head.startswith(b"["):
        raise LarkError(f"{path}: this looks like JSON; {FORMATS}.")
    # Not with pandas: it fills short rows, cuts long ones and takes the first of two columns with the same
    # name.
    found: list[Mapping[str, str]] = []
    for row in csv_rows(path, spaced=True):
        if not found:
            _check_columns(path, list(row.values))
        found.append({name: row.values[name] for name in [*KEY, SCORE]})
    table = pd.DataFrame(
        found, columns=[*KEY, SCORE], dtype=object
    )  # text: an id may be "007", "NA" or "null"
    if table.empty:
        return table
    said = table[SCORE].str.strip()
    numbers = pd.to_numeric(said, errors="coerce").astype(np.float64)
    wrong = numbers.isna() & ~said.str.lower().isin(NO_SCORE)
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        raise LarkError(
            f"{path}: the column `score` must contain numbers; for {_name(table[first:])} it is"
            f" {said[first]!r}."
        )
    return table[KEY].assign(**{SCORE: numbers})


def _check_columns(path: Path, names: list[str]) -> None:
    twice = next((name for name in [*KEY, SCORE] if names.count(name) > 1), None)
    if twice is not None:
        raise LarkError(
            f"{path}: the column {twice!r} appears {names.count(twice)} times. Give every column its own"
            " name."
        )
    missing = [name for name in [*KEY, SCORE] if name not in names]
    if missing:
        marks = {";": "semicolons", "\t": "tabs", "|": "bars"} if len(names) == 1 else {}
        separator = next((what for mark, what in marks.items() if mark in names[0]), None)
        why = f" (the columns seem to be separated by {separator})" if separator else ""
        raise LarkError(f"{path}: missing column(s) {', '.join(missing)}{why}; {FORMATS}.")


def _name(rows: pd.DataFrame) -> str:
    return " / ".join(str(rows[name].iloc[0]) for name in KEY)
