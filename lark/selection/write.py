"""The select stage: writes `selection.parquet` and `train.jsonl` from scores and a budget. The maths is in
rules.py.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from lark.config import Budget, Config
from lark.errors import LarkError
from lark.models.dialogue import dialogue_of, response_text
from lark.pool import trajectories as pools
from lark.pool.duplicates import similar_pairs, sketch
from lark.pool.trajectories import KEY
from lark.scoring import external_scores as external
from lark.scoring.external_scores import scores_file
from lark.scoring.methods import METHODS, find_method, shortest, token_length
from lark.scoring.sources import SOURCES
from lark.selection.allocation import Across
from lark.selection.character import character, nearly_length, sentence
from lark.selection.rules import Selection, check_dropped, select, share_weights
from lark.store.store import Kind, atomic
from lark.work.operation import Counts, Job

log = logging.getLogger(__name__)

SELECTION = Kind("selection", 1, "selection.parquet")
TRAINING_SET = "train.jsonl"
UNDECIDED = (
    "the scores just inside and just outside the budget are equal: the candidate's id decided, not the method"
)

ALL_TAKEN = {
    "uniform": "the budget takes every candidate: nothing is left out, and their weights are equal",
    "margins": (
        "the budget takes every candidate: nothing is left out, and weights are relative to the lowest score"
    ),
}
"""By `whole_weights`."""
UNREACHED = (
    "%s: %d of %d questions get no trajectory, because the budget cannot hold the best one of each question"
)
MANY_CUT = 0.05
CUT = (
    "%d of the %d selected trajectories are cut at student.max_length=%d, so they end without their answer:"
    " raise student.max_length, or remove long responses from the pool"
)
"""Logged if more than MANY_CUT of the selection is cut."""


def write_selection(job: Job) -> dict[str, Any]:
    """Choose, weight, and write both files. Returns counts for the manifest."""
    config, folder = job.config, job.folder
    method = find_method(config.method.name, config.method.higher_is_better, config.method.reverse)
    table, matched = candidates(job.inputs), {}
    if "external" in method.needs:
        path = scores_file(config.method)
        found = external.match(external.read_scores(path), table, path)
        check_coverage(found.score, table["teacher"], config, path)
        table, matched = table.assign(external=found.score), found.counts
        for note in found.notes:
            log.warning(note)
    assert config.weighting_name is not None
    score = method.score(table, config.method.options)
    if config.method.teacher is not None:
        score[table["teacher"] != find_teacher(config.method.teacher, table["teacher"])] = np.nan
    selection = select(
        score, table["question_id"], table["candidate_id"],
        config.budget.size, config.weighting_name, higher_is_better=method.higher_is_better,
        across=across(config.budget, table), whole=config.whole_weights,
    )  # fmt: skip
    check_dropped(selection)
    if not len(selection.row):
        raise LarkError(f"{config.budget.typed}: the first trajectory already exceeds this budget. Raise it.")
    shared: dict[str, int] = {}
    if config.share_weights:
        groups = near_duplicates(job.inputs["pool"] / pools.FILE, selection.row, table)
        selection = share_weights(selection, groups)
        shared = {"near_duplicates": len(groups) - len(np.unique(groups))}
    preference = score if method.higher_is_better else -score
    if selection.n_tied > selection.n_questions / 2:
        log.warning("for %d of %d questions %s", selection.n_tied, selection.n_questions, UNDECIDED)
    if selection.n_whole:
        log.warning(
            "for %d of %d questions %s",
            selection.n_whole,
            selection.n_questions,
            ALL_TAKEN[config.whole_weights],
        )
    if selection.n_unreached:
        log.warning(UNREACHED, config.budget.typed, selection.n_unreached, selection.n_questions)
    chosen = as_table(selection, table)
    with atomic(folder / SELECTION.file) as draft:
        chosen.to_parquet(draft, index=False)
    with atomic(folder / TRAINING_SET) as draft:
        _write_training_set(config, selection, job.inputs["pool"] / pools.FILE, draft)
    return {
        "questions": selection.n_questions - len(selection.dropped) - selection.n_unreached,
        "trajectories": len(chosen),
        **_length_counts(table.iloc[selection.row], config.student.max_length),
        **character(preference, table, selection.row).counts(),
        **shared,
        "budget_takes_all": selection.n_whole,
        "tied": selection.n_tied,
        "unreached": selection.n_unreached,
        "dropped": [str(question) for question in selection.dropped],
        **matched,
    }


def across(budget: Budget, table: pd.DataFrame) -> Across | None:
    """The budget across all questions, or None if it is per question. Tokens are the response tokens that
    are trained on.
    """
    if budget.limit is None:
        return None
    cost = None if budget.tokens is None else table["n_tokens"].fillna(0).to_numpy(dtype=np.int64)
    return Across(budget.limit, cost)


def _length_counts(chosen: pd.DataFrame, longest: int) -> dict[str, int]:
    """Response tokens of the selected trajectories, and how many of them are truncated (decision 13)."""
    cut = int(chosen["truncated"].sum()) if "truncated" in chosen else 0
    if cut > MANY_CUT * len(chosen):
        log.warning(CUT, cut, len(chosen), longest)
    return {"tokens": int(chosen["n_tokens"].sum()), "truncated": cut}


def check_coverage(
    score: np.ndarray, teachers: pd.Series, config: Config, path: Path, least: float = 0.95
) -> None:
    """Refuse another tool's scores if they lack many of the candidates: the selection would be made from
    the rest alone.
    """
    teacher = config.method.teacher
    among = (
        np.ones(len(score), dtype=bool)
        if teacher is None
        else (teachers == find_teacher(teacher, teachers)).to_numpy()
    )
    scored = int(np.isfinite(score[among]).sum())
    if scored < least * among.sum() and not config.method.partial:
        raise LarkError(
            f"{path}: only {scored} of {among.sum()} candidates have a score ({scored / among.sum():.1%}; at"
            f" least {least:.0%} are needed), and the others cannot be selected. Score the whole pool, or"
            " accept this with method.partial=true."
        )


def find_teacher(wanted: str, teachers: Iterable[str]) -> str:
    """The teacher with that name, or with that number in alphabetical order."""
    names = sorted(set(teachers))
    if wanted in names:
        return wanted
    if wanted.isdigit() and 1 <= int(wanted) <= len(names):
        return names[int(wanted) - 1]
    raise LarkError(
        f"method.teacher={wanted}: choose one of {', '.join(names)}, or a number from 1 to {len(names)}."
    )


def check_scores_file(config: Config) -> Path | None:
    """Read another tool's scores (method.path) before anything else runs, so that errors in it are reported
    first.
    """
    if "external" not in METHODS[config.method.name].needs:
        return None
    path = scores_file(config.method)
    external.read_scores(path)
    return path


def check_choice(config: Config, inputs: Mapping[str, Path]) -> None:
    """Fail early on a method.teacher or a method.path that is wrong for this pool, not after hours of
    scoring.
    """
    pool = inputs["pool"] / pools.FILE
    if config.method.teacher is not None:
        find_teacher(config.method.teacher, pools.frame(pool, ["teacher"])["teacher"])
    path = check_scores_file(config)
    if path is not None:
        table = pools.frame(pool, [*KEY, "teacher"])
        check_coverage(
            external.match(external.read_scores(path), table, path).score, table["teacher"], config, path
        )


def near_duplicates(pool: Path, rows: np.ndarray, table: pd.DataFrame) -> np.ndarray:
    """[M] A number for each of these rows of the pool: the same for candidates of a question that are
    nearly identical.
    """
    texts: dict[int, str] = {}
    start = 0
    wanted = np.sort(rows)
    for part in pools.tables(pool, pools.TEXT):
        here = wanted[np.searchsorted(wanted, start) : np.searchsorted(wanted, start + len(part))]
        texts |= zip(here.tolist(), map(response_text, part.take(here - start).to_pylist()), strict=True)
        start += len(part)
    groups = np.arange(len(rows))
    questions = table["question_id"].to_numpy()[rows]
    for members in pd.Series(np.arange(len(rows))).groupby(questions).indices.values():
        for first, second in (
            similar_pairs([sketch(texts[int(rows[at])]) for at in members]) if len(members) > 1 else []
        ):
            groups[groups == groups[members[second]]] = groups[members[first]]
    return groups


def candidates(inputs: Mapping[str, Path]) -> pd.DataFrame:
    """One row per trajectory of the pool, in the pool's order, with the columns of the inputs."""
    table = pools.frame(inputs["pool"] / pools.FILE, [*KEY, "teacher"])
    for source in SOURCES.values():
        if source.kind is not None and source.kind.name in inputs:
            path = inputs[source.kind.name] / source.kind.file
            there = pq.read_schema(path).names
            # The loss is for the selection's character: passes that compute it for other purposes store it
            # too.
            wanted = [
                name
                for name in sorted({*source.columns, "truncated", "nll"})
                if name in there and name not in table.columns
            ]
            table = table.merge(
                pd.read_parquet(path, columns=[*KEY, *wanted]), on=KEY, how="left", validate="1:1"
            )
    return table


