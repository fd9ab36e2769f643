"""Chat completions in OpenAI's format: a request from an `Ask`, and replies from a response, for endpoints
and batch files alike. A response is hostile text: it can contain anything.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lark import config
from lark.errors import LarkError
from lark.generation import checks
from lark.generation.conversation import Ask, AskSampling, Failure, Reply
from lark.generation.thinking import separated
from lark.reading.untrusted import require_characters

LARGEST = 10_000_000
"""Bytes of the text of one sample, with its reasoning."""
REASONING = ("reasoning_content", "reasoning")
"""Names of reasoning that is returned apart from the answer."""
FILTERED = "content_filter"


class InvalidAnswerError(Exception):
    """A response that is not a chat completion. Its message is a phrase."""


def body(teacher: config.Teacher, ask: Ask, sampling: AskSampling) -> dict[str, Any]:
    """The JSON of a request. A teacher with a path is asked by a batch file, for `vllm run-batch`."""
    most = sampling.max_new_tokens
    if teacher.is_local:  # vLLM refuses a limit that is longer than the context
        most = min(most, teacher.context)
    request: dict[str, Any] = {
        "model": teacher.model or teacher.path,
        "messages": [dict(message) for message in ask.messages],
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": most,
        "seed": ask.seed,
    }
    if ask.samples > 1:
        request["n"] = ask.samples
    if sampling.top_k != -1:
        request["top_k"] = sampling.top_k
    if sampling.logprobs:
        request["logprobs"] = True
    if teacher.template_options:
        request["chat_template_kwargs"] = dict(teacher.template_options)
    return request | teacher.extra


def replies(response: Mapping[str, Any], name: str, teacher: config.Teacher) -> list[Reply] | Failure:
    """The samples in a response, in their order. `name`: the teacher's."""
    choices = response.get("choices")
    if not isinstance(choices, list) or not choices:
        raise InvalidAnswerError("it has no `choices`")
    model = _text(response, "model") or teacher.model or ""
    checks.require_model(name, teacher, model)
    n_prompt_tokens = _count(response, "prompt_tokens")
    drafts = []
    for choice in sorted(map(_object, choices), key=_index):
        draft = _reply(choice, teacher, model, n_prompt_tokens)
        if isinstance(draft, Failure):
            return draft
        drafts.append(draft)
    return _counted(drafts, _count(response, "completion_tokens"))


def _reply(
    choice: Mapping[str, Any], teacher: config.Teacher, model: str, n_prompt_tokens: int
) -> Reply | Failure:
    """One sample, without the number of its tokens."""
    message = _object(choice.get("message"))
    finish = _text(choice, "finish_reason") or "stop"
    refusal = _text(message, "refusal")
    if finish == FILTERED or refusal:
        return Failure(FILTERED, checks.shown(refusal) or "The endpoint's content filter stopped the answer.")
    text = _text(message, "content") or ""
    apart = next(filter(None, (_text(message, key) for key in REASONING)), None)
    if len(text.encode()) + len((apart or "").encode()) > LARGEST:
        return too_large()
    if not text.strip() and apart is None:
        return Failure("empty", "The answer has no text.")
    reasoning, answer = (apart, text) if apart is not None else separated(text, teacher)
    finish_reason = "length" if finish == "length" else "stop"
    return Reply(answer, reasoning, finish_reason, 0, n_prompt_tokens, model, _logprobs(choice))


def _counted(drafts: list[Reply], total: int) -> list[Reply]:
    """The samples with their numbers of tokens: their log-probabilities, or their shares of the sum."""
    lengths = [max(1, len(draft.text) + len(draft.reasoning or "")) for draft in drafts]
    counted = []
    tokens = total
    characters = sum(lengths)
    for draft, length in zip(drafts, lengths, strict=True):
        # Of what is left, so that all shares add up to the sum.
        n_tokens = round(tokens * length / characters)
        tokens -= n_tokens
        characters -= length
        if draft.logprobs is not None:
            n_tokens = len(draft.logprobs)
        counted.append(replace(draft, n_tokens=n_tokens))
    return counted


def too_large() -> Failure:
    return Failure("too_large", f"The answer has more than {LARGEST:,} bytes of text.")


def _logprobs(choice: Mapping[str, Any]) -> tuple[float, ...] | None:
    """The log-probability of each token; None without them."""
    content = _object(choice.get("logprobs")).get("content")
    if not isinstance(content, list) or not content:
        return None
    values = [_object(token).get("logprob") for token in content]
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        raise InvalidAnswerError("its `logprobs` are not numbers")
    return tuple(map(float, values))  # type: ignore[arg-type]


def _count(response: Mapping[str, Any], key: str) -> int:
    """A number of tokens; 0 if the endpoint does not count."""
    value = _object(response.get("usage")).get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
        return 0
    return value


def _text(values: Mapping[str, Any], key: str) -> str | None:
    value = values.get(key)
    if not isinstance(value, str | None):
        raise InvalidAnswerError(f"its `{key}` is not text")
    try:
        require_characters(value, "")
    except LarkError as error:
        raise InvalidAnswerError(f"its `{key}` contains half of a character") from error
    return value


def _object(value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidAnswerError("a part of it is not an object")
    return value


def _index(choice: Mapping[str, Any]) -> int:
    value = choice.get("index")
    return value if isinstance(value, int) else 0
