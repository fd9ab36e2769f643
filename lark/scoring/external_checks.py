"""Refusals of another tool's scores (method=external): its path, its columns, its ids and its numbers."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from lark.errors import LarkError
from lark.pool.trajectories import KEY
from lark.reading.rows import is_json_list
from lark.reading.untrusted import quoted

SCORE_COLUMN = "score"
LARK_SCORE = "g_hat"
FORMATS = (
    "expected Parquet, or CSV with commas and a header, with the columns question_id, candidate_id, score"
)
AUTHORS_FORMATS = (
    "expected `scores` and `candidate_files` as the authors' scorers write them, or their LARK scorer's"
    " `scores` by problem"
)
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


def first_id(rows: pd.DataFrame) -> str:
    """The name of the first row's trajectory."""
    return " / ".join(str(rows[name].iloc[0]) for name in KEY)


def check_path_given(path: str | None) -> None:
    if not path:
        raise LarkError(
            "method=external needs method.path=<Parquet or CSV with question_id, candidate_id, score>."
        )


def check_is_file(path: Path) -> None:
    if not path.is_file():
        reason = "this is a folder; give a file" if path.is_dir() else "there is no such file"
        raise LarkError(f"method.path={path}: {reason}.")


def check_not_empty(path: Path, table: pd.DataFrame) -> None:
    if table.empty:
        raise LarkError(f"{path}: the file has no scores; {FORMATS}.")


def check_ids(path: Path, table: pd.DataFrame) -> None:
    unnamed = int((table[KEY] == "").any(axis=1).sum())
    if unnamed:
        raise LarkError(f"{path}: {unnamed} of {len(table)} rows have no question_id or no candidate_id.")


def check_distinct(path: Path, table: pd.DataFrame) -> None:
    repeated = table[table.duplicated(KEY)]
    if len(repeated):
        raise LarkError(
            f"{path}: duplicate score for the trajectory {first_id(repeated)}; keep one row per question_id"
            " and candidate_id."
        )


def check_matches(path: Path, n_matched: int, scores: pd.DataFrame, pool: pd.DataFrame) -> None:
    """Refuse scores of another pool."""
    if not n_matched:
        raise LarkError(
            f"{path}: no row matches this pool. First row: {first_id(scores)}; first trajectory of the pool:"
            f" {first_id(pool)} (question_id / candidate_id, compared as text)."
        )


def check_columns(path: Path, names: list[str]) -> None:
    """Refuse a file without one of the columns."""
    missing = [name for name in (*KEY, SCORE_COLUMN) if name not in names]
    if missing:
        raise LarkError(f"{path}: missing column(s) {', '.join(missing)}{_separator(names)}; {FORMATS}.")


def _separator(names: list[str]) -> str:
    """A guess at the separator of a file whose header was read as one column."""
    for mark, separator in SEPARATORS.items():
        if len(names) == 1 and mark in names[0]:
            return f" (the columns seem to be separated by {separator})"
    return ""


def check_number_type(path: Path, kind: pa.DataType) -> None:
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)
    if not any(is_kind(kind) for is_kind in kinds):
        raise LarkError(f"{path}: the column `score` must contain numbers; its type is {kind}.")


def check_no_json(path: Path) -> None:
    if is_json_list(path):
        raise LarkError(f"{path}: this looks like JSON; {FORMATS}.")


def check_numbers(path: Path, table: pd.DataFrame, texts: pd.Series, wrong: pd.Series) -> None:
    """Refuse a score that is neither a number nor a sign of a missing one."""
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        raise LarkError(
            f"{path}: the column `score` must contain numbers; for {first_id(table[first:])} it is"
            f" {texts[first]!r}."
        )


def check_matrix(path: Path, scores: Any, files: Any) -> None:
    """Refuse anything but the authors' matrix of scores and their list of files."""
    is_matrix = isinstance(scores, list) and all(isinstance(row, list) for row in scores)
    if not (is_matrix and isinstance(files, list)):
        raise LarkError(f"{path}: this looks like JSON, but it is not a file of scores; {AUTHORS_FORMATS}.")


def check_same_files(path: Path, scores: list[Any], files: list[Any]) -> None:
    """Refuse a matrix with another number of rows than files."""
    if len(scores) != len(files):
        raise LarkError(
            f"{path}: `scores` has {len(scores)} rows, but `candidate_files` has {len(files)} files."
        )


def check_list(path: Path, problem: str, candidates: Any) -> None:
    if not isinstance(candidates, list):
        raise LarkError(
            f"{path}: scores[{problem!r}] must be a list of candidates; it is {quoted(candidates)}."
        )


def check_candidate(path: Path, candidate: Any, where: str) -> None:
    if not (isinstance(candidate, dict) and {"candidate_id", LARK_SCORE} <= set(candidate)):
        raise LarkError(f"{path}: {where} has no `candidate_id` or no `{LARK_SCORE}`; {AUTHORS_FORMATS}.")


def check_number(path: Path, value: Any, where: str) -> None:
    """None is a missing score, as NaN is."""
    if isinstance(value, bool) or not (value is None or isinstance(value, int | float)):
        raise LarkError(f"{path}: {where} must be a number; it is {quoted(value)}.")
