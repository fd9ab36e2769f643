"""Exact quantities of the K trajectories of one question at the anchor model, and their table on disk.

The table has one row per trajectory; inner products with the question's other trajectories are lists in the
candidates' order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lark.analysis import decay_rate
from lark.analysis.gradients import Gram
from lark.analysis.kinds import GRADIENTS_TABLE
from lark.errors import LarkError
from lark.scoring.learnability import Floats

SCALARS = (
    "n_tokens",
    "nll",
    "brier",
    "hidden_min",
    "hidden_max",
    "hidden_square_sum",
    "surprisal_min",
    "surprisal_max",
)
"""Per trajectory: |a_k|, Σ_t -log p_t, Σ_t ||δ_t||², the extremes of ||h_t||, Σ_t ||h_t||², the extremes of
-log p_t.
"""


@dataclass(frozen=True)
class Question:
    """The K trajectories of a question, in the order of `candidate_id`."""

    question_id: str
    table: pd.DataFrame
    """candidate_id, teacher, and SCALARS."""
    gram: Gram
    tied: bool
    """Whether the student's head is tied to its embedding, so that `gram.gram` and `gram.untied` differ."""

    @property
    def K(self) -> int:  # noqa: N802 (the paper's name)
        return len(self.table)

    def column(self, name: str) -> Floats:
        return self.table[name].to_numpy(dtype=np.float64)

    @property
    def losses(self) -> Floats:
        """ℓ_k."""
        return np.asarray(self.column("nll") / self.column("n_tokens"))

    @property
    def brier(self) -> Floats:
        """Brier(y_k), the mean squared residual of a token (eq. (brier-def))."""
        return np.asarray(self.column("brier") / self.column("n_tokens"))

    @property
    def exact(self) -> Floats:
        """g* over the parameters that training updates."""
        return decay_rate.exact_score(self.gram.gram, self.losses)

    @property
    def surrogate(self) -> Floats:
        """g-hat."""
        return decay_rate.surrogate_score(self.brier, self.losses)

    @property
    def mean_cosine(self) -> float:
        """Mean cosine of two different trajectories' gradients: 0 where the diagonal approximation is
        exact.
        """
        norms = np.sqrt(np.diagonal(self.gram.gram))
        cosines = self.gram.gram / np.outer(norms, norms)
        return float((cosines.sum() - self.K) / (self.K * (self.K - 1)))

    def rows(self) -> pd.DataFrame:
        """The table as it is stored; g-hat, g* and ρ* are added for readers of the file."""
        parts = {f"gram_{name}": list(getattr(self.gram, name)) for name in ("rest", "head", "cross")}
        return self.table.assign(
            question_id=self.question_id, tied=self.tied, **parts, g_hat=self.surrogate, g_star=self.exact,
            rho_star=decay_rate.single_rates(self.gram.gram, self.losses),
        )  # fmt: skip


def read(folder: Path) -> list[Question]:
    """The questions of a finished artifact."""
    path = folder / GRADIENTS_TABLE.file
    if not path.is_file():
        raise LarkError(f"{folder} has no exact gradients: compute them with analysis.name=gradients.")
    table = pd.read_parquet(path)
    return [_question(str(name), group) for name, group in table.groupby("question_id", sort=True)]


def _question(name: str, group: pd.DataFrame) -> Question:
    group = group.sort_values("candidate_id").reset_index(drop=True)
    gram = Gram(*(np.stack(group[f"gram_{part}"].to_list()) for part in ("rest", "head", "cross")))
    return Question(name, group[["candidate_id", "teacher", *SCALARS]], gram, bool(group["tied"].iloc[0]))


def trajectories(questions: Sequence[Question]) -> pd.DataFrame:
    """A tidy table of all trajectories: the loss, g-hat, g* and ρ* of each."""
    columns: dict[str, list[Any]] = {}
    for question in questions:
        values = {
            "question_id": [question.question_id] * question.K,
            "candidate_id": question.table["candidate_id"].tolist(),
            "teacher": question.table["teacher"].tolist(),
            "n_tokens": question.table["n_tokens"].tolist(),
            "loss": question.losses.tolist(),
            "rho_hat": (question.brier / question.losses).tolist(),
            "rho_star": decay_rate.single_rates(question.gram.gram, question.losses).tolist(),
            "g_hat": question.surrogate.tolist(),
            "g_star": question.exact.tolist(),
        }
        for name, entries in values.items():
            columns.setdefault(name, []).extend(entries)
    return pd.DataFrame(columns)
