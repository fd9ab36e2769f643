"""Choose and weight trajectories for a configuration: the candidates with their scores, the selection, and
the notes and counts about it. The maths is in rules.py.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from lark.config import Budget, Config
from lark.errors import LarkError
from lark.models.dialogue import response_text
from lark.pool import trajectories as pools
from lark.pool.duplicates import similar_pairs
from lark.pool.trajectories import KEY
from lark.pool.windows import sketch
from lark.scoring import external_scores as external
from lark.scoring.external_scores import scores_file
from lark.scoring.own_method import check_own_scores, method_of
from lark.scoring.sources import SOURCES
from lark.selection.allocation import Across
from lark.selection.character import character
from lark.selection.rules import Selection, check_dropped, select, share_weights

log = logging.getLogger(__name__)

UNDECIDED = (
    "the last selected and the first rejected candidate have equal scores, so the tie was broken by"
    " candidate_id"
)
ALL_TAKEN = {
    "uniform": "the budget takes every candidate: nothing is left out, and their weights are equal",
    "margins": (
        "the budget takes every candidate: nothing is left out, and weights are relative to the lowest score"
    ),
}
"""A note on questions that are taken whole, for each value of `whole_weights`."""
UNREACHED = (
    "%s: %d of %d questions get no trajectory, because the budget cannot hold the best one of each question"
)
MANY_TRUNCATED = 0.05
"""Share of truncated trajectories in a selection from which it is reported."""
TRUNCATED_CHOICE = (
    "%d of the %d selected trajectories are cut at student.max_length=%d, so they end without their answer:"
    " raise student.max_length, or remove long responses from the pool"
)
LEAST_SCORED = 0.95
"""Share of candidates that another tool must have scored: the selection is made from them alone."""


@dataclass(frozen=True)
class Choice:
    """A selection from a table of candidates."""

    table: pd.DataFrame
    """One row per trajectory of the pool, in the pool's order."""
    selection: Selection
    preference: np.ndarray
    """[R] The score, negated where lower is better."""
    extra_counts: Mapping[str, int] = field(default_factory=dict)
    """Counts that only some configurations have."""

    def counts(self) -> dict[str, Any]:
        """Counts for the manifest."""
        selection = self.selection
        chosen = self.table.iloc[selection.row]
        return {
            "questions": selection.n_questions - len(selection.dropped) - selection.n_unreached,
            "trajectories": len(chosen),
            "tokens": int(chosen["n_tokens"].sum()),
            "truncated": self.n_truncated,
            **character(self.preference, self.table, selection.row).counts(),
            "budget_takes_all": selection.n_whole,
            "tied": selection.n_tied,
            "unreached": selection.n_unreached,
            "dropped": [str(question) for question in selection.dropped],
            **self.extra_counts,
        }

    @property
    def n_truncated(self) -> int:
        """Selected trajectories that are cut at student.max_length (decision 13)."""
        if "truncated" not in self.table:
            return 0
        return int(self.table["truncated"].iloc[self.selection.row].sum())


def choose(config: Config, inputs: Mapping[str, Path]) -> Choice:
    """The trajectories that the budget selects by the method's scores, with their weights."""
    assert config.weighting_name is not None
    method = method_of(config.method)
    table = candidates(inputs)
    counts: dict[str, int] = {}
    if "external" in method.needs:
        matched = _external(config, table)
        table = table.assign(external=matched.score)
        counts |= matched.counts
    score = method.score(table, config.method.options)
    if method.origin:
        check_own_scores(method, table, score, config.method.options)
    if config.method.teacher is not None:
        score[table["teacher"] != find_teacher(config.method.teacher, table["teacher"])] = np.nan
    selection = select(
        score,
        table["question_id"],
        table["candidate_id"],
        config.budget.size,
        config.weighting_name,
        higher_is_better=method.higher_is_better,
        across=across(config.budget, table),
        whole=config.whole_weights,
    )
    check_dropped(selection)
    check_reached(selection, config.budget)
    if config.share_weights:
        groups = near_duplicates(inputs["pool"] / pools.FILE, selection.row, table)
        selection = share_weights(selection, groups)
        counts["near_duplicates"] = len(groups) - len(np.unique(groups))
    choice = Choice(table, selection, score if method.higher_is_better else -score, counts)
    _report(config, choice)
    return choice


def _external(config: Config, table: pd.DataFrame) -> external.Matched:
    """Another tool's scores of the candidates. Logs what does not match."""
    matched = _matched(config, table)
    for note in matched.notes:
        log.warning(note)
    return matched


def _matched(config: Config, table: pd.DataFrame) -> external.Matched:
    path = scores_file(config.method)
    matched = external.match(external.read_scores(path), table, path)
    check_coverage(matched.score, table["teacher"], config, path)
    return matched


