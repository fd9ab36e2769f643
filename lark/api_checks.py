"""Refusals of the functions that notebooks import (api.py)."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from lark.config.checks import one_of
from lark.errors import LarkError
from lark.grading.answers import AnswerFormat
from lark.scoring.methods import METHODS
from lark.store.manifest import Manifest


def require_trajectories(trajectories: Sequence[object]) -> None:
    if not trajectories:
        raise LarkError("There is no conversation to score.")


def require_column(method: str, columns: Collection[Any], options: Mapping[str, Any]) -> None:
    """Refuse the name of neither a method nor a column, and options of a column."""
    if method not in columns:
        raise LarkError(
            f"method={method}: it is neither a column of the table nor one of {', '.join(METHODS)}."
        )
    if options:
        raise LarkError(f"method={method} is a column and takes no options, such as {next(iter(options))}.")


def check_budget(budget: int) -> None:
    if budget < 1:
        raise LarkError(f"budget={budget} must be at least 1.")


def check_grader(grader: str, answer_format: str) -> None:
    one_of("grader", grader, ("paper", "verify"))
    one_of("answer_format", answer_format, tuple(form.value for form in AnswerFormat))


def check_finished(folder: Path, manifest: Manifest) -> None:
    if not manifest.finished:
        raise LarkError(f"{folder}: this artifact is not finished ({manifest.status}). Finish its run first.")


def require_table(folder: Path, files: Sequence[Path]) -> None:
    if not files:
        raise LarkError(f"{folder}: this artifact has no table.")
