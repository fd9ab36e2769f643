"""The addresses of the data that pages load. An address is a path, so that the static export can write each
answer to a file.
"""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lark.errors import LarkError, first_line
from lark.explorer.context import Context
from lark.explorer.lists import Query, Rows
from lark.explorer.pages import answers, artifact, methods, overview, pool, question, runs
from lark.explorer.problems import PageError

log = logging.getLogger(__name__)

PARTS = {
    "fingerprint": r"[0-9a-f]{12}",
    "view": r"[0-9a-f]{12}|-",
    "kind": r"[a-z][a-z_]{0,40}",
    "key": r"[A-Za-z0-9_.-]{1,80}",
    "number": r"\d{1,9}",
}


@dataclass(frozen=True)
class Route:
    """An address and the function that answers it. Numbers are passed as integers, the rest as texts."""

    address: str
    answer: Callable[..., dict[str, Any] | Rows]

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(re.sub(r"\{(\w+)\}", lambda part: f"({PARTS[part[1]]})", self.address))

    def read(self, path: str) -> list[str | int] | None:
        """The parts of a path; None if it is another address."""
        match = self.pattern.fullmatch(path)
        if match is None:
            return None
        names = re.findall(r"\{(\w+)\}", self.address)
        return [
            int(part) if name == "number" else part for name, part in zip(names, match.groups(), strict=True)
        ]


VIEW = "{fingerprint}/{view}"
ROUTES = [
    Route("overview", overview.overview),
    Route("artifacts", overview.artifacts),
    Route("runs", runs.runs),
    Route("results", overview.results),
    Route("curves", artifact.curves),
    Route("curve/{fingerprint}", artifact.training_curve),
    Route("artifact/{kind}/{fingerprint}", artifact.artifact),
    Route(f"pool/{VIEW}", pool.pool),
    Route(f"shares/{VIEW}/{{key}}", pool.shares),
    Route(f"questions/{VIEW}", pool.questions),
    Route(f"question/{VIEW}/{{number}}", question.question),
    Route("text/{fingerprint}/{number}/{number}", question.text),
    Route(f"tokens/{VIEW}/{{number}}/{{number}}", question.tokens),
    Route(f"alternatives/{VIEW}/{{number}}/{{number}}/{{number}}", question.alternatives),
    Route(f"methods/{VIEW}", methods.methods),
    Route(f"distribution/{VIEW}/{{key}}", methods.distribution),
    Route(f"agreement/{VIEW}/{{number}}", methods.agreements),
    Route(f"disagreement/{VIEW}/{{key}}/{{key}}/{{number}}", methods.disagreements),
    Route("benchmarks", answers.benchmarks),
    Route("problems/{key}/{key}/{key}/{key}", answers.problems),
    Route("problem/{key}/{key}/{key}/{number}", answers.problem),
    Route("sample/{key}/{key}/{number}", answers.sample),
]


def answer(context: Context, path: str) -> dict[str, Any] | Rows:
    """The answer to an address. Raises a PageError with a sentence for the page, whatever is wrong."""
    for route in ROUTES:
        parts = route.read(path)
        if parts is not None:
            return _guarded(route, context, parts)
    raise PageError("There is no such page.")


def _guarded(route: Route, context: Context, parts: list[str | int]) -> dict[str, Any] | Rows:
    try:
        return route.answer(context, *parts)
    except Exception as error:
        # Files of a store can hold anything. What no reader foresaw must not end in a stack trace either.
        raise _problem(error, route) from error


def _problem(error: Exception, route: Route) -> PageError:
    if isinstance(error, LarkError):
        return PageError(str(error), getattr(error, "status", 503))
    if isinstance(error, FileNotFoundError):
        return PageError("A file of this artifact has just been removed. Reload the page.", 503)
    if isinstance(error, MemoryError):
        return PageError("There is not enough memory to show this page.", 503)
    reason = f"{type(error).__name__}: {first_line(error)}"
    log.warning("/%s: %s", route.address, reason)
    return PageError(f"This page cannot be shown: a file has unexpected content ({reason}).", 503)


def respond(context: Context, path: str, query: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    """HTTP status and JSON for an address."""
    try:
        values = answer(context, path)
        return 200, values.page(Query.of(query)) if isinstance(values, Rows) else values
    except PageError as problem:
        return problem.status, {"problem": str(problem)}
