"""Ways to rank the candidates of a view: every method that the existing artifacts allow, and those of
finished selections.
"""

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache as once
from inspect import getdoc, signature
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from lark.config.method import method_key
from lark.errors import LarkError
from lark.explorer.listing import Entry
from lark.explorer.pool_table import PoolTable
from lark.explorer.problems import PageError
from lark.explorer.tables import OpenView
from lark.explorer.views import selections_of
from lark.scoring.by_question import Floats
from lark.scoring.methods import METHODS, find_method
from lark.scoring.selection_method import RESERVED, SelectionMethod
from lark.scoring.sources import SOURCES
from lark.selection.choose import find_teacher
from lark.selection.write import ALL_SCORES

CONF = Path(__file__).parents[2] / "conf" / "method"


@dataclass(frozen=True)
class Ranking:
    """A method with its options."""

    key: str
    label: str
    method: SelectionMethod
    options: Mapping[str, Any] = field(default_factory=dict)
    teacher: str | None = None
    stored: Entry | None = None
    """A selection that keeps the scores, if the code here is not the one that computed them."""

    @property
    def is_external(self) -> bool:
        """Whether the scores are an external tool's, which only its selections have, for what they chose."""
        return "external" in self.method.needs

    @property
    def needs(self) -> set[str]:
        """Columns."""
        return {"n_tokens", *(column for source in self.method.needs for column in SOURCES[source].columns)}

    def describe(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "label": self.label,
            "method": self.method.name,
            "higher": self.method.higher_is_better,
            "about": about(self.method),
        }


@once
def label_of(name: str) -> str:
    """The method's name in tables: `label` in conf/method/<name>.yaml."""
    try:
        values = yaml.safe_load((CONF / f"{name}.yaml").read_text(encoding="utf-8"))
        return str(values["label"])
    except (OSError, KeyError):  # a method of the user
        return name


@once
def about(method: SelectionMethod) -> str:
    """The first paragraph of the docstring of the method's function."""
    text = " ".join((getdoc(method.function) or "").split("\n\n")[0].split())
    # An external tool's scores have the direction that their selection states: neither is the reverse.
    is_external = "external" in method.needs
    if method.origin:
        text = f"A method of your own: {method.origin}."
    is_reversed = method.higher_is_better != METHODS.get(method.name, method).higher_is_better
    return f"{text} Reversed here: the other end is selected." if is_reversed and not is_external else text


def rankings_of(opened: OpenView) -> list[Ranking]:
    """All rankings of a view, in the order of METHODS."""
    available = set(opened.columns({column for source in SOURCES.values() for column in source.columns}))
    rankings = {}
    for method in METHODS.values():
        ranking = Ranking(method.name, label_of(method.name), method)
        if ranking.needs <= available:
            rankings[ranking.key] = ranking
    for entry in selections_of(opened.listing, opened.view):
        try:
            ranking = ranking_of(opened.listing.config(entry)["depends"], entry)
        except LarkError:
            continue  # the selection itself says what is wrong
        if ranking.needs <= {*available, "external"}:
            rankings.setdefault(ranking.key, ranking)
    places = {name: place for place, name in enumerate(METHODS)}
    return sorted(rankings.values(), key=lambda r: (places.get(r.method.name, len(places)), r.key))


def ranking_of(depends: Mapping[str, Any], entry: Entry | None = None) -> Ranking:
    """The ranking that a selection used, from its configuration."""
    name = str(depends.get("method"))
    reverse = bool(depends.get("reverse", False))
    options = {key: value for key, value in depends.items() if key not in RESERVED}
    changed = {}
    code = depends.get("code", {}).get("method")
    if code is None:
        method = find_method(name, bool(depends.get("higher_is_better", True)), reverse)
        options = method.check(options)
        defaults = signature(method.function).parameters
        changed = {key: value for key, value in options.items() if value != defaults[key].default}
    else:
        method = _elsewhere(name, depends, reverse)
        changed = {**options, "code": code}
    changed |= {key: depends[key] for key in ("teacher", "scores") if key in depends}
    key = method_key(name, reverse)
    label = label_of(name)
    if reverse:
        label = f"{label} (reversed)"
    if not changed:
        return Ranking(key, label, method)
    stored = None if code is None else entry
    details = ", ".join(f"{option} {str(value)[:12]}" for option, value in changed.items())
    # The key is a part of an address, so the values of options cannot be in it.
    digest = hashlib.sha256(json.dumps(changed, sort_keys=True, default=str).encode()).hexdigest()[:8]
    teacher = depends.get("teacher")
    return Ranking(f"{key}-{digest}", f"{label} ({details})", method, options, teacher, stored)


def _elsewhere(name: str, depends: Mapping[str, Any], reverse: bool) -> SelectionMethod:
    """A method whose code is not here, or is another by now. The function that the store names is not
    imported: looking at a store must not run code.
    """
    here = METHODS.get(name, SelectionMethod(name, frozenset(), _unavailable))
    upwards = bool(depends.get("higher_is_better", here.higher_is_better))
    origin = str(depends.get("function") or "")
    return replace(here, needs=frozenset(), higher_is_better=upwards != reverse, origin=origin)


def _unavailable(trajectories: pd.DataFrame) -> Floats:
    """The function of a user's method."""
    return np.full(len(trajectories), np.nan)


def scores(ranking: Ranking, opened: OpenView, rows: np.ndarray | None = None) -> np.ndarray:
    """The score of every row, or of some whole questions; NaN where it is not defined or not known."""
    if rows is not None:
        return _scores(ranking, opened, rows)
    key = ("scores", ranking.key, opened.key)
    return opened.cache.get(key, opened.version, lambda: _scores(ranking, opened, None))


