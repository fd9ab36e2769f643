"""Static export: the same pages for some questions, as files that any web server can serve. No request goes
anywhere else.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lark.errors import LarkError
from lark.explorer.api import answer
from lark.explorer.context import Context
from lark.explorer.export_folder import PAGE, Draft, replacing
from lark.explorer.listing import Listing
from lark.explorer.lists import Rows
from lark.explorer.problems import PageError
from lark.explorer.security import POLICY
from lark.explorer.server import STATIC, encode, static_files
from lark.explorer.tokens import PART

TOKENS_PER_QUESTION = 150_000
"""Tokens of a question that are written; a question with longer trajectories gets those of the selected
ones first.
"""
MODE = '<meta name="lark-mode" content="server">'


class NothingToExportError(LarkError):
    """The store has no pool and no answers."""


class Snapshot(Context):
    """A store as it was when the export started: its folders are listed once, not for every address."""

    @cached_property
    def _listing(self) -> Listing:
        return Listing(self.root, self.cache)

    def listing(self) -> Listing:
        return self._listing


class Writer:
    """Writes answers as files of an export."""

    def __init__(self, context: Context, draft: Draft) -> None:
        self.context = context
        self.draft = draft

    def get(self, path: str) -> dict[str, Any] | None:
        """The answer to an address; None if it cannot be given: the page then says that it is not part of
        the export.
        """
        try:
            found = answer(self.context, path)
        except PageError:
            return None
        assert not isinstance(found, Rows)
        return found

    def put(self, path: str, values: dict[str, Any]) -> None:
        self.draft.write(f"data/{path}.json", encode(values))

    def copy(self, path: str) -> dict[str, Any] | None:
        """Write an answer as it is."""
        values = self.get(path)
        if values is not None:
            self.put(path, values)
        return values

    def rows(self, path: str, keep: Callable[[dict[str, Any]], bool] = lambda row: True) -> None:
        """Write a list as a whole: the browser searches and filters it."""
        try:
            found = answer(self.context, path)
        except PageError:
            return
        assert isinstance(found, Rows)
        self.put(path, found.everything(keep))


def export(context: Context, target: Path, questions: int, ids: list[str] | None = None) -> tuple[int, int]:
    """Write the pages; returns the number of files and bytes. An unfinished export never has the final
    name.
    """
    if questions < 1:
        raise LarkError(f"--questions {questions}: export at least 1 question.")
    with replacing(target.resolve()) as draft:  # a link to a folder stays a link
        writer = Writer(Snapshot(context.root, context.cache), draft)
        _page(writer)
        _store(writer)
        found = sum(
            _pool(writer, pool, questions, ids) for pool in (writer.get("overview") or {}).get("pools", [])
        )
        if ids and not found:
            raise LarkError(f"--ids {','.join(ids)}: no pool of this store has such a question.")
        answered = _answers(writer, questions)
        if not found and not answered:
            raise NothingToExportError(
                f"{context.root}: there is no finished pool and no graded answer to export yet. `make run`"
                " makes them."
            )
    return draft.files, draft.size


def _page(writer: Writer) -> None:
    page = (STATIC / PAGE).read_text(encoding="utf-8")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    writer.draft.write(PAGE, page.replace(MODE, f"{MODE.replace('server', 'static')}\n{policy}").encode())
    for name, path in static_files().items():
        if name != PAGE:
            writer.draft.write(f"static/{name}", path.read_bytes())


def _store(writer: Writer) -> None:
    """The overview: without logs, which name paths of this machine, and without runs in progress."""
    overview = writer.get("overview")
    if overview is not None:
        writer.put("overview", {**overview, "runs": [], "running": []})
    writer.copy("results")
    for curve in (writer.copy("curves") or {"curves": []})["curves"]:
        writer.copy(f"curve/{curve['fingerprint']}")
    writer.rows("artifacts")
    for entry in writer.context.listing():
        values = writer.get(f"artifact/{entry.kind}/{entry.fingerprint}")
        if values is not None:
            writer.put(
                f"artifact/{entry.kind}/{entry.fingerprint}", {**values, "runs": [], "log": "", "last": ""}
            )


def _pool(writer: Writer, pool: dict[str, Any], count: int, ids: list[str] | None) -> int:
    """The questions of one pool under every student that was run on it. Returns how many."""
    first = f"{pool['fingerprint']}/{pool['views'][0]['id']}"
    try:
        rows = answer(writer.context, f"questions/{first}")
    except PageError:
        return 0
    assert isinstance(rows, Rows)
    numbers = _chosen(rows, count, ids)
    for view in pool["views"]:
        where = f"{pool['fingerprint']}/{view['id']}"
        for budget in (writer.copy(f"pool/{where}") or {"budgets": []})["budgets"]:
            writer.copy(f"shares/{where}/{budget['key']}")
        writer.rows(f"questions/{where}", lambda row: row["n"] in numbers)
        _methods(writer, where, numbers)
        for i, n in enumerate(numbers):
            _question(
                writer,
                where,
                n,
                numbers[i - 1] if i else None,
                numbers[i + 1] if i + 1 < len(numbers) else None,
            )
    for n in numbers:
        for c in range(rows.make(n)["candidates"]):
            writer.copy(f"text/{pool['fingerprint']}/{n}/{c}")
    return len(numbers)


def _chosen(rows: Rows, count: int, ids: list[str] | None) -> list[int]:
    """Numbers of the questions: those asked for, or evenly spread ones, if possible with tokens."""
    if ids is not None:
        return [i for i in range(rows.count) if rows.make(i)["id"] in ids]
    kept, rest = np.flatnonzero(rows.flags["tokens"]), np.flatnonzero(~rows.flags["tokens"])
    first = _spread(kept, count)
    return sorted([*first, *_spread(rest, count - len(first))])


def _spread(numbers: np.ndarray, count: int) -> list[int]:
    if count <= 0 or not len(numbers):
        return []
    return [
        int(numbers[i])
        for i in np.unique(np.linspace(0, len(numbers) - 1, min(count, len(numbers))).round().astype(int))
    ]


def _question(writer: Writer, where: str, n: int, before: int | None, after: int | None) -> None:
    values = writer.get(f"question/{where}/{n}")
    if values is None:
        return
    written = set(_tokens(writer, where, n, values))
    for candidate in values["candidates"]:
        candidate["has_tokens"] = candidate["c"] in written
    writer.put(f"question/{where}/{n}", {**values, "previous": before, "next": after})


def _tokens(writer: Writer, where: str, n: int, question: dict[str, Any]) -> Iterator[int]:
    """Write the tokens of the question's candidates, selected ones first, as far as the limit allows.
    Yields their numbers.
    """
    left = TOKENS_PER_QUESTION
    selected = [row["c"] for selection in question["selections"] for row in selection["chosen"]]
    best = sorted(
        range(len(question["candidates"])),
        key=lambda c: min((r[c] or 10**6 for r in question["ranks"].values()), default=0),
    )
    for c in dict.fromkeys([*selected, *best]):
        candidate = question["candidates"][c]
        size = candidate["tokens"] or 0
        if not candidate["has_tokens"] or size > left:
            continue
        values = writer.copy(f"tokens/{where}/{n}/{c}")
        if values is not None:
            left -= size
            for part in range(-(-values["count"] // PART)):
                writer.copy(f"alternatives/{where}/{n}/{c}/{part}")
            yield c


def _methods(writer: Writer, where: str, numbers: list[int]) -> None:
    values = writer.copy(f"methods/{where}")
    if values is None:
        return
    for ranking in values["rankings"]:
        writer.copy(f"distribution/{where}/{ranking['key']}")
    keys = [ranking["key"] for ranking in values["rankings"] if ranking["key"] in values["comparable"]]
    for budget in values["budgets"]:
        writer.copy(f"agreement/{where}/{budget}")
        for i, first in enumerate(keys):
            for second in keys[i + 1 :]:
                writer.rows(
                    f"disagreement/{where}/{first}/{second}/{budget}", lambda row: row["n"] in numbers
                )


def _answers(writer: Writer, count: int) -> int:
    """Evenly spread problems of each benchmark: the base student beside each student that was trained from
    it. Returns the number of benchmarks.
    """
    values = writer.copy("benchmarks") or {"benchmarks": [], "graders": []}
    for benchmark in values["benchmarks"]:
        models = benchmark["models"]
        bases = [model for model in models if model["base"]] or models[:1]
        pairs = [
            (b["id"], m["id"])
            for b in bases
            for m in models
            if m["student"] == b["student"] and (m is not b or len(models) == 1)
        ]
        for base, trained in pairs:
            _problems(writer, f"{benchmark['group']}/{base}/{trained}", values["graders"], count)
    return len(values["benchmarks"])


def _problems(writer: Writer, where: str, graders: list[str], count: int) -> None:
    group, *models = where.split("/")
    try:
        rows = answer(writer.context, f"problems/{where}/{graders[0]}")
    except PageError:
        return
    assert isinstance(rows, Rows)
    numbers = _spread(np.arange(rows.count), count)
    for grader in graders:
        writer.rows(f"problems/{where}/{grader}", lambda row: row["n"] in numbers)
    for i, n in enumerate(numbers):
        values = writer.get(f"problem/{where}/{n}")
        if values is None:
            continue
        last = i + 1 == len(numbers)
        writer.put(
            f"problem/{where}/{n}",
            {**values, "previous": numbers[i - 1] if i else None, "next": None if last else numbers[i + 1]},
        )
        for model, side in zip(models, values["sides"], strict=True):
            for sample in side["samples"]:
                if f"data/sample/{group}/{model}/{sample['i']}.json" not in writer.draft.checksums:
                    writer.copy(f"sample/{group}/{model}/{sample['i']}")
