"""Refusals of the scoring passes. No model code."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lark.config.checks import one_of
from lark.errors import LarkError, first_line
from lark.scoring.sources import SOURCES


def check_shards(shards: Sequence[Path]) -> None:
    """Refuse to merge shards some of which are missing."""
    missing = [shard.name for shard in shards if not shard.exists()]
    if missing:
        raise LarkError(
            f"{shards[0].parent}: {len(missing)} of {len(shards)} shards are missing ({missing[0]}…)."
            " Run again."
        )


def check_finite(question: str, *values: ArrayLike) -> None:
    """Refuse gradients that are NaN or infinite."""
    if not all(np.isfinite(value).all() for value in values):
        raise LarkError(f"A gradient of question {question} is not finite: check the student's weights.")


def check_any_response(encoded: Sequence[object], path: str | None) -> None:
    """Refuse a validation set in which truncation leaves no response."""
    if not encoded:
        raise LarkError(
            f"method.validation.path={path}: no trajectory is left to compare with, because the prompts of"
            " all of them are longer than student.max_length. Give other trajectories."
        )


def check_validation_rows(rows: Sequence[object], path: str | None) -> None:
    """Refuse an empty validation file."""
    if not rows:
        raise LarkError(f"method.validation.path={path}: the file is empty. Give a file with trajectories.")


def check_any_correct(trajectories: Sequence[object], questions: int, path: str | None) -> None:
    """Refuse a validation set whose trajectories are all wrong."""
    if not trajectories:
        raise LarkError(
            f"method.validation.path={path}: all trajectories of {questions} questions are wrong, so there is"
            " nothing to compare with. Give correct trajectories, or raise method.validation.questions."
        )


def check_other_questions(questions: int) -> None:
    """Refuse a validation set in which some question has nothing to be compared with."""
    if questions < 2:
        raise LarkError(
            "method=less compares each candidate with trajectories of other questions, and the validation set"
            " has fewer than two questions with a usable trajectory. Give a file (method.validation.path), or"
            " a pool with more correct trajectories."
        )


def check_verdicts(folder: Path, missing: Sequence[str]) -> None:
    """Refuse to collect verdicts some of which are missing. `missing`: the questions."""
    if missing:
        raise LarkError(
            f"{folder}: verdicts are missing or damaged, e.g. that of question {missing[0]}. Run the same"
            " command again to ask for them."
        )


def check_known_correctness(known: int, method: str, pool: str) -> None:
    """Refuse a method that prefers correct trajectories if no trajectory can be judged."""
    if not known:
        raise LarkError(
            f"method={method} needs to know which trajectories are correct, and no trajectory of the pool"
            f" {pool} has an `answer` or a `correct`. Add one of them to the pool (docs/own-pool.md), set"
            " pool.labels=vote, or choose another method."
        )


NEEDED = tuple(name for name in SOURCES if name != "external")
"""What a user's method may need."""


def check_needs(needs: Sequence[str]) -> None:
    """Refuse names of columns or artifacts that do not exist."""
    for name in needs:
        one_of("method.needs", name, NEEDED)


def no_function(target: str, error: Exception) -> LarkError:
    return LarkError(
        f"method.function={target}: it cannot be imported ({first_line(error)}). Give"
        " package.module:function, and run where Python finds the package: install it, add its folder to"
        " PYTHONPATH, or start the command in that folder."
    )


def check_callable(function: object, target: str) -> None:
    if not callable(function):
        raise LarkError(f"method.function={target}: it is a {type(function).__name__}, not a function.")


def failed_function(target: str, error: Exception, columns: Sequence[str]) -> LarkError:
    """The error that a user's function has raised."""
    reason = f"{type(error).__name__}: {first_line(error)}"
    return LarkError(
        f"method.function={target}: it raised {reason}. It sees the columns {', '.join(columns)};"
        " method.needs adds others (docs/add-a-method.md)."
    )


def scores_returned(values: object, rows: int, target: str) -> NDArray[np.float64]:
    """The scores that a user's function has returned. Refuses anything but one number per row."""
    try:
        scores = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        scores = np.full((), np.nan)
    if scores.shape != (rows,):
        raise LarkError(
            f"method.function={target}: it must return one number for each of the {rows} rows of its table,"
            f" and returned {type(values).__name__} of shape {np.shape(scores)}."
        )
    return scores


def not_by_question(target: str) -> LarkError:
    return LarkError(
        f"method.function={target}: its scores depend on the order of the rows, on other questions or on"
        " chance. A score must follow from the candidates of its own question (docs/add-a-method.md)."
    )


def require_tokenizer(tokenizer: object) -> None:
    if tokenizer is None:
        raise LarkError("score: give the tokenizer of the model too, or the model's path instead of both.")


def refuse_tokenizer(tokenizer: object) -> None:
    if tokenizer is not None:
        raise LarkError("score: a model that is given by its path brings its own tokenizer. Leave it out.")
