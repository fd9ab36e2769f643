"""A selection method as data: its name, the columns that it needs and its function. methods.py lists them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from lark.errors import LarkError
from lark.scoring.by_question import Floats
from lark.scoring.checks import failed_function, scores_returned
from lark.scoring.options import converted
from lark.scoring.sources import SOURCES

RESERVED = frozenset(
    {"method", "weighting", "budget", "teacher", "scores", "higher_is_better", "reverse"}
    | {"function", "needs", "code"}
    | {"share_weights", "whole_weights"}
)
"""Names in a selection's fingerprint, which an option must not take."""


@dataclass(frozen=True)
class SelectionMethod:
    """A ranking of candidates."""

    name: str
    needs: frozenset[str]
    """Keys of SOURCES. `lengths` is always available: candidates have response tokens (decision 13)."""
    function: Callable[..., Floats]
    """Maps candidates and options to one score per row, NaN or infinite where it is undefined."""
    higher_is_better: bool = True
    origin: str = ""
    """The setting `method.function` of a user's method; empty for ours."""

    @property
    def columns(self) -> list[str]:
        """The columns that the function sees."""
        columns = {"question_id", "candidate_id", "n_tokens"}
        for source in self.needs:
            columns.update(SOURCES[source].columns)
        return sorted(columns)

    def score(self, trajectories: pd.DataFrame, options: Mapping[str, Any] | None = None) -> Floats:
        """[R] One score per row; NaN where the trajectory has no response token or the score is undefined."""
        self._check_columns(trajectories)
        arguments = self.check(options or {})
        candidate = trajectories["n_tokens"].to_numpy(dtype=np.float64, na_value=np.nan) > 0
        score = np.full(len(trajectories), np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            score[candidate] = self._returned(trajectories.loc[candidate, self.columns], arguments)
        score[np.isinf(score)] = np.nan
        return score

    def check(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options in the types that the function declares. Refuses those that it does not take."""
        reserved = next((name for name in options if name in RESERVED), None)
        if reserved is not None:
            raise LarkError(
                f"method.options.{reserved}: an option cannot have this name;"
                f" rename it in method={self.name}."
            )
        return converted(options, self.function, self.name)

    def _returned(self, trajectories: pd.DataFrame, arguments: Mapping[str, Any]) -> Floats:
        """What the function returns. Errors of a user's function become sentences."""
        if not self.origin:
            return self.function(trajectories, **arguments)
        try:
            values = self.function(trajectories, **arguments)
        except Exception as error:
            raise failed_function(self.origin, error, self.columns) from error
        return scores_returned(values, len(trajectories), self.origin)

    def _check_columns(self, trajectories: pd.DataFrame) -> None:
        """Refuse a table without a column that the method needs."""
        missing = sorted(set(self.columns) - set(trajectories.columns))
        if missing:
            raise LarkError(
                f"method={self.name} needs the column(s) {', '.join(missing)}, which the scores lack."
            )
