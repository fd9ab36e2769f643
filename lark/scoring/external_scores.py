"""Another tool's scores (method=external): a Parquet or CSV file with question_id, candidate_id, score, read and checked."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from lark.config import Method
from lark.errors import LarkError, first_line
from lark.pool.trajectories import KEY

SCORE = "score"
FORMATS = "Parquet, or CSV with commas and a header, is read, with the columns question_id, candidate_id, score"
NO_SCORE = frozenset({"", "na", "n/a", "nan", "null", "none", "<na>"})
"""What a CSV says of a missing score, in any case of letters. Ids that look so are ids."""


@dataclass(frozen=True)
class Matched:
    """The pool's trajectories beside another tool's scores."""

    score: np.ndarray
    """[R] In the pool's order; NaN where there is none."""
    counts: dict[str, int]
    """For the manifest."""
    notes: list[str]
    """For the reader: what does not match."""


def scores_file(method: Method) -> Path:
    """Where another tool's scores are (method=external)."""
    if not method.path:
        raise LarkError("method=external needs method.path=<Parquet or CSV with question_id, candidate_id, score>.")
    path = Path(method.path).expanduser()
    if not path.is_file():
        what = "this is a folder; name the file" if path.is_dir() else "there is no such file"
        raise LarkError(f"method.path={path}: {what}.")
    return path


def read_scores(path: Path) -> pd.DataFrame:
    """The file as a table of strings and float64: question_id, candidate_id, score. NaN is a missing score."""
    with path.open("rb") as handle:
        magic = handle.read(4)
    table = _parquet(path) if magic == b"PAR1" else _csv(path)
    if table.empty:
        raise LarkError(f"{path}: it has a header, but no rows.")
    unnamed = int((table[KEY] == "").any(axis=1).sum())
    if unnamed:
        raise LarkError(f"{path}: {unnamed} of {len(table)} rows have no question_id or no candidate_id.")
    twice = table.duplicated(KEY)
    if twice.any():
        raise LarkError(
            f"{path}: the trajectory {_name(table[twice])} is scored twice; each question_id and candidate_id may stand there once."
        )
    return table


def match(scores: pd.DataFrame, pool: pd.DataFrame, path: Path) -> Matched:
    """The scores of the pool's trajectories. What has none, or is not in the pool, is counted; nothing in common is an error."""
    merged = pool[KEY].merge(scores, on=KEY, how="left", indicator=True, validate="1:1")
    found = int((merged["_merge"] == "both").sum())
    if not found:
        raise LarkError(
            f"{path}: none of its rows is of this pool; its first is {_name(scores)}, the pool's {_name(pool)} "
            "(question_id / candidate_id, compared as text)."
        )
    score = merged[SCORE].to_numpy(dtype=np.float64)
    infinite = np.isinf(score)
    score = np.where(infinite, np.nan, score)  # no weight follows from an infinite score
    missing, unknown = int(np.isnan(score).sum()), len(scores) - found
    notes = []
    if infinite.any():
        notes.append(f"{infinite.sum()} scores are infinite, and count as missing")
    if missing:
        notes.append(f"{missing} of the pool's {len(pool)} trajectories have no score, and cannot be selected")
    if unknown:
        known = pd.MultiIndex.from_frame(pool[KEY])
        other = scores[~pd.MultiIndex.from_frame(scores[KEY]).isin(known)]
        notes.append(f"{unknown} of its {len(scores)} rows are of no trajectory of this pool, e.g. {_name(other)}")
    counts = {"unscored": missing, "infinite_scores": int(infinite.sum()), "unknown_scores": unknown}
    return Matched(score, counts, [f"{path}: {note}" for note in notes])


def _parquet(path: Path) -> pd.DataFrame:
    try:
        file = pq.ParquetFile(path)
        _check_columns(path, file.schema_arrow.names)
        table = file.read(columns=[*KEY, SCORE])
    except (pa.ArrowException, OSError) as error:
        raise LarkError(f"{path}: it begins like a Parquet file, but cannot be read ({first_line(error)}).") from error
    columns = {name: _ids(path, name, table[name]) for name in KEY}
    kind = table[SCORE].type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind)):
        raise LarkError(f"{path}: the column `score` must hold numbers; it holds {kind}.")
    values = table[SCORE].cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).astype(np.float64)
    return pd.DataFrame({**columns, SCORE: values})


def _ids(path: Path, name: str, column: pa.ChunkedArray) -> list[str]:
    """As text, which is what the pool's are: 7 and 7.0 are both "7" (integers with gaps are saved as floats)."""
    values = column.to_pylist()
    if pa.types.is_floating(column.type):
        fraction = next((v for v in values if v is not None and not float(v).is_integer()), None)
        if fraction is not None:
            raise LarkError(f"{path}: the column {name} holds {fraction}; ids are text or whole numbers.")
        values = [None if v is None else int(v) for v in values]
    return ["" if v is None else str(v) for v in values]


def _csv(path: Path) -> pd.DataFrame:
    with path.open("rb") as handle:
        head = handle.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    if not head:
        raise LarkError(f"{path}: it is empty; {FORMATS}.")
    if head.startswith((b"{", b"[")):
        raise LarkError(f"{path}: it looks like JSON; {FORMATS}.")
    try:
        header = pd.read_csv(path, nrows=0, encoding="utf-8-sig", skipinitialspace=True)
        _check_columns(path, list(header.columns))
        # Everything as text: an id may be "007", "NA" or "null".
        table = pd.read_csv(
            path, dtype=str, keep_default_na=False, encoding="utf-8-sig", skipinitialspace=True, index_col=False
        )
    except (ValueError, OSError, EOFError) as error:  # pandas' own errors are ValueErrors
        raise LarkError(
            f"{path}: it is neither Parquet nor a CSV that can be read ({first_line(error)}); {FORMATS}."
        ) from error
    said = table[SCORE].str.strip()
    numbers = pd.to_numeric(said, errors="coerce").astype(np.float64)
    wrong = numbers.isna() & ~said.str.lower().isin(NO_SCORE)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise LarkError(f"{path}: the column `score` must hold numbers; for {_name(table[row:])} it is {said[row]!r}.")
    return table[KEY].assign(**{SCORE: numbers})


def _check_columns(path: Path, names: list[str]) -> None:
    missing = [name for name in [*KEY, SCORE] if name not in names]
    if missing:
        marks = {";": "semicolons", "\t": "tabs", "|": "bars"} if len(names) == 1 else {}
        separator = next((what for mark, what in marks.items() if mark in names[0]), None)
        why = f" (its columns seem to be separated by {separator})" if separator else ""
        raise LarkError(f"{path}: the column {', '.join(missing)} is missing{why}; {FORMATS}.")


def _name(rows: pd.DataFrame) -> str:
    return " / ".join(str(rows[name].iloc[0]) for name in KEY)
