"""How similar each trajectory's gradient is to that of a validation set (method=less). Pure functions, no
model code.

A gradient is given as a direction (a short vector of length 1, lark/scoring/gradient_worker.py) and its norm.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from lark import config as conf
from lark.config.checks import user_path
from lark.errors import LarkError
from lark.pool.read import read
from lark.pool.trajectory import Trajectory, verdict
from lark.scoring.by_question import Floats, Integers

POOL_SETTING = re.compile(r"\bpool\.(?:fields|layout|incomplete)\b")
RENAME = (
    "Rename the file's columns to question, response and answer, or use another layout of docs/own-pool.md:"
    " pool.fields and pool.layout do not apply to this file."
)
ROWS = 8192
"""Vectors that are widened to fp64 at a time."""


def sample(questions: Iterable[str], number: int, seed: int) -> list[str]:
    """The questions with the smallest hashes: a sample that does not depend on their order."""
    distinct = dict.fromkeys(questions)
    return sorted(distinct, key=lambda question: hashlib.sha256(f"{seed}\x1f{question}".encode()).digest())[
        :number
    ]


def correct_or_all(trajectories: Sequence[Trajectory], pool: conf.Pool) -> list[Trajectory]:
    """The correct trajectories of each question; all of those whose correctness nobody knows, if it has no
    correct one.
    """
    judged = [(trajectory, verdict(trajectory, pool)) for trajectory in trajectories]
    right = {trajectory.question_id for trajectory, is_correct in judged if is_correct}
    return [
        trajectory
        for trajectory, is_correct in judged
        if is_correct or (is_correct is None and trajectory.question_id not in right)
    ]


def validation_file(asked: conf.Validation) -> Path:
    """The file of method.validation.path. Raises LarkError if it does not exist."""
    path = user_path("method.validation.path", str(asked.path))
    if not path.is_file():
        raise LarkError(f"method.validation.path={asked.path}: there is no such file.")
    return path


def validation_pool(config: conf.Config) -> conf.Pool:
    """The trajectories of that file, read as a pool is."""
    path = str(validation_file(config.method.validation))
    return conf.Pool(name="validation", format="rows", path=path, answer_format=config.pool.answer_format)


def validation_set(config: conf.Config) -> list[Trajectory]:
    """The trajectories of method.validation.path to compare with: the correct ones of a sample of its
    questions.
    """
    asked, source = config.method.validation, validation_pool(config)
    try:
        found = list(read(source))
    except LarkError as error:
        raise LarkError(f"method.validation.path: {_without_pool_settings(str(error))}") from error
    if not found:
        raise LarkError(
            f"method.validation.path={asked.path}: the file is empty. Give a file with trajectories."
        )
    names = set(sample((t.question_id for t in found), asked.questions, asked.seed))
    kept = correct_or_all([t for t in found if t.question_id in names], source)
    if not kept:
        raise LarkError(
            f"method.validation.path={asked.path}: all trajectories of {len(names)} questions are wrong, so"
            " there is nothing to compare with. Give correct trajectories, or raise"
            " method.validation.questions."
        )
    return kept


def _without_pool_settings(message: str) -> str:
    """An error of a pool's reader, with advice for a file to which the settings of the pool do not apply."""
    sentences = re.split(r"(?<=\.) (?=[A-Z])", message)
    kept = [sentence for sentence in sentences if POOL_SETTING.search(sentence) is None]
    if len(kept) == len(sentences):
        return message
    return " ".join(
        [
            *kept,
            (
                "Remove the trajectory from the file, or give its text."
                if "pool.incomplete" in message
                else RENAME
            ),
        ]
    )


def directions(column: Iterable[bytes]) -> np.ndarray:
    """[R, m] vectors as they are stored, in half precision."""
    parts = list(column)
    return np.frombuffer(b"".join(parts), dtype=np.float16).reshape(len(parts), -1)


def cosines(vectors: np.ndarray, target: Floats) -> Floats:
    """[R] Cosine of each of the vectors [R, m] with the target [m]; NaN for a vector of zeros."""
    found = np.full(len(vectors), np.nan)
    for start in range(0, len(vectors), ROWS):
        part = vectors[start : start + ROWS].astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            found[start : start + ROWS] = (
                part @ target / (np.linalg.norm(part, axis=1) * np.linalg.norm(target))
            )
    return found


def held_out_cosines(vectors: np.ndarray, norms: Floats, question: Integers, chosen: Integers) -> Floats:
    """[R] Cosine of each gradient with the mean gradient of the rows `chosen`, without those of its own
    question.

    vectors [R, m]: directions. norms [R]. question [R]: codes. chosen: rows of the validation set, from at
    least two questions.
    """
    raw = vectors[chosen].astype(np.float64) * norms[chosen, None]
    kept = np.isfinite(raw).all(axis=1)
    raw, chosen = raw[kept], chosen[kept]
    own = np.unique(question[chosen])
    if len(own) < 2:
        raise LarkError(
            "method=less compares each candidate with trajectories of other questions, and the validation set"
            " has fewer than two questions with a usable trajectory. Give a file (method.validation.path), or"
            " a pool with more correct trajectories."
        )
    total = raw.sum(axis=0)
    found = cosines(vectors, total / len(raw))
    for code in own:
        inside = question[chosen] == code
        rows = np.flatnonzero(question == code)
        found[rows] = cosines(vectors[rows], (total - raw[inside].sum(axis=0)) / (~inside).sum())
    return found
