"""The addresses of the data that pages load. An address is a path, so that the static export can write each
answer to a file.
"""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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

    @property
    def pattern(self) -> re.Pattern[str]:
        parts = [
            f"({PARTS[part[1:-1]]})" if part.startswith("{") else re.escape(part)
            for part in self.address.split("/")
        ]
        return re.compile("/".join(parts))

    @property
    def numbers(self) -> list[bool]:
        return [part == "{number}" for part in self.address.split("/") if part.startswith("{")]


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
COMPILED = [(route, route.pattern) for route in ROUTES]


def answer(context: Context, path: str) -> dict[str, Any] | Rows:
    """The answer to an address. Raises a PageError with a sentence for the page, whatever is wrong."""
    for route, pattern in COMPILED:
        match = pattern.fullmatch(path)
        if match:
            values = [
                int(v) if number else v for v, number in zip(match.groups(), route.numbers, strict=True)
            ]
            return _guarded(route, context, values)
    raise PageError("There is no such page.")


def _guarded(route: Route, context: Context, values: list[Any]) -> dict[str, Any] | Rows:
    try:
        return route.answer(context, *values)
    except PageError:
        raise
    except LarkError as error:
        raise PageError(str(error), 503) from error
    except FileNotFoundError as error:
        raise PageError("A file of this artifact has just been removed. Reload the page.", 503) from error
    except MemoryError as error:
        raise PageError("There is not enough memory to show this page.", 503) from error
    except Exception as error:
        # Files of a store can hold anything. What no reader foresaw must not end in a stack trace either.
        log.warning("/%s: %s: %s", route.address, type(error).__name__, first_line(error))
        raise PageError(
            f"This page cannot be shown: a file has unexpected content ({type(error).__name__}:"
            f" {first_line(error)}).",
            503,
        ) from error


def respond(context: Context, path: str, query: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    """HTTP status and JSON for an address."""
    try:
        found = answer(context, path)
        return 200, found.page(Query.of(query)) if isinstance(found, Rows) else found
    except PageError as problem:
        return problem.status, {"problem": str(problem)}
