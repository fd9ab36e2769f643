"""Ways to rank the candidates of a view: every method that the existing artifacts allow, and those of
finished selections.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache as once
from inspect import getdoc, signature
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from lark.config.method import method_key
from lark.errors import LarkError
from lark.explorer.cache import Cache, stamp
from lark.explorer.listing import Entry, Listing
from lark.explorer.pool_table import PoolTable
from lark.explorer.problems import PageError
from lark.explorer.tables import columns, frame
from lark.explorer.views import View, selections_of
from lark.scoring.methods import METHODS, find_method
from lark.scoring.selection_method import RESERVED, SelectionMethod
from lark.scoring.sources import SOURCES
from lark.selection.choose import find_teacher

CONF = Path(__file__).parents[2] / "conf" / "method"


@dataclass(frozen=True)
class Ranking:
    """A method with its options. Scores of an external tool are known only for the trajectories that it
    selected.
    """

    key: str
    label: str
    method: SelectionMethod
    options: Mapping[str, Any] = field(default_factory=dict)
    teacher: str | None = None

    @property
    def needs(self) -> set[str]:
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
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return name


@once
def about(method: SelectionMethod) -> str:
    """What a method computes: the first paragraph of its function's docstring."""
    text = " ".join((getdoc(method.function) or "").split("\n\n")[0].split())
    is_reversed = (
        "external" not in method.needs and method.higher_is_better != METHODS[method.name].higher_is_better
    )
    return f"{text} Reversed here: the other end is selected." if is_reversed else text


def rankings_of(listing: Listing, view: View, pool: PoolTable, cache: Cache) -> list[Ranking]:
    """All rankings of a view, in the order of METHODS."""
    available = columns(
        view, pool, {column for source in SOURCES.values() for column in source.columns}, cache
    )
    found = {}
    for method in METHODS.values():
        ranking = Ranking(method.name, label_of(method.name), method)
        if "external" not in method.needs and ranking.needs <= set(available):
            found[ranking.key] = ranking
    for entry in selections_of(listing, view):
        try:
            asked = ranking_of(listing.config(entry)["depends"])
        except LarkError:
            continue  # the selection itself says what is wrong
        if asked.needs <= {*available, "external"}:
            found.setdefault(asked.key, asked)
    names = list(METHODS)
    return sorted(found.values(), key=lambda r: (names.index(r.method.name), r.key))


def ranking_of(depends: Mapping[str, Any]) -> Ranking:
    """The ranking that a selection used, from its configuration."""
    name = str(depends.get("method"))
    reverse = bool(depends.get("reverse", False))
    method = find_method(name, bool(depends.get("higher_is_better", True)), reverse)
    options = method.check({key: value for key, value in depends.items() if key not in RESERVED})
    teacher = depends.get("teacher")
    own = {key: value for key, value in options.items() if value != _defaults(method).get(key)}
    own |= {key: depends[key] for key in ("teacher", "scores") if key in depends}
    name, label = method_key(name, reverse), f"{label_of(name)} (reversed)" if reverse else label_of(name)
    if not own:
        return Ranking(name, label, method)
    said = ", ".join(f"{key} {str(value)[:12]}" for key, value in own.items())
    digest = hashlib.sha256(json.dumps(own, sort_keys=True, default=str).encode()).hexdigest()[:8]
    return Ranking(
        f"{name}-{digest}", f"{label} ({said})", method, options, None if teacher is None else str(teacher)
    )


def _defaults(method: SelectionMethod) -> dict[str, Any]:
    return {name: parameter.default for name, parameter in signature(method.function).parameters.items()}


def scores(
    ranking: Ranking, view: View, pool: PoolTable, cache: Cache, rows: np.ndarray | None = None
) -> np.ndarray:
    """The score of every row, or of some whole questions; NaN where it is not defined or not known."""
    if rows is None:
        key = ("scores", ranking.key, view.pool.key, view.id)
        return cache.get(key, _version(view, pool), lambda: _scores(ranking, view, pool, cache, None))
    return _scores(ranking, view, pool, cache, rows)


def _scores(
    ranking: Ranking, view: View, pool: PoolTable, cache: Cache, rows: np.ndarray | None
) -> np.ndarray:
    if "external" in ranking.method.needs:
        return np.full(len(pool) if rows is None else len(rows), np.nan)
    by_number = rows is None and _ignores_ids(ranking, view, pool, cache)
    table = frame(view, pool, sorted(ranking.needs), cache, rows, by_number)
    known = set(table.columns)
    if not ranking.needs <= known:
        raise PageError(
            f"{ranking.label} needs {', '.join(sorted(ranking.needs - known))}, which this store does not"
            " have."
        )
    score = ranking.method.score(table, ranking.options)
    if ranking.teacher is not None:
        teacher = pool.teacher.values.index(find_teacher(ranking.teacher, pool.teacher.values))
        score[pool.teacher.code[slice(None) if rows is None else rows] != teacher] = np.nan
    return score


