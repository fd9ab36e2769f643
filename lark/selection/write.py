"""The select stage: writes the selection as `selection.parquet` and `train.jsonl`, and reports its character.
choose.py makes it.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lark.config import Config, Method
from lark.models.dialogue import dialogue_of
from lark.pool import trajectories as pools
from lark.pool.trajectories import KEY
from lark.printing import near
from lark.scoring.methods import shortest, token_length
from lark.scoring.own_method import method_of
from lark.selection.character import nearly_length, sentence
from lark.selection.choose import choose, pool_rows
from lark.selection.code_record import changed_code
from lark.selection.rules import Selection
from lark.store.siblings import description, siblings
from lark.store.store import Kind, atomic
from lark.work.operation import Counts, Job

log = logging.getLogger(__name__)

SELECTION = Kind("selection", 1, "selection.parquet")
TRAINING_SET = "train.jsonl"
ALL_SCORES = "scores.parquet"
"""The scores of all candidates, if no other code can compute them again: those of a user's function, or of a
method whose code has changed (lark/selection/code_record.py).
"""


CHANGED = "the code of %s has changed since %s was made: the selection is made again, with the new code"


def write_selection(job: Job) -> dict[str, Any]:
    """Choose, weight, and write both files. Returns counts for the manifest."""
    choice = choose(job.config, job.inputs)
    method = method_of(job.config.method)
    if changed_code(method):
        sign = 1.0 if method.higher_is_better else -1.0
        with atomic(job.folder / ALL_SCORES) as draft:
            choice.table[KEY].assign(score=sign * choice.preference).to_parquet(draft, index=False)
    with atomic(job.folder / SELECTION.file) as draft:
        as_table(choice.selection, choice.table).to_parquet(draft, index=False)
    with atomic(job.folder / TRAINING_SET) as draft:
        _write_training_set(job.config, choice.selection, job.inputs["pool"] / pools.FILE, draft)
    return choice.counts()


def report_changed_code(job: Job) -> None:
    """Say that a selection is made again because its method or weighting has changed since it was made."""
    new = description(job.folder)
    for folder in siblings(job.folder, but=("code",)):
        old = description(folder)
        if old.get("inputs") == new.get("inputs"):
            names = _changed_names(old["depends"].get("code", {}), new["depends"].get("code", {}))
            settings = [f"{name}={new['depends'][name]}" for name in names]
            log.warning(CHANGED, " and ".join(settings), f"{folder.parent.name}/{folder.name}")
            return


def _changed_names(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """`method`, `weighting`, or both."""
    return [name for name in ("method", "weighting") if old.get(name) != new.get(name)]


def as_table(selection: Selection, table: pd.DataFrame) -> pd.DataFrame:
    """The selection as a readable table: what was chosen, why, and with what weight."""
    ids = {name: table[name].to_numpy()[selection.row] for name in [*KEY, "teacher"]}
    return pd.DataFrame(
        {
            **ids,
            "rank": selection.rank,
            "score": selection.score,
            "weight": selection.weight,
            "training_weight": selection.training_weight,
            "threshold": selection.threshold,
            "tau": selection.tau,
        }
    )


def utilities(folder: Path, method: Method) -> dict[tuple[str, str], float]:
    """The score of each trajectory of a selection, negated where the method prefers lower ones."""
    table = pd.read_parquet(folder / SELECTION.file, columns=[*KEY, "score"])
    rule = method_of(method)
    sign = 1.0 if rule.higher_is_better else -1.0
    rows = table.itertuples(index=False, name=None)
    return {(str(question), str(candidate)): sign * score for question, candidate, score in rows}


def _write_training_set(config: Config, selection: Selection, pool: Path, path: Path) -> None:
    """Chat messages and a weight, readable by any trainer, in the pool's order. `weight` is B_n q: 1 where
    weights are uniform (decision 3).
    """
    order = np.argsort(selection.row)
    rows = pool_rows(pool, selection.row[order])
    with path.open("w", encoding="utf-8") as handle:
        for row, weight in zip(rows, selection.training_weight[order].tolist(), strict=True):
            handle.write(json.dumps(training_row(config, row, weight), ensure_ascii=False) + "\n")


def training_row(config: Config, row: Mapping[str, Any], weight: float) -> dict[str, Any]:
    """A line of a training set, from a row of a pool."""
    dialogue = dialogue_of(row, config.student.instruction, config.pool.turns == "last")
    line: dict[str, Any] = {"messages": dialogue.messages}
    if dialogue.tools:
        line["tools"] = dialogue.tools
    return {**line, "weight": weight, **{name: row[name] for name in KEY}}


def selection_result(config: Config, folder: Path, counts: Counts) -> dict[str, str]:
    """What a run that selects ends with."""
    weights = pd.read_parquet(folder / SELECTION.file, columns=["training_weight"])["training_weight"]
    spread = "all 1"
    if weights.nunique() > 1:
        deviation = weights.std(ddof=0)
        spread = f"{weights.min():.2f} to {weights.max():.2f} (mean 1, standard deviation {deviation:.2f})"
    return {
        "trajectories": f"{counts['trajectories']:,} of {counts['questions']:,} questions",
        "weights": spread,
        "training set": near(folder / TRAINING_SET),
    }


def report_character(config: Config, counts: Counts, made: bool) -> None:
    """Log what the selection is like, and whether a plain rule would do (lark/selection/character.py)."""
    text = sentence(counts)
    if text is not None:
        log.info(text)
    note = length_note(config, counts)
    if note is not None:
        log.warning(note)


def length_note(config: Config, counts: Counts) -> str | None:
    """A note for a selection that is nearly a length rule, unless its method is meant to be one."""
    note = nearly_length(counts)
    if note is None or method_of(config.method).function in (shortest, token_length):
        return None
    return note
