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

from lark.explorer.listing import Entry, Key, Listing, started
from lark.explorer.problems import PageError
from lark.pool.trajectories import POOL_TABLE
from lark.scoring.sources import LENGTHS_TABLE, SCORES_TABLE, SOURCES, TOKENS
from lark.selection.write import SELECTION

OWN = frozenset(
    {"rank_clip", "local_context", "local_steps", "questions", "tokens", "alternatives", "sketch", "features"}
)
"""Settings of a pass that do not identify its model."""
NONE = "-"
"""The id of a view without a student."""


@dataclass(frozen=True)
class View:
    """What is known about the trajectories of a pool."""

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
        return {
            "id": self.id,
            "student": self.student,
            "pool": {"fingerprint": self.pool.fingerprint, "name": self.pool.name},
            "sources": {name: describe_source(entry) for name, entry in self.sources.items()},
            "tokens": [describe_source(entry) for entry in self.tokens],
        }


def describe_source(entry: Entry) -> dict[str, Any]:
    return {
        "kind": entry.kind,
        "fingerprint": entry.fingerprint,
        "name": entry.name,
        "finished": entry.finished,
    }


def views_of(listing: Listing, pool: Entry) -> list[View]:
    """All views of a pool, newest first; one without a student if there is no other."""
    of_pool = [entry for entry in listing.used_by(pool) if entry.inputs.get(POOL_TABLE.name) == pool.key]
    scores = [entry for entry in of_pool if entry.kind == SCORES_TABLE.name]
    named = {listing.input(entry, LENGTHS_TABLE.name) for entry in scores}
    lengths = [entry for entry in of_pool if entry.kind == LENGTHS_TABLE.name and entry not in named]
    heads = sorted(
        [*scores, *lengths], key=lambda e: (e.kind == SCORES_TABLE.name, e.finished, started(e)), reverse=True
    )
    passes = Passes(listing, of_pool)
    return [_view(listing, pool, head, passes) for head in heads] or [View(pool, None)]


def find_view(listing: Listing, pool: str, fingerprint: str) -> View:
    """The view with this id, of the pool with this fingerprint.

    During a run, a page that was opened before there were scores has the id of the token counts, or of no
    student. It gets the view that was made from them since, or the newest one.
    """
    entry = listing.get(POOL_TABLE.name, pool)
    found = views_of(listing, entry)
    if fingerprint == NONE:
        return found[0]
    for view in found:
        if view.id == fingerprint:
            return view
    for view in found:
        if fingerprint in (entry.fingerprint for entry in view.sources.values()):
            return view
    raise PageError(f"There are no scores {fingerprint} of the pool {entry.name} in this store (any more).")


def selections_of(listing: Listing, view: View) -> list[Entry]:
    """Finished selections from this pool that used this view's artifacts, newest first."""
    own = {entry.key for entry in view.sources.values()}
    found = [
        entry
        for entry in listing.of(SELECTION.name)
        if entry.inputs.get(POOL_TABLE.name) == view.pool.key and entry.finished
    ]
    return [
        entry
        for entry in found
        if {key for name, key in entry.inputs.items() if name != POOL_TABLE.name} <= own
    ]


class Passes:
    """The passes over a pool by the model that made them. Each is looked at once, however many views the
    pool has.
    """

    def __init__(self, listing: Listing, of_pool: list[Entry]) -> None:
        self.listing = listing
        self.by_lengths: dict[tuple[str, Key | None], list[tuple[int, Entry]]] = {}
        """Kind and token counts, and the passes with their places in the order, newest first. Without token
        counts (None), a pass does not depend on the student.
        """
        self.by_model: dict[tuple[str, Key], dict[str | None, list[tuple[int, Entry]]]] = {}
        newest = sorted(of_pool, key=lambda e: (e.finished, started(e)), reverse=True)
        for place, entry in enumerate(newest):
            group = (entry.kind, entry.inputs.get(LENGTHS_TABLE.name))
            self.by_lengths.setdefault(group, []).append((place, entry))

    def of(self, kind: str, head: Entry) -> Iterator[Entry]:
        """The passes of a kind that used the view's model, or that do not depend on the student, newest
        first.
        """
        shared = self.by_lengths.get((kind, None), [])
        return (entry for _, entry in heapq.merge(shared, self._of_model(kind, head)))

    def _of_model(self, kind: str, head: Entry) -> list[tuple[int, Entry]]:
        lengths = head.inputs.get(LENGTHS_TABLE.name)
        if lengths is None or (kind, lengths) not in self.by_lengths:
            return []
        if (kind, lengths) not in self.by_model:
            models: dict[str | None, list[tuple[int, Entry]]] = {}
            for place, entry in self.by_lengths[kind, lengths]:
                models.setdefault(self._model(entry), []).append((place, entry))
            self.by_model[kind, lengths] = models
        model = self._model(head)
        return [] if model is None else self.by_model[kind, lengths].get(model, [])

    def _model(self, entry: Entry) -> str | None:
        """The settings of a pass that identify its model, as a text. None if they cannot be read."""
        try:
            depends = self.listing.config(entry)["depends"]
            return json.dumps(
                {key: value for key, value in depends.items() if key not in OWN}, sort_keys=True, default=str
            )
        except (PageError, TypeError):
            return None


def _view(listing: Listing, pool: Entry, head: Entry, passes: Passes) -> View:
    lengths = head if head.kind == LENGTHS_TABLE.name else listing.input(head, LENGTHS_TABLE.name)
    sources = {} if lengths is None else {"lengths": lengths}
    if head.kind == SCORES_TABLE.name:
        sources["statistics"] = head
    for name, source in SOURCES.items():
        if source.kind is None or source.kind.name in (LENGTHS_TABLE.name, SCORES_TABLE.name):
            continue
        newest = next(passes.of(source.kind.name, head), None)
        if newest is not None:
            sources[name] = newest
    return View(pool, head, sources, tuple(passes.of(TOKENS.name, head)))
