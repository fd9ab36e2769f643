"""Static export: the same pages for some questions, as files that any web server can serve. No request goes
anywhere else.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import combinations
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

    def get(self, path: str) -> Any:
        """The values or the list (Rows) at an address; None if they cannot be given: the page then says
        that they are not part of the export.
        """
        try:
            return answer(self.context, path)
        except PageError:
            return None

    def put(self, path: str, values: dict[str, Any]) -> None:
        self.draft.write(f"data/{path}.json", encode(values))

    def copy(self, path: str) -> dict[str, Any] | None:
        """Write an answer as it is."""
        values = self.get(path)
        if values is not None:
            self.put(path, values)
        return values

    def rows(self, path: str, numbers: Sequence[int] | None = None) -> None:
        """Write a list, or its rows with these numbers: the browser searches and filters it."""
        rows = self.get(path)
        if rows is not None:
            self.put(path, rows.everything(numbers))


def export(context: Context, target: Path, questions: int, ids: list[str] | None = None) -> tuple[int, int]:
    """Write the pages; returns the number of files and bytes. An unfinished export never has the final
    name.
    """
    _check_count(questions)
    with replacing(target.resolve()) as draft:  # a link to a folder stays a link
        writer = Writer(Snapshot(context.root, context.cache), draft)
        _page(writer)
        pools = _store(writer)
        exported = sum(_pool(writer, pool, questions, ids) for pool in pools)
        _check_ids(ids, exported)
        if not _answers(writer, questions) and not exported:
            raise NothingToExportError(
                f"{context.root}: there is no finished pool and no graded answer to export yet. `make run`"
                " makes them."
            )
    return len(draft.checksums), draft.size


def _check_count(questions: int) -> None:
    if questions < 1:
        raise LarkError(f"--questions {questions}: export at least 1 question.")


def _check_ids(ids: list[str] | None, exported: int) -> None:
    if ids and not exported:
        raise LarkError(f"--ids {','.join(ids)}: no pool of this store has such a question.")


def _page(writer: Writer) -> None:
    page = (STATIC / PAGE).read_text(encoding="utf-8")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    writer.draft.write(PAGE, page.replace(MODE, f"{MODE.replace('server', 'static')}\n{policy}").encode())
    for name, path in static_files().items():
        if name != PAGE:
            writer.draft.write(f"static/{name}", path.read_bytes())


def _store(writer: Writer) -> list[dict[str, Any]]:
    """The overview: without logs, which name paths of this machine, and without runs in progress. Returns
    the pools.
    """
    overview = writer.get("overview")
    if overview is not None:
        writer.put("overview", {**overview, "runs": [], "running": []})
    writer.copy("results")
    for curve in (writer.copy("curves") or {"curves": []})["curves"]:
        writer.copy(f"curve/{curve['fingerprint']}")
    writer.rows("artifacts")
    for entry in writer.context.listing():
        path = f"artifact/{entry.kind}/{entry.fingerprint}"
        values = writer.get(path)
        if values is not None:
            writer.put(path, {**values, "runs": [], "log": "", "last": ""})
    return overview["pools"] if overview else []


def _pool(writer: Writer, pool: dict[str, Any], count: int, ids: list[str] | None) -> int:
    """The questions of one pool under every student that was run on it. Returns how many."""
    fingerprint = pool["fingerprint"]
    rows = writer.get(f"questions/{fingerprint}/{pool['views'][0]['id']}")
    if rows is None:
        return 0
    numbers = _chosen(rows, count, ids)
    for view in pool["views"]:
        where = f"{fingerprint}/{view['id']}"
        for budget in (writer.copy(f"pool/{where}") or {"budgets": []})["budgets"]:
            writer.copy(f"shares/{where}/{budget['key']}")
        writer.rows(f"questions/{where}", numbers)
        _methods(writer, where, numbers)
        for n, around in _with_neighbours(numbers):
            _question(writer, where, n, around)
    for n in numbers:
        for c in range(rows.make(n)["candidates"]):
            writer.copy(f"text/{fingerprint}/{n}/{c}")
    return len(numbers)


def _chosen(rows: Rows, count: int, ids: list[str] | None) -> list[int]:
    """Numbers of the questions: those asked for, or evenly spread ones, if possible with tokens."""
    if ids is not None:
        return [i for i in range(rows.count) if rows.make(i)["id"] in ids]
    first = _spread(np.flatnonzero(rows.flags["tokens"]), count)
    return sorted([*first, *_spread(np.flatnonzero(~rows.flags["tokens"]), count - len(first))])


def _spread(numbers: np.ndarray, count: int) -> list[int]:
    """At most this many of the numbers, evenly spread."""
    size = min(count, len(numbers))
    if size <= 0:
        return []
    places = np.linspace(0, len(numbers) - 1, size).round().astype(int)
    return numbers[np.unique(places)].tolist()


def _with_neighbours(numbers: list[int]) -> Iterator[tuple[int, dict[str, int | None]]]:
    """Each number with those before and after it in the export, to which its page links."""
    for i, n in enumerate(numbers):
        before = numbers[i - 1] if i else None
        after = numbers[i + 1] if i + 1 < len(numbers) else None
        yield n, {"previous": before, "next": after}


def _question(writer: Writer, where: str, n: int, around: dict[str, int | None]) -> None:
    values = writer.get(f"question/{where}/{n}")
    if values is None:
        return
    # The page offers the tokens of a candidate only if the export has them.
    written = set(_tokens(writer, where, n, values))
    for candidate in values["candidates"]:
        candidate["has_tokens"] = candidate["c"] in written
    writer.put(f"question/{where}/{n}", {**values, **around})


def _tokens(writer: Writer, where: str, n: int, question: dict[str, Any]) -> Iterator[int]:
    """Write the tokens of the question's candidates, selected ones first, as far as the limit allows.
    Yields their numbers.
    """
    left = TOKENS_PER_QUESTION
    for c in _by_interest(question):
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


def _by_interest(question: dict[str, Any]) -> list[int]:
    """Numbers of a question's candidates: selected ones first, then by the best rank that a method gives."""
    selected = [row["c"] for selection in question["selections"] for row in selection["chosen"]]
    unranked = 10**6
    best = [unranked] * len(question["candidates"])
    for ranks in question["ranks"].values():
        for c, rank in enumerate(ranks):
            best[c] = min(best[c], rank or unranked)
    return list(dict.fromkeys([*selected, *np.argsort(best, kind="stable").tolist()]))


