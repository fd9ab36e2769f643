"""The selections that RSR's authors publish with the paper's pool: `selected_by_rsr/`, one file per
student, with one trajectory per question.

Rows have the pool's `messages` and no ids, so a published trajectory is found in the pool by its text.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lark.config import Config, Pool
from lark.errors import LarkError
from lark.pool.hashing import hash64
from lark.pool.hub import is_remote, snapshot
from lark.pool.read import read

FOLDER = "selected_by_rsr"
COMPARED = ("question", "response", "thinking")
"""Columns of the pool by which a published trajectory is found."""
SHOWN = 8


def selection_file(config: Config, scale: str) -> Path:
    """The published selection for this run's student, downloaded with the pool if it is not here."""
    setting = f"experiment.scales.{scale}.selection"
    given = config.experiment.scales[scale].get("selection")
    if given:
        path = Path(str(given)).expanduser()
        _require_file(path, setting)
        return path
    folder = _pool_folder(config) / FOLDER
    files = sorted(folder.rglob("*.json"))
    _require_published(folder, files)
    student = _plain(Path(str(config.student.path)).name)
    of_student = [file for file in files if student in _plain(str(file.relative_to(folder)))]
    _require_one(of_student, files, folder, config, setting)
    return of_student[0]


def _pool_folder(config: Config) -> Path:
    pool = config.pool
    _require_papers_layout(config)
    return snapshot(pool) if is_remote(pool) else Path(str(pool.path)).expanduser()


def _plain(name: str) -> str:
    """`Qwen-2.5-7B` and `qwen2.5-7b` are the same student."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def published_candidates(file: Path, pool: Iterable[Mapping[str, Any]]) -> dict[str, set[str]]:
    """By question, the candidates of the pool with the text that was published; none if the pool has no
    such text.

    `pool`: rows with question_id, candidate_id and COMPARED. Several candidates can have the same text. Only
    hashes are kept: the paper's pool has gigabytes of text.
    """
    candidates: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
    question_ids: dict[int, str] = {}
    for row in pool:
        question_ids[hash64(row["question"].strip())] = row["question_id"]
        candidates[row["question_id"], _response(row)].add(row["candidate_id"])
    published: dict[str, set[str]] = {}
    for trajectory in read(Pool(name="published", format="rows", path=str(file))):
        question_id = question_ids.get(hash64(trajectory.question.strip()))
        if question_id is not None:
            published[question_id] = candidates.get((question_id, _response(vars(trajectory))), set())
    _require_shared(file, published)
    return published


def _response(row: Mapping[str, Any]) -> int:
    return hash64(((row["thinking"] or "") + row["response"]).strip())


def comparison(published: Mapping[str, set[str]], scored: pd.DataFrame) -> pd.DataFrame:
    """One row per question: our choice, theirs, and the rank and score that ours gives to theirs.

    `scored` has question_id, candidate_id, teacher and score; the lowest score is our choice.
    """
    rows = []
    for question, candidates in scored.groupby("question_id", sort=True):
        if question not in published:
            continue
        ranked = candidates.sort_values(["score", "candidate_id"], ignore_index=True)
        ours = ranked.iloc[0]
        theirs = ranked[ranked["candidate_id"].isin(published[str(question)])]
        row = {"question_id": question, "ours": ours["candidate_id"], "our_score": ours["score"]}
        rows.append(row)
        if theirs.empty:
            row["outcome"] = "not in the pool"
            continue
        best = theirs.iloc[0]
        place = int(theirs.index[0])
        row |= {"theirs": best["candidate_id"], "their_score": best["score"], "rank": place + 1}
        if place == 0:
            row["outcome"] = "the same trajectory"
        elif best["teacher"] == ours["teacher"]:
            row["outcome"] = "the same teacher, another rollout"
        else:
            row["outcome"] = "another teacher"
    columns = ["question_id", "ours", "our_score", "theirs", "their_score", "rank", "outcome"]
    return pd.DataFrame(rows, columns=columns)


def _require_file(path: Path, setting: str) -> None:
    if not path.is_file():
        raise LarkError(f"{setting}={path}: there is no such file. Give a JSON file of {FOLDER}.")


def _require_papers_layout(config: Config) -> None:
    if config.pool.format != "rsr":
        raise LarkError(
            f"pool={config.pool.name} has no published selection to compare with. Use the paper's pool: make"
            " check-published SCALE=paper, or a folder in its layout: pool=rsr pool.path=<folder>."
        )


def _require_published(folder: Path, files: Sequence[Path]) -> None:
    if not files:
        raise LarkError(
            f"{folder}: there are no JSON files. The published selections are part of the dataset"
            " Umean/RSR_data: on a machine with a network, run `hf download Umean/RSR_data --repo-type"
            f" dataset --include '{FOLDER}/*' --local-dir <the pool's folder>`."
        )


def _require_one(
    of_student: list[Path], files: list[Path], folder: Path, config: Config, setting: str
) -> None:
    if len(of_student) != 1:
        names = ", ".join(str(file.relative_to(folder)) for file in (of_student or files)[:SHOWN])
        number = "several selections" if of_student else "no selection"
        raise LarkError(
            f"{folder} has {number} for {config.student.path} ({names}). Choose one with {setting}=<file>."
        )


def _require_shared(file: Path, published: Mapping[str, set[str]]) -> None:
    if not published:
        raise LarkError(
            f"{file}: no question of this selection is in the pool. Check that both are of the same dataset."
        )