def report_character(config: Config, counts: Counts, made: bool) -> None:
    """Log what the selection is like, and whether a plain rule would do (lark/selection/character.py)."""
    if (said := sentence(counts)) is not None:
        log.info(said)
    if (note := length_note(config, counts)) is not None:
        log.warning(note)


def length_note(config: Config, counts: Counts) -> str | None:
    """A note for a selection that is nearly a length rule, unless its method is meant to be one."""
    note = nearly_length(counts)
    return None if note is None or METHODS[config.method.name].function in (shortest, token_length) else note


def as_table(selection: Selection, table: pd.DataFrame) -> pd.DataFrame:
    """The selection as a readable table: what was chosen, why, and with what weight."""
    return pd.DataFrame(
        {
            **{name: table[name].to_numpy()[selection.row] for name in [*KEY, "teacher"]},
            "rank": selection.rank,
            "score": selection.score,
            "weight": selection.weight,
            "training_weight": selection.training_weight,
            "threshold": selection.threshold,
            "tau": selection.tau,
        }
    )


def _write_training_set(config: Config, selection: Selection, pool: Path, path: Path) -> None:
    """Chat messages and a weight, readable by any trainer, in the pool's order. `weight` is B_n q: 1 where
    weights are uniform (decision 3). Rows of the selection are rows of the pool, so only the chosen texts
    become Python objects.
    """
    order = np.argsort(selection.row)
    chosen, weights = selection.row[order], selection.training_weight[order].tolist()
    start = done = 0
    with path.open("w", encoding="utf-8") as handle:
        for table in pools.tables(pool, pools.TEXT):
            here = chosen[done : np.searchsorted(chosen, start + len(table))] - start
            for row, weight in zip(
                table.take(here).to_pylist(), weights[done : done + len(here)], strict=True
            ):
                dialogue = dialogue_of(row, config.student.instruction, config.pool.turns == "last")
                tools = {"tools": dialogue.tools} if dialogue.tools else {}
                line = {
                    "messages": dialogue.messages,
                    **tools,
                    "weight": weight,
                    **{name: row[name] for name in KEY},
                }
                handle.write(json.dumps(line, ensure_ascii=False) + "\n")
            start, done = start + len(table), done + len(here)
