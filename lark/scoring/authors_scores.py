"""Scores in the formats of the LARK authors' code (method=external): `scores.json`.

Their scorers write one row of numbers per file of the pool, `scores[file][question]`, with
`candidate_files` naming the files. Their released LARK scorer writes a dictionary instead: for each
problem, a list of candidates with `g_hat`.
"""

from pathlib import Path
from typing import Any

import pandas as pd

from lark.config import Source
from lark.errors import LarkError
from lark.pool.rsr import question_name, teacher_files
from lark.pool.trajectories import KEY
from lark.reading.rows import id_text
from lark.reading.untrusted import quoted, read_object

SCORE = "score"
LARK_SCORE = "g_hat"
EXPECTED = (
    "expected `scores` and `candidate_files` as the authors' scorers write them, or their LARK scorer's"
    " `scores` by problem"
)


def read_authors_scores(path: Path) -> pd.DataFrame:
    """The file as a table of question_id, candidate_id, score. NaN is a missing score."""
    content = read_object(path)
    scores = content.get("scores")
    files = content.get("candidate_files")
    rows = _by_problem(path, scores) if isinstance(scores, dict) else _by_file(path, scores, files)
    return pd.DataFrame(rows, columns=[*KEY, SCORE]).astype({SCORE: "float64"})


def _by_file(path: Path, scores: Any, files: Any) -> list[tuple[str, str, Any]]:
    """A matrix [C][N]: C files of the paper's pool with the same N questions. Ids are those that `pool=rsr`
    gives them.
    """
    _require_matrix(path, scores, files)
    places = [Path(str(file["teacher"])) / Path(str(file["path"])).name for file in files]
    rows = []
    for place, file in enumerate(teacher_files(Source(), places)):
        for index, number in enumerate(scores[place]):
            _require_number(path, number, f"scores[{place}][{index}]")
            rows.append((question_name(index), file.candidate, number))
    return rows


def _by_problem(path: Path, scores: dict[str, Any]) -> list[tuple[str, str, Any]]:
    """A list of candidates for each problem. Ids are those of the JSONL file that was scored."""
    rows = []
    for problem, candidates in scores.items():
        _require_list(path, problem, candidates)
        for place, candidate in enumerate(candidates):
            where = f"scores[{problem!r}][{place}]"
            _require_candidate(path, candidate, where)
            _require_number(path, candidate[LARK_SCORE], f"{where}[{LARK_SCORE!r}]")
            rows.append((problem, id_text(candidate["candidate_id"]), candidate[LARK_SCORE]))
    return rows


def _require_matrix(path: Path, scores: Any, files: Any) -> None:
    if not (
        isinstance(scores, list) and isinstance(files, list) and all(isinstance(row, list) for row in scores)
    ):
        raise LarkError(f"{path}: this looks like JSON, but it is not a file of scores; {EXPECTED}.")
    if len(scores) != len(files):
        raise LarkError(
            f"{path}: `scores` has {len(scores)} rows, but `candidate_files` has {len(files)} files."
        )
    lengths = {len(row) for row in scores}
    if len(lengths) > 1:
        raise LarkError(
            f"{path}: the rows of `scores` have between {min(lengths)} and {max(lengths)} numbers, not one"
            " number."
        )
    for place, file in enumerate(files):
        if not (isinstance(file, dict) and {"teacher", "path"} <= set(file)):
            raise LarkError(f"{path}: candidate_files[{place}] has no `teacher` or no `path`.")


def _require_list(path: Path, problem: str, candidates: Any) -> None:
    if not isinstance(candidates, list):
        raise LarkError(
            f"{path}: scores[{problem!r}] must be a list of candidates; it is {quoted(candidates)}."
        )


def _require_candidate(path: Path, candidate: Any, where: str) -> None:
    if not (isinstance(candidate, dict) and {"candidate_id", LARK_SCORE} <= set(candidate)):
        raise LarkError(f"{path}: {where} has no `candidate_id` or no `{LARK_SCORE}`; {EXPECTED}.")


def _require_number(path: Path, value: Any, where: str) -> None:
    """None is a missing score, as NaN is."""
    if isinstance(value, bool) or not (value is None or isinstance(value, int | float)):
        raise LarkError(f"{path}: {where} must be a number; it is {quoted(value)}.")
