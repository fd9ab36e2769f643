"""What follows from a server's answer that is not a completion.

passing (429, 5xx)                    the request is sent again: `Again`
a parameter that it does not know     the request is sent without it: `Changed`
the question (filters, length)        the question has failed: `Failure`
a key, a model, no credit             no further request can succeed: LarkError
"""

import email.utils
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from lark import config
from lark.generation import checks
from lark.generation.client import HttpAnswer
from lark.generation.conversation import Failure
from lark.reading.untrusted import parsed

NOT_ALLOWED = (401, 403)
PASSING = (408, 409, 425, 429)
LIMIT = 429
REFUSED = "refused_request"
FIRST = 3
"""Refused requests before any was answered that end a run."""
FILTER = re.compile(
    r"content[ _-]?(filter|policy|management)|moderation|flagged|responsible ?ai", re.IGNORECASE
)
TOO_LONG = re.compile(
    r"context[ _](length|window|size)|max_model_len|prompt is too long|input is too long|too many tokens"
    r"|string_above_max_length",
    re.IGNORECASE,
)
NO_CREDIT = re.compile(r"insufficient_quota|insufficient[ _](balance|credit|funds)|billing", re.IGNORECASE)
CONTEXT = re.compile(r"context length (?:is|of) (\d+)", re.IGNORECASE)
PROMPT = re.compile(
    r"(\d+)(?: tokens?)? (?:in|from) (?:the|your) (?:input )?(?:messages|prompt)", re.IGNORECASE
)
RENAMED = {"max_tokens": "max_completion_tokens"}
OPTIONAL = ("n", "seed", "logprobs", "top_k", "chat_template_kwargs")
"""Parameters that not all servers know."""


UNKNOWN = re.compile(
    r"un(supported|known|recogni[sz]ed|expected)|not (supported|permitted|allowed)|extra"
    r"|only|must be 1|invalid",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Again:
    """A request that can succeed later."""

    reason: str
    detail: str
    wait: float | None = None
    """Seconds that the server asks to wait."""

    @property
    def is_limit(self) -> bool:
        """Whether the server only has too many requests."""
        return self.reason == "rate_limit"


@dataclass(frozen=True)
class Changed:
    """A request as the server understands it."""

    parameter: str
    request: dict[str, Any]


def outcome(
    answer: HttpAnswer, request: Mapping[str, Any], name: str, teacher: config.Teacher
) -> Failure | Again | Changed:
    """What to do about an answer whose status is not 200. `name`: the teacher's."""
    text = detail(answer)
    everything = answer.data.decode("utf-8", "replace")
    if answer.status == 402 or (answer.status == LIMIT and NO_CREDIT.search(everything)):
        raise checks.not_paid(name, teacher, text)
    if answer.status in PASSING or answer.status >= 500:
        reason = "rate_limit" if answer.status == LIMIT else "server_error"
        return Again(reason, f"{answer.status}: {text}", seconds(answer.retry_after))
    if FILTER.search(everything):
        return Failure("content_filter", text)
    if answer.status in NOT_ALLOWED:
        raise checks.not_allowed(name, teacher, text)
    if answer.status == 404 or answer.status < 400:
        raise checks.not_there(name, teacher, f"{answer.status}: {text}")
    return _misunderstood(request, _error(answer), text)


def _misunderstood(request: Mapping[str, Any], error: Mapping[str, Any], text: str) -> Failure | Changed:
    """What to do about a request that the server cannot process."""
    message = f"{error.get('message')} {error.get('code')}"
    if "max_completion_tokens" in message and "max_tokens" in request:
        return Changed("max_tokens", without(request, ("max_tokens",)))
    for parameter in OPTIONAL:
        is_named = error.get("param") == parameter or re.search(rf"\b{parameter}\b", message) is not None
        if parameter in request and is_named and UNKNOWN.search(message):
            return Changed(parameter, without(request, (parameter,)))
    if not TOO_LONG.search(message):
        return Failure(REFUSED, text)
    room = _room(message)
    if 0 < room < request.get("max_tokens", 0):
        return Changed("room", {**request, "max_tokens": room})
    return Failure("too_long", text)


def _room(message: str) -> int:
    """The tokens that the prompt leaves for an answer, if the server reports both numbers; else 0."""
    context = CONTEXT.search(message)
    prompt = PROMPT.search(message)
    if context is None or prompt is None:
        return 0
    return int(context[1]) - int(prompt[1])


def without(request: Mapping[str, Any], parameters: Collection[str]) -> dict[str, Any]:
    """The request without some parameters, or with their new names."""
    changed = {}
    for key, value in request.items():
        if key not in parameters:
            changed[key] = value
        elif key in RENAMED:
            changed[RENAMED[key]] = value
    return changed


def detail(answer: HttpAnswer) -> str:
    """The server's message, for the person."""
    message = _error(answer).get("message")
    text = message if isinstance(message, str) else answer.data[:4000].decode("utf-8", "replace")
    return checks.shown(text) or f"status {answer.status} without a message"


def _error(answer: HttpAnswer) -> Mapping[str, Any]:
    """The error in an answer, in the form that OpenAI and most servers give it."""
    values = parsed(answer.data)
    if not isinstance(values, dict):
        return {}
    error = values.get("error", values)
    if isinstance(error, str):
        return {"message": error}
    return error if isinstance(error, dict) else {}


def seconds(retry_after: str | None) -> float | None:
    """The value of a Retry-After header: seconds, or a date."""
    if retry_after is None:
        return None
    if re.fullmatch(r"\d{1,9}(\.\d+)?", retry_after.strip()):
        return float(retry_after)
    try:
        date = email.utils.parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    return max(0.0, date.timestamp() - time.time())


def context_of(answer: HttpAnswer, model: str | None) -> int | None:
    """The most tokens of a model, from a list of models that reports it (vLLM, SGLang)."""
    values = parsed(answer.data)
    models = values.get("data") if isinstance(values, dict) else None
    for entry in models if isinstance(models, list) else []:
        if isinstance(entry, dict) and entry.get("id") == model:
            length = entry.get("max_model_len")
            return length if isinstance(length, int) and length > 0 else None
    return None
