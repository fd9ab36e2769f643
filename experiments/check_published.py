"""RSR's published selection compared with ours, question by question: `make check-published SCALE=paper`."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from experiments.harness.candidates import candidates
from experiments.harness.published_selection import COMPARED, comparison, published_candidates, selection_file
from experiments.harness.report import Report, Table
from experiments.harness.sweep import Sweep
from lark.output.tables import Cell
from lark.pool import trajectories as pools
from lark.pool.trajectories import KEY
from lark.scoring.methods import METHODS

TITLE = "Check. RSR's published selection and ours"
OUTCOMES = ("the same trajectory", "the same teacher, another rollout", "another teacher", "not in the pool")


def render(sweep: Sweep) -> Report:
    (trial,) = sweep.trials
    file = selection_file(trial.config, sweep.scale)  # before anything is scored: it may be missing
    caption = (
        f"For each question of the pool that {file.name} contains, the trajectory that RSR's authors selected"
        " for this student, and the one of `method=rsr budget=1`. Published trajectories have no ids; they"
        " are found in the pool by their text."
    )
    scored = candidates(sweep, trial)
    pool = sweep.folder(trial, pools.POOL_TABLE)
    if scored is None or pool is None:
        return Report(TITLE, caption, pd.DataFrame(), measured=False)
    published = published_candidates(file, pools.iterate(pool / pools.FILE, columns=[*KEY, *COMPARED]))
    data = comparison(published, scored.assign(score=METHODS["rsr"].score(scored)))
    outcomes = _shares("our choice is", {outcome: data["outcome"] == outcome for outcome in OUTCOMES})
    ranks = data["rank"].dropna()
    places = _shares("theirs is within our first", {place: ranks <= place for place in (1, 2, 3, 5, 10)})
    return Report(TITLE, caption, data, [outcomes, places], notes=_notes(data), summary=_summary(data))


def _shares(heading: str, cases: Mapping[Any, pd.Series]) -> Table:
    """The number and the share of questions for which each case is true."""
    rows = []
    for case, holds in cases.items():
        share = holds.sum() / max(1, len(holds))
        rows.append([Cell(str(case)), Cell(f"{holds.sum():,}"), Cell(f"{share:.1%}")])
    return Table([heading, "questions", "share"], rows)


def _notes(data: pd.DataFrame) -> list[str]:
    different = data[data["rank"] > 1]
    notes = [
        "Three things differ from RSR's code even if both are right: the prompt (theirs: the pool's system"
        " message, no instruction in the user turn; `student.instruction=null` gives this one), the"
        " end-of-turn token (ours is scored, theirs is not), and rounding in bfloat16."
    ]
    if len(different):
        gap = (different["their_score"] / different["our_score"] - 1).median()
        notes.append(
            f"Where the two differ, the published trajectory's RSR is {gap:.2%} above our choice's (median)."
        )
    return notes


def _summary(data: pd.DataFrame) -> str:
    same = int((data["outcome"] == OUTCOMES[0]).sum())
    return f"{same:,} of {len(data):,} published trajectories are our choice ({same / len(data):.1%})."
