"""Similarity of each trajectory's gradient to that of a validation set (method=less). Pure functions, no
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
from lark.scoring.checks import check_any_correct, check_other_questions, check_validation_rows

POOL_SETTING = re.compile(r"\bpool\.(?:fields|layout|incomplete)\b")
REMOVE = "Remove the trajectory from the file, or give its text."
RENAME = (
    "Rename the file's columns to question, response and answer, or use another layout of docs/own-pool.md:"
    " pool.fields and pool.layout do not apply to this file."
)
WIDENED = 8192
"""Vectors that are widened to fp64 at a time."""


def sample(questions: Iterable[str], number: int, seed: int) -> list[str]:
    """The questions with the smallest hashes. A larger sample contains the smaller one, in any order."""

    def digest(question: str) -> bytes:
        return hashlib.sha256(f"{seed}\x1f{question}".encode()).digest()

    return sorted(dict.fromkeys(questions), key=digest)[:number]


def correct_or_all(trajectories: Sequence[Trajectory], pool: conf.Pool) -> list[Trajectory]:
    """The correct trajectories of each question; if it has none, those that cannot be judged."""
    verdicts = [verdict(trajectory, pool) for trajectory in trajectories]
    pairs = list(zip(trajectories, verdicts, strict=True))
    answered = {trajectory.question_id for trajectory, is_correct in pairs if is_correct}
    chosen = []
    for trajectory, is_correct in pairs:
        if is_correct or (is_correct is None and trajectory.question_id not in answered):
            chosen.append(trajectory)
    return chosen


def validation_file(settings: conf.Validation) -> Path:
    """The file of method.validation.path. Raises LarkError if it does not exist."""
    path = user_path("method.validation.path", str(settings.path))
    if not path.is_file():
        raise LarkError(f"method.validation.path={settings.path}: there is no such file.")
    return path


def validation_pool(config: conf.Config) -> conf.Pool:
    """The trajectories of that file, read as a pool is."""
    path = str(validation_file(config.method.validation))
    return conf.Pool(name="validation", format="rows", path=path, answer_format=config.pool.answer_format)


def validation_set(config: conf.Config) -> list[Trajectory]:
    """The trajectories of method.validation.path to compare with: the correct ones of a sample of its
    questions.
    """
    settings = config.method.validation
    source = validation_pool(config)
    try:
        trajectories = list(read(source))
    except LarkError as error:
        raise LarkError(f"method.validation.path: {_without_pool_settings(str(error))}") from error
    check_validation_rows(trajectories, settings.path)
    questions = set(sample((t.question_id for t in trajectories), settings.questions, settings.seed))
    sampled = [trajectory for trajectory in trajectories if trajectory.question_id in questions]
    chosen = correct_or_all(sampled, source)
    check_any_correct(chosen, len(questions), settings.path)
    return chosen


def _without_pool_settings(message: str) -> str:
    """An error of a pool's reader, with advice for a file to which the settings of the pool do not apply."""
    sentences = re.split(r"(?<=\.) (?=[A-Z])", message)
    applicable = [sentence for sentence in sentences if POOL_SETTING.search(sentence) is None]
    if len(applicable) == len(sentences):
        return message
    advice = REMOVE if "pool.incomplete" in message else RENAME
    return " ".join([*applicable, advice])


def directions(column: Iterable[bytes]) -> np.ndarray:
    """[R, m] vectors as they are stored, in half precision."""
    parts = list(column)
    return np.frombuffer(b"".join(parts), dtype=np.float16).reshape(len(parts), -1)


def cosines(vectors: np.ndarray, target: Floats) -> Floats:
    """[R] Cosine of each of the vectors [R, m] with the target [m]; NaN for a vector of zeros."""
    result = np.full(len(vectors), np.nan)
    for start in range(0, len(vectors), WIDENED):
        part = vectors[start : start + WIDENED].astype(np.float64)
        lengths = np.linalg.norm(part, axis=1) * np.linalg.norm(target)
        with np.errstate(divide="ignore", invalid="ignore"):
            result[start : start + WIDENED] = part @ target / lengths
    return result


def held_out_cosines(vectors: np.ndarray, norms: Floats, question: Integers, chosen: Integers) -> Floats:
    """[R] Cosine of each gradient with the mean gradient of the rows `chosen`, without those of its own
    question.

    vectors [R, m]: directions. norms [R]. question [R]: codes. chosen: rows of the validation set, from at
    least two questions.
    """
    gradients = vectors[chosen].astype(np.float64) * norms[chosen, None]
    finite = np.isfinite(gradients).all(axis=1)
    gradients = gradients[finite]
    chosen_question = question[chosen[finite]]
    validation_questions = np.unique(chosen_question)
    check_other_questions(len(validation_questions))
    total = gradients.sum(axis=0)
    result = cosines(vectors, total / len(gradients))
    for code in validation_questions:
        inside = chosen_question == code
        rows = np.flatnonzero(question == code)
        others = (total - gradients[inside].sum(axis=0)) / (~inside).sum()
        result[rows] = cosines(vectors[rows], others)
    return result