def _scores(ranking: Ranking, opened: OpenView, rows: np.ndarray | None) -> np.ndarray:
    teacher = opened.pool.teacher
    codes = teacher.code if rows is None else teacher.code[rows]
    if ranking.is_external:
        return np.full(len(codes), np.nan)
    if ranking.stored is not None:
        stored = opened.stored(ranking.stored, ALL_SCORES, "score")
        return stored if rows is None else stored[rows]
    table = opened.frame(sorted(ranking.needs), rows, rows is None and _ignores_ids(ranking, opened))
    missing = sorted(ranking.needs - set(table.columns))
    if missing:
        raise PageError(f"{ranking.label} needs {', '.join(missing)}, which this store does not have.")
    score = ranking.method.score(table, ranking.options)
    if ranking.teacher is not None:
        score[codes != teacher.values.index(find_teacher(ranking.teacher, teacher.values))] = np.nan
    return score


def _ignores_ids(ranking: Ranking, opened: OpenView) -> bool:
    """Whether a method only groups by the question's id, so that numbers, which are faster, can replace it.
    Tried on some questions: a method of a user may do anything with the ids.
    """
    pool = opened.pool
    rows = np.sort(pool.order[: pool.start[min(3, len(pool.questions))]])
    with contextlib.suppress(Exception):  # it needs texts, or a column that is not there
        by_text, by_number = (
            ranking.method.score(opened.frame(sorted(ranking.needs), rows, numbers), ranking.options)
            for numbers in (False, True)
        )
        return np.array_equal(by_text, by_number, equal_nan=True)
    return False


@dataclass(frozen=True)
class Ranks:
    """Ranks within questions. Arrays have one entry per row of the pool."""

    rank: np.ndarray
    """1 is the best, as `select` ranks: equal scores by candidate id. 0 without a score."""
    standard: np.ndarray
    """Average ranks (equal scores share one), centred and scaled to length 1 within the question, so that a
    sum of products is Spearman's rank correlation. 0 without a score.
    """
    varies: np.ndarray
    """[N] Whether the question's scores differ."""


def ranks(ranking: Ranking, opened: OpenView) -> Ranks:
    key = ("ranks", ranking.key, opened.key)
    return opened.cache.get(
        key, opened.version, lambda: rank_all(scores(ranking, opened), ranking, opened.pool)
    )


def rank_all(score: np.ndarray, ranking: Ranking, pool: PoolTable) -> Ranks:
    """Rank all questions, many at once: as rows of matrices whose columns are in the order of the candidate
    ids.
    """
    rank = np.zeros(len(score), dtype=np.int32)
    standard = np.zeros(len(score), dtype=np.float32)
    varies = np.zeros(len(pool.questions), dtype=bool)
    sign = 1.0 if ranking.method.higher_is_better else -1.0
    for grid in pool.grids:
        utility = np.where(grid >= 0, sign * score[grid], -np.inf)
        utility[np.isnan(utility)] = -np.inf
        # A stable sort leaves equal scores in the order of the candidate ids, as `select` ranks them.
        order = np.argsort(-utility, axis=1, kind="stable")
        utility = np.take_along_axis(utility, order, axis=1)
        rows = np.take_along_axis(grid, order, axis=1)
        valid = np.isfinite(utility)
        scaled, length = _standard(utility, valid)
        rank[rows[valid]] = np.broadcast_to(np.arange(1, grid.shape[1] + 1), valid.shape)[valid]
        standard[rows[valid]] = scaled[valid]
        varies[pool.question[grid[:, 0]]] = length > 0
    return Ranks(rank, standard, varies)


def _standard(utility: np.ndarray, valid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Average ranks of rows that are sorted, best first, centred and scaled to length 1; and the lengths
    before that.
    """
    place = np.arange(utility.shape[1], dtype=np.float64)[None, :]
    new = np.ones_like(valid)
    new[:, 1:] = utility[:, 1:] != utility[:, :-1]
    ends = np.ones_like(valid)
    ends[:, :-1] = new[:, 1:]
    first = np.maximum.accumulate(np.where(new, place, 0), axis=1)
    last = np.minimum.accumulate(np.where(ends, place, np.inf)[:, ::-1], axis=1)[:, ::-1]
    average = np.where(valid, (first + last) / 2, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = average.sum(axis=1, keepdims=True) / valid.sum(axis=1, keepdims=True)
        centred = np.where(valid, average - mean, 0)
        length = np.sqrt((centred**2).sum(axis=1))
        return np.nan_to_num(centred / length[:, None]), length


def rank(score: np.ndarray, ranking: Ranking, pool: PoolTable, rows: np.ndarray) -> np.ndarray:
    """Ranks of the candidates of one question; 0 without a score."""
    valid = np.flatnonzero(np.isfinite(score))
    utility = score[valid] if ranking.method.higher_is_better else -score[valid]
    ranked = np.zeros(len(score), dtype=np.int32)
    ranked[valid[np.lexsort((pool.candidate.place[rows][valid], -utility))]] = np.arange(1, len(valid) + 1)
    return ranked


def find_ranking(rankings: list[Ranking], key: str) -> Ranking:
    for ranking in rankings:
        if ranking.key == key:
            return ranking
    keys = ", ".join(ranking.key for ranking in rankings)
    raise PageError(f"There is no method {key[:60]} for this pool and student. Those with scores: {keys}.")
