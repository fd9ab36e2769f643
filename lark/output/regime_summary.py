"""How the student finds the pool, in the summary of a run, beside the students of the references."""

import logging
from collections.abc import Sequence

import pandas as pd

from lark.output.tables import markdown_table
from lark.printing import text_table
from lark.scoring.sources import SCORES_TABLE
from lark.scoring.student_regime import (
    COLUMNS,
    LABELS,
    REFERENCES,
    StudentRegime,
    far_from_references,
    student_regime,
)
from lark.store.integrity import verify
from lark.store.store import Store
from lark.work.operation import Step

log = logging.getLogger(__name__)
TITLE = "How the untrained student finds the pool's candidates (means)"
HEADER = ["student", *LABELS.values()]


def regime_of(store: Store, plan: Sequence[Step]) -> StudentRegime | None:
    """The regime of a run's student on its pool. None for a run without finished scores."""
    for step in plan:
        scores = step.artifacts[0]
        if step.makes(SCORES_TABLE) and store.state(scores) == "finished":
            folder = store.path(scores)
            verify(folder)
            return student_regime(pd.read_parquet(folder / SCORES_TABLE.file, columns=list(COLUMNS)))
    return None


def regime_rows(student: str, regime: StudentRegime) -> list[list[str]]:
    """One row for the run's student and one for each reference."""
    rows = []
    for name, numbers in {student: regime, **REFERENCES}.items():
        values = [getattr(numbers, field) for field in LABELS]
        rows.append([name, *("–" if value is None else f"{value:.3f}" for value in values)])
    return rows


def show_regime(student: str, regime: StudentRegime | None) -> None:
    """Print the table, and a warning if the student is far from the references."""
    if regime is None:
        return
    log.info("%s\n\n%s\n", TITLE, text_table(HEADER, regime_rows(student, regime)))
    far = far_from_references(regime)
    if far:
        log.warning("%s.\n", far)


def regime_markdown(student: str, regime: StudentRegime | None) -> str:
    """The same for summary.md; empty for a run without scores."""
    if regime is None:
        return ""
    far = far_from_references(regime)
    note = f"\nNote: {far}.\n" if far else ""
    return f"{TITLE}\n\n{markdown_table(HEADER, regime_rows(student, regime))}{note}"
