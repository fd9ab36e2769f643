"""A pool under the eyes of one student: the artifacts that were made from the same pool with the same
model.

The scores of a student identify the view (or its token counts, if there are no scores). Judges and text
indicators do not depend on the student and belong to every view of their pool.
"""

import heapq
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lark.explorer.listing import Entry, Listing, started
from lark.explorer.problems import PageError
from lark.pool.trajectories import POOL_TABLE
from lark.scoring.sources import LENGTHS_TABLE, SCORES_TABLE, SOURCES, TOKENS
from lark.selection.write import SELECTION

OWN = frozenset(
    {"rank_clip", "local_context", "local_steps", "questions", "tokens", "alternatives", "sketch", "features"}
)
"""Settings of a pass that do not identify its model."""
HEADS = frozenset({LENGTHS_TABLE.name, SCORES_TABLE.name})
"""Kinds that identify a view."""
PASSES = {TOKENS.name, *(source.kind.name for source in SOURCES.values() if source.kind)} - HEADS
"""Kinds that a view has besides."""
SHARED = ""
"""The model of a pass that does not depend on the student."""
NONE = "-"
"""The id of a view without a student."""


@dataclass(frozen=True)
class View:
    """A pool with what was computed about its trajectories."""

    pool: Entry
    entry: Entry | None
    sources: Mapping[str, Entry] = field(default_factory=dict)
    """Keys of SOURCES, and the artifact of each; a started one may have some of the rows."""
    tokens: tuple[Entry, ...] = ()
    """Artifacts of tokens, finished and newest first; each may have other questions."""

    @property
    def id(self) -> str:
        return NONE if self.entry is None else self.entry.fingerprint

    @property
    def student(self) -> str | None:
        """The student's name. Artifacts are named <student>-<pool>."""
        return None if self.entry is None else self.entry.name.removesuffix(f"-{self.pool.name}")

    def describe(self) -> dict[str, Any]:
        """For the page."""
        values: dict[str, Any] = {"id": self.id}
        values["student"] = self.student
        values["pool"] = {"fingerprint": self.pool.fingerprint, "name": self.pool.name}
        return values


def views_of(listing: Listing, pool: Entry) -> list[View]:
    """All views of a pool, newest first; one without a student if there is no other."""
    of_pool = [entry for entry in listing.used_by(pool) if entry.inputs.get(POOL_TABLE.name) == pool.key]
    scores = [entry for entry in of_pool if entry.kind == SCORES_TABLE.name]
    scored = {listing.input(entry, LENGTHS_TABLE.name) for entry in scores}
    lengths = [entry for entry in of_pool if entry.kind == LENGTHS_TABLE.name and entry not in scored]
    # Token counts alone identify a view only until there are scores that were made from them.
    heads = [*_newest(scores), *_newest(lengths)]
    passes = Passes(listing, of_pool)
    return [_view(listing, pool, head, passes) for head in heads] or [View(pool, None)]


def _newest(entries: list[Entry]) -> list[Entry]:
    """Finished artifacts first, and the newest of them."""
    return sorted(entries, key=lambda entry: (entry.finished, started(entry)), reverse=True)


def find_view(listing: Listing, pool: str, fingerprint: str) -> View:
    """The view with this id, of the pool with this fingerprint.

    During a run, a page that was opened before there were scores has the id of the token counts, or of no
    student. It gets the view that was made from them since, or the newest one.
    """
    entry = listing.get(POOL_TABLE.name, pool)
    views = views_of(listing, entry)
    if fingerprint == NONE:
        return views[0]
    for view in views:
        if view.id == fingerprint:
            return view
    for view in views:
        if any(source.fingerprint == fingerprint for source in view.sources.values()):
            return view
    raise PageError(f"There are no scores {fingerprint} of the pool {entry.name} in this store (any more).")


def selections_of(listing: Listing, view: View) -> list[Entry]:
    """Finished selections from this pool that used this view's artifacts, newest first."""
    sources = {entry.key for entry in view.sources.values()}
    selections = []
    for entry in listing.of(SELECTION.name):
        inputs = dict(entry.inputs)
        pool = inputs.pop(POOL_TABLE.name, None)
        if entry.finished and pool == view.pool.key and sources.issuperset(inputs.values()):
            selections.append(entry)
    return selections


class Passes:
    """The passes over a pool by the model that made them. Each is looked at once, however many views the
    pool has.
    """

    def __init__(self, listing: Listing, of_pool: list[Entry]) -> None:
        self.listing = listing
        self.groups: dict[tuple[str, str], list[tuple[int, Entry]]] = {}
        """Passes by kind and model, with their places in the order, newest first."""
        for place, entry in enumerate(_newest(of_pool)):
            model = self.model(entry) if entry.kind in PASSES else None
            if model is not None:
                self.groups.setdefault((entry.kind, model), []).append((place, entry))

    def model(self, entry: Entry) -> str | None:
        """The settings and token counts of a pass that identify its model, as a text; SHARED if it does not
        depend on the student. None if they cannot be read.
        """
        lengths = entry.inputs.get(LENGTHS_TABLE.name)
        if lengths is None:
            return SHARED
        try:
            depends = self.listing.config(entry)["depends"]
            settings = {key: value for key, value in depends.items() if key not in OWN}
            return json.dumps([lengths, settings], sort_keys=True, default=str)
        except (PageError, TypeError):
            return None

    def of(self, kind: str, model: str | None) -> Iterator[Entry]:
        """The passes of a kind by a model, or that do not depend on the student, newest first."""
        groups = [self.groups.get((kind, name), []) for name in {SHARED, model or SHARED}]
        # Merged lazily: most views take the first of a long list, which a sort would look through.
        return (entry for _, entry in heapq.merge(*groups))


def _view(listing: Listing, pool: Entry, head: Entry, passes: Passes) -> View:
    sources = {}
    lengths = head if head.kind == LENGTHS_TABLE.name else listing.input(head, LENGTHS_TABLE.name)
    if lengths is not None:
        sources["lengths"] = lengths
    if head.kind == SCORES_TABLE.name:
        sources["statistics"] = head
    # Without a pass, the configuration of the scores is not read: a store may have thousands of them.
    model = passes.model(head) if passes.groups else SHARED
    for name, source in SOURCES.items():
        newest = None if source.kind is None else next(passes.of(source.kind.name, model), None)
        if newest is not None:
            sources[name] = newest
    return View(pool, head, sources, tuple(passes.of(TOKENS.name, model)))
