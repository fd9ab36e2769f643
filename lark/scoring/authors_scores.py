"""Scores in the formats of the LARK authors' code (method=external): `scores.json`.

Their scorers write one row of numbers per file of the pool, `scores[file][question]`, with
`candidate_files` naming the files. Their released LARK scorer writes a dictionary instead: for each
problem, a list of candidates with `g_hat`.
"""

from pathlib import Path
from typing import Any

import pandas as pd

from lark.config import Source
from lark.pool.rsr import question_name, teacher_files
from lark.pool.trajectories import KEY
from lark.reading.untrusted import read_object
from lark.reading.values import id_text
from lark.scoring import external_checks as checks
from lark.scoring.external_checks import LARK_SCORE, SCORE_COLUMN


def read_authors_scores(path: Path) -> pd.DataFrame:
    """The file as a table of question_id, candidate_id, score. NaN is a missing score."""
    content = read_object(path)
    scores = content.get("scores")
    files = content.get("candidate_files")
    rows = _by_problem(path, scores) if isinstance(scores, dict) else _by_file(path, scores, files)
    return pd.DataFrame(rows, columns=[*KEY, SCORE_COLUMN]).astype({SCORE_COLUMN: "float64"})


def _by_file(path: Path, scores: Any, files: Any) -> list[tuple[str, str, Any]]:
    """A matrix [C][N]: C files of the paper's pool with the same N questions. Ids are those that `pool=rsr`
    gives them.
    """
    checks.check_matrix(path, scores, files)
    checks.check_same_files(path, scores, files)
    places = [Path(str(file["teacher"])) / Path(str(file["path"])).name for file in files]
    rows = []
    for place, file in enumerate(teacher_files(Source(), places)):
        for index, number in enumerate(scores[place]):
            checks.check_number(path, number, f"scores[{place}][{index}]")
            rows.append((question_name(index), file.candidate, number))
    return rows


def _by_problem(path: Path, scores: dict[str, Any]) -> list[tuple[str, str, Any]]:
    """A list of candidates for each problem. Ids are those of the JSONL file that was scored."""
    rows = []
    for problem, candidates in scores.items():
        checks.check_list(path, problem, candidates)
        for place, candidate in enumerate(candidates):
            where = f"scores[{problem!r}][{place}]"
            checks.check_candidate(path, candidate, where)
            checks.check_number(path, candidate[LARK_SCORE], f"{where}[{LARK_SCORE!r}]")
            rows.append((problem, id_text(candidate["candidate_id"]), candidate[LARK_SCORE]))
    return rows
