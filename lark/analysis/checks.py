"""Refusals of the analyses: pools, students and artifacts that a measurement cannot use."""

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from lark.errors import LarkError

OTHER_STUDENT = "choose another student for analysis.name=theory."


def check_sampled(questions: Sequence[str]) -> None:
    """Refuse a pool in which no question has a choice."""
    if not questions:
        raise LarkError("No question of the pool has two candidates: there is nothing to select from.")


def check_trajectories(question: str, count: int) -> None:
    """Refuse a question that student.max_length leaves without a choice."""
    if count < 2:
        raise LarkError(
            f"Question {question} has fewer than two trajectories within student.max_length: raise it."
        )


def check_linear_head(bias: bool, softcap: float | None, scale: float) -> None:
    """Refuse a student whose logits are not a linear map of its hidden states."""
    if bias or softcap is not None or scale != 1.0:
        raise LarkError(
            "The theory of App. B assumes logits z = W_out h, but this student adds a bias, a scale or a"
            f" soft cap: {OTHER_STUDENT}"
        )


def refuse_forward_mode(kind: str, reason: str) -> NoReturn:
    """Refuse a student with an operation that has no forward-mode derivative."""
    raise LarkError(f"A {kind} student has no forward-mode derivatives ({reason}): {OTHER_STUDENT}")


def check_attention(kind: str, same: bool) -> None:
    """Refuse a student whose hidden states change with `blockwise_attention`."""
    if not same:
        raise LarkError(
            f"The attention of a {kind} student is more than causal attention with a window: {OTHER_STUDENT}"
        )


def check_plane(dimensions: int) -> None:
    """Refuse a path of weights that does not span a plane."""
    if dimensions < 2:
        raise LarkError(
            "A landscape needs a question with at least 3 candidates whose scores differ: choose another"
            " question."
        )


def check_gradients(table: Path) -> None:
    """Refuse an artifact without exact gradients."""
    if not table.is_file():
        raise LarkError(f"{table.parent} has no exact gradients: compute them with analysis.name=gradients.")


def check_snapshots(checkpoint: Path, count: int) -> None:
    """Refuse a checkpoint without snapshots of its training run."""
    if count < 2:
        raise LarkError(
            f"{checkpoint} has no snapshots of its training run: add training.snapshots=11 (or"
            " another number) to the command, which trains it again with snapshots."
        )
