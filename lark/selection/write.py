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
from lark.scoring.methods import METHODS, find_method, shortest, token_length
from lark.selection.character import nearly_length, sentence
from lark.selection.choose import choose, pool_rows
from lark.selection.rules import Selection
from lark.store.store import Kind, atomic
from lark.work.operation import Counts, Job

log = logging.getLogger(__name__)

SELECTION = Kind("selection", 1, "selection.parquet")
TRAINING_SET = "train.jsonl"


def write_selection(job: Job) -> dict[str, Any]:
    """Choose, weight, and write both files. Returns counts for the manifest."""
    choice = choose(job.config, job.inputs)
    with atomic(job.folder / SELECTION.file) as draft:
        as_table(choice.selection, choice.table).to_parquet(draft, index=False)
    with atomic(job.folder / TRAINING_SET) as draft:
        _write_training_set(job.config, choice.selection, job.inputs["pool"] / pools.FILE, draft)
    return choice.counts()


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
    rule = find_method(method.name, method.higher_is_better, method.reverse)
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
    if note is None or METHODS[config.method.name].function in (shortest, token_length):
        return None
    return note
