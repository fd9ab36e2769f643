"""Shared by the surrogate, the landscape and the theory: the questions with exact gradients of a sweep's
only trial.
"""

from experiments.harness.sweep import Sweep
from lark.analysis import questions as statistics
from lark.analysis.kinds import GRADIENTS_TABLE
from lark.analysis.questions import Question
from lark.printing import counted


def questions_of(sweep: Sweep) -> list[Question] | None:
    """The questions with exact gradients. None if they are not finished."""
    folder = sweep.folder(sweep.trials[0], GRADIENTS_TABLE)
    return None if folder is None else statistics.read(folder)


def sizes(questions: list[Question]) -> str:
    """`50 questions × 33 candidates`, for captions."""
    candidates = [question.K for question in questions]
    numbers = "-".join(map(str, sorted({min(candidates), max(candidates)})))
    return f"{counted(len(questions), 'question')} × {numbers} candidates"
