"""Exact quantities of the K trajectories of one question at the anchor model, and their table on disk.

The table has one row per trajectory. Inner products with the question's other trajectories are lists, in the
candidates' order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lark.analysis import decay_rate
from lark.analysis.checks import check_gradients
from lark.analysis.gradients import Gram
from lark.analysis.kinds import GRADIENTS_TABLE
from lark.scoring.learnability import Floats

SCALARS = (
    "n_tokens", "nll", "brier",
    "hidden_min", "hidden_max", "hidden_square_sum",
    "surprisal_min", "surprisal_max",
)  # fmt: skip
"""|a_k|, Σ_t -log p_t, Σ_t ||δ_t||²; extremes of ||h_t||, Σ_t ||h_t||²; extremes of -log p_t."""
GRAM_PARTS = ("rest", "head", "cross")


@dataclass(frozen=True)
class Question:
    """The K trajectories of a question, in the order of `candidate_id`."""

    question_id: str
    table: pd.DataFrame
    """candidate_id, teacher, and SCALARS."""
    gram: Gram
    tied: bool
    """True if the student's head is tied to its embedding: then `gram.gram` and `gram.untied` differ."""

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
        """Mean cosine of two different trajectories' gradients; 0 if the diagonal approximation is exact."""
        norms = np.sqrt(np.diagonal(self.gram.gram))
        cosines = self.gram.gram / np.outer(norms, norms)
        return float((cosines.sum() - self.K) / (self.K * (self.K - 1)))

    def rows(self) -> pd.DataFrame:
        """The table as it is stored; g-hat, g* and ρ* are added for readers of the file."""
        gram = {f"gram_{part}": list(getattr(self.gram, part)) for part in GRAM_PARTS}
        table = self.table.assign(question_id=self.question_id, tied=self.tied, **gram)
        rho_star = decay_rate.single_rates(self.gram.gram, self.losses)
        return table.assign(g_hat=self.surrogate, g_star=self.exact, rho_star=rho_star)


def read(folder: Path) -> list[Question]:
    """The questions of a finished artifact."""
    path = folder / GRADIENTS_TABLE.file
    check_gradients(path)
    table = pd.read_parquet(path)
    return [_question(str(name), group) for name, group in table.groupby("question_id", sort=True)]


def _question(name: str, group: pd.DataFrame) -> Question:
    group = group.sort_values("candidate_id").reset_index(drop=True)
    gram = Gram(*(np.stack(group[f"gram_{part}"].to_list()) for part in GRAM_PARTS))
    return Question(name, group[["candidate_id", "teacher", *SCALARS]], gram, bool(group["tied"].iloc[0]))


def trajectories(questions: Sequence[Question]) -> pd.DataFrame:
    """A tidy table of all trajectories: the loss, g-hat, g* and ρ* of each."""
    tables = []
    for question in questions:
        columns = {
            "question_id": question.question_id,
            "candidate_id": question.table["candidate_id"],
            "teacher": question.table["teacher"],
            "n_tokens": question.table["n_tokens"],
            "loss": question.losses,
            "rho_hat": question.brier / question.losses,
            "rho_star": decay_rate.single_rates(question.gram.gram, question.losses),
            "g_hat": question.surrogate,
            "g_star": question.exact,
        }
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)