def _methods(writer: Writer, where: str, numbers: list[int]) -> None:
    values = writer.copy(f"methods/{where}")
    if values is None:
        return
    for ranking in values["rankings"]:
        writer.copy(f"distribution/{where}/{ranking['key']}")
    for budget in values["budgets"]:
        writer.copy(f"agreement/{where}/{budget}")
        for first, second in combinations(values["comparable"], 2):
            writer.rows(f"disagreement/{where}/{first}/{second}/{budget}", numbers)


def _answers(writer: Writer, count: int) -> int:
    """Evenly spread problems of each benchmark: the base student beside each student that was trained from
    it. Returns the number of benchmarks.
    """
    values = writer.copy("benchmarks") or {"benchmarks": [], "graders": []}
    for benchmark in values["benchmarks"]:
        models = benchmark["models"]
        for base in [model for model in models if model["base"]] or models[:1]:
            for model in models:
                # A base student is compared with itself only if there is nothing else to show.
                is_trained = model is not base or len(models) == 1
                if is_trained and model["student"] == base["student"]:
                    where = f"{benchmark['group']}/{base['id']}/{model['id']}"
                    _problems(writer, where, values["graders"], count)
    return len(values["benchmarks"])


def _problems(writer: Writer, where: str, graders: list[str], count: int) -> None:
    group, *models = where.split("/")
    rows = writer.get(f"problems/{where}/{graders[0]}")
    if rows is None:
        return
    numbers = _spread(np.arange(rows.count), count)
    for grader in graders:
        writer.rows(f"problems/{where}/{grader}", numbers)
    for n, around in _with_neighbours(numbers):
        values = writer.get(f"problem/{where}/{n}")
        if values is None:
            continue
        writer.put(f"problem/{where}/{n}", {**values, **around})
        for model, side in zip(models, values["sides"], strict=True):
            for sample in side["samples"]:
                path = f"sample/{group}/{model}/{sample['i']}"
                if f"data/{path}.json" not in writer.draft.checksums:  # written with another student
                    writer.copy(path)