def _report(config: Config, choice: Choice) -> None:
    """Warn of a budget that decides little, reaches too few questions, or takes truncated trajectories."""
    selection = choice.selection
    questions = selection.n_questions
    if selection.n_tied > questions / 2:
        log.warning("for %d of %d questions %s", selection.n_tied, questions, UNDECIDED)
    if selection.n_whole:
        log.warning(
            "for %d of %d questions %s", selection.n_whole, questions, ALL_TAKEN[config.whole_weights]
        )
    if selection.n_unreached:
        log.warning(UNREACHED, config.budget.typed, selection.n_unreached, questions)
    selected = len(selection.row)
    if choice.n_truncated > MANY_TRUNCATED * selected:
        log.warning(TRUNCATED_CHOICE, choice.n_truncated, selected, config.student.max_length)


def candidates(inputs: Mapping[str, Path]) -> pd.DataFrame:
    """One row per trajectory of the pool, in the pool's order, with the columns of the inputs."""
    table = pools.frame(inputs["pool"] / pools.FILE, [*KEY, "teacher"])
    for source in SOURCES.values():
        if source.kind is not None and source.kind.name in inputs:
            path = inputs[source.kind.name] / source.kind.file
            # The loss is for the selection's character: other passes that compute it store it too.
            useful = {*source.columns, "truncated", "nll"} & set(pq.read_schema(path).names)
            columns = [*KEY, *sorted(useful - set(table.columns))]
            table = table.merge(pd.read_parquet(path, columns=columns), on=KEY, how="left", validate="1:1")
    return table


def across(budget: Budget, table: pd.DataFrame) -> Across | None:
    """The budget across all questions, or None if it is per question. Tokens are the response tokens that
    are trained on.
    """
    if budget.limit is None:
        return None
    cost = None if budget.tokens is None else table["n_tokens"].fillna(0).to_numpy(dtype=np.int64)
    return Across(budget.limit, cost)


def near_duplicates(pool: Path, rows: np.ndarray, table: pd.DataFrame) -> np.ndarray:
    """[M] A number for each of these rows of the pool: the same for candidates of a question that are
    nearly identical.
    """
    ascending = np.sort(rows)
    texts = dict(zip(ascending.tolist(), map(response_text, pool_rows(pool, ascending)), strict=True))
    groups = np.arange(len(rows))
    questions = table["question_id"].to_numpy()[rows]
    for members in pd.Series(groups).groupby(questions).indices.values():
        if len(members) > 1:
            sketches = [sketch(texts[int(rows[member])]) for member in members]
            for first, second in similar_pairs(sketches):
                # All members of one group move to the other: similarity is passed on.
                groups[groups == groups[members[second]]] = groups[members[first]]
    return groups


def pool_rows(pool: Path, ascending: np.ndarray) -> Iterator[dict[str, Any]]:
    """These rows of the pool, with their texts."""
    start = 0
    for part in pools.tables(pool, pools.TEXT_COLUMNS):
        stop = start + len(part)
        here = ascending[np.searchsorted(ascending, start) : np.searchsorted(ascending, stop)]
        # Only the chosen texts become Python objects.
        yield from part.take(here - start).to_pylist()
        start = stop


def check_reached(selection: Selection, budget: Budget) -> None:
    """Refuse a budget that holds no trajectory at all."""
    if not len(selection.row):
        raise LarkError(f"{budget.typed}: the first trajectory already exceeds this budget. Raise it.")


def check_coverage(score: np.ndarray, teachers: pd.Series, config: Config, path: Path) -> None:
    """Refuse another tool's scores if they lack many of the candidates: the selection would be made from
    the rest alone.
    """
    teacher = config.method.teacher
    if teacher is not None:
        score = score[(teachers == find_teacher(teacher, teachers)).to_numpy()]
    scored = int(np.isfinite(score).sum())
    if scored < LEAST_SCORED * len(score) and not config.method.partial:
        raise LarkError(
            f"{path}: only {scored} of {len(score)} candidates have a score ({scored / len(score):.1%}; at"
            f" least {LEAST_SCORED:.0%} are needed), and the others cannot be selected. Score the whole pool,"
            " or accept this with method.partial=true."
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


def check_scores_file(config: Config) -> None:
    """Read another tool's scores (method.path) before anything else runs, so that errors in it are reported
    first.
    """
    if "external" in method_of(config.method).needs:
        external.read_scores(scores_file(config.method))


def check_choice(config: Config, inputs: Mapping[str, Path]) -> None:
    """Fail early on a method.teacher or a method.path that is wrong for this pool, not after hours of
    scoring.
    """
    pool = inputs["pool"] / pools.FILE
    if config.method.teacher is not None:
        find_teacher(config.method.teacher, pools.frame(pool, ["teacher"])["teacher"])
    if "external" in method_of(config.method).needs:
        _matched(config, pools.frame(pool, [*KEY, "teacher"]))