def _ignores_ids(ranking: Ranking, view: View, pool: PoolTable, cache: Cache) -> bool:
    """Whether a method only groups by the question's id, so that numbers, which are faster, can replace it.
    Tried on some questions: a method of a user may do anything with the ids.
    """
    rows = np.sort(pool.order[: pool.start[min(3, len(pool.questions))]])
    with contextlib.suppress(Exception):  # it needs texts, or a column that is not there
        tables = (
            frame(view, pool, sorted(ranking.needs), cache, rows, by_number) for by_number in (False, True)
        )
        by_text, by_number = (ranking.method.score(table, ranking.options) for table in tables)
        return bool(np.array_equal(by_text, by_number, equal_nan=True))
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


def ranks(ranking: Ranking, view: View, pool: PoolTable, cache: Cache) -> Ranks:
    key = ("ranks", ranking.key, view.pool.key, view.id)
    return cache.get(
        key, _version(view, pool), lambda: rank_all(scores(ranking, view, pool, cache), ranking, pool)
    )


def rank_all(score: np.ndarray, ranking: Ranking, pool: PoolTable) -> Ranks:
    """Rank all questions, many at once: as rows of matrices whose columns are in the order of the candidate
    ids.
    """
    found, standard = np.zeros(len(score), dtype=np.int32), np.zeros(len(score), dtype=np.float32)
    varies = np.zeros(len(pool.questions), dtype=bool)
    sign = 1.0 if ranking.method.higher_is_better else -1.0
    for grid in pool.grids:
        utility = np.where(grid >= 0, sign * score[grid], -np.inf)
        utility[np.isnan(utility)] = -np.inf
        order = np.argsort(-utility, axis=1, kind="stable")
        utility, rows = (np.take_along_axis(values, order, axis=1) for values in (utility, grid))
        valid = np.isfinite(utility)
        scaled, length = _standard(utility, valid)
        found[rows[valid]] = np.broadcast_to(np.arange(1, grid.shape[1] + 1), valid.shape)[valid]
        standard[rows[valid]] = scaled[valid]
        varies[pool.question[grid[:, 0]]] = length > 0
    return Ranks(found, standard, varies)


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
    found = np.zeros(len(score), dtype=np.int32)
    found[valid[np.lexsort((pool.candidate.place[rows][valid], -utility))]] = np.arange(1, len(valid) + 1)
    return found


def _version(view: View, pool: PoolTable) -> tuple[Any, ...]:
    """Changes if a file changes that the view's columns are read from."""
    folders = [entry.folder for entry in view.sources.values()]
    return stamp(pool.path, *folders), tuple(entry.finished for entry in view.sources.values()), len(pool)


def find_ranking(found: list[Ranking], key: str) -> Ranking:
    for ranking in found:
        if ranking.key == key:
            return ranking
    raise PageError(
        f"There is no method {key[:60]} for this pool and student. Those with scores:"
        f" {', '.join(r.key for r in found)}."
    )


def selected_by(entry: Entry, listing: Listing) -> dict[str, Any]:
    """What a selection is: method, weighting and budget."""
    depends = listing.config(entry)["depends"]
    budget, ranking = depends.get("budget"), ranking_of(depends)
    return {
        "fingerprint": entry.fingerprint,
        "name": entry.name,
        "method": ranking.method.name,
        "ranking": ranking.key,
        "label": ranking.label,
        "weighting": str(depends.get("weighting")),
        "budget": budget if isinstance(budget, int) else None,
        "amount": amount(budget),
        "amount_key": re.sub(r"[^A-Za-z0-9_.-]+", "-", amount(budget)).strip("-")[:80],
    }


def amount(budget: Any) -> str:
    """A selection's budget in words: "B = 3" per question, or "450 trajectories in all" across questions."""
    if not isinstance(budget, dict):
        return f"B = {budget}"
    words = {
        "total": "{:,} trajectories in all",
        "tokens": "{:,} tokens in all",
        "size": "at most {:,} per question",
    }
    return ", ".join(words.get(key, f"{key} {{}}").format(value) for key, value in budget.items())
