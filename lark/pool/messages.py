"""Chat messages as other people store them, in one form: roles, text, reasoning, tool calls and tool
results.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lark.errors import LarkError, first_line
from lark.pool.cleaning import has_no_text
from lark.reading.untrusted import described, parse, quoted

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "function_response": "tool",
    "tool_response": "tool",
}
"""Names of roles in messages (`role`) and in ShareGPT's conversations (`from`), and our names for them."""
CALLS = ("function_call", "tool_call")
"""ShareGPT's roles of assistant turns whose text is a tool call in JSON."""
REASONING = ("reasoning_content", "reasoning", "thinking")
"""Names of a message's reasoning. We store it as `reasoning_content`."""
WRITTEN_CALL = re.compile(
    r"<tool_calls?>|<function_?calls?>|<function=|<\|python_tag\|>|\[TOOL_CALLS\]|\A\s*\[[^\[\]()\n]*\w\(.*\)\s*\]\s*\Z",
    re.DOTALL,
)
"""Tool calls that a teacher wrote in its text; they stay there. The last form is a list of calls:
`[add(a=1, b=2)]`.
"""
TEXT_PARTS = ("text", "input_text", "output_text")
KNOWN = {
    "role",
    "from",
    "content",
    "value",
    "tool_calls",
    "function_call",
    "tool_call_id",
    "name",
    *REASONING,
}
ASSISTANTS = {"tool_calls", "function_call", *REASONING}
"""Keys that are read in assistant turns only."""

Message = dict[str, Any]


@dataclass(frozen=True)
class Turns:
    """The text of a trajectory."""

    question: str
    response: str
    system: str | None = None
    thinking: str | None = None
    messages: list[Message] | None = None
    """All turns, if there is more than an optional system turn, a user turn and an assistant turn with
    text.
    """
    tools: list[Any] | None = None
    cut: bool = False
    """Whether the conversation continued after its last assistant turn. Those turns are left out."""
    unused: frozenset[str] = field(default_factory=frozenset)
    """Keys of messages that have a value but are not read."""

    @property
    def has_empty_turn(self) -> bool:
        """Whether an assistant turn has no text. A tool call may have none."""
        if self.messages is None:
            return has_no_text(self.response)
        return any(
            m["role"] == "assistant" and has_no_text(m["content"]) and "tool_calls" not in m
            for m in self.messages
        )

    def conversation(self, where: str) -> str | None:
        """The messages and tools as JSON text, or None for a single exchange."""
        if self.messages is None:
            return None
        return _json(
            {"messages": self.messages, "tools": self.tools}, where, "a tool call or a tool's description"
        )


def _json(value: Any, where: str, what: str) -> str:
    """A value as JSON text. A table can have values that JSON cannot: dates, decimals and bytes."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError as error:
        raise LarkError(f"{where}: {what} is nested too deeply. Remove the trajectory.") from error
    except TypeError as error:
        raise LarkError(
            f"{where}: {what} is not JSON ({first_line(error)}). Store it as JSON text."
        ) from error


def listed(value: Any, where: str, name: str) -> list[Any]:
    """A list, which may be stored as JSON text."""
    if isinstance(value, str):
        value = parse(value, f"{where}: `{name}` is a string")
    if not isinstance(value, list):
        raise LarkError(f"{where}: `{name}` must be a list, not {described(value)}.")
    return value


def normalised(value: Any, where: str, name: str) -> list[Message]:
    """Messages of any of the known forms as `role`, `content` and, where given, `reasoning_content`,
    `tool_calls`, `tool_call_id` and `name`.
    """
    messages = listed(value, where, name)
    if not all(isinstance(message, dict) for message in messages):
        raise LarkError(
            f"{where}: `{name}` must be a list of objects with `role` and `content` (or `from` and `value`)."
        )
    return [
        _message(message, f"{where}, message {number}") for number, message in enumerate(messages, start=1)
    ]


def unused_keys(value: Any, name: str) -> frozenset[str]:
    """Keys of stored messages that have a value but are not read, as `messages.refusal`."""
    messages = value if isinstance(value, list) else []
    return frozenset(
        f"{name}.{key}"
        for message in messages
        if isinstance(message, dict)
        for key in message.keys() - (KNOWN if _is_assistants(message) else KNOWN - ASSISTANTS)
        if message[key] not in (None, "", [], {})
    )


def _is_assistants(message: Mapping[str, Any]) -> bool:
    stored = message.get("role") or message.get("from")
    return isinstance(stored, str) and ROLES.get(stored.lower()) == "assistant"


def turns(
    messages: list[Message], where: str, name: str, system: str | None = None, tools: Any = None
) -> Turns:
    """The parts of a conversation. It starts with a user turn after optional system turns; every assistant
    turn is part of the trajectory; turns after the last assistant turn are cut.

    system: a system prompt that is stored outside the messages. tools: the tools that the assistant may call.
    """
    opening = [message["content"] for message in messages[: _first(messages)]]
    added = bool(system and not opening)
    if added:
        messages, opening = [{"role": "system", "content": system}, *messages], [str(system)]
    last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
    kept, start = messages[: last + 1], len(opening)
    if len(kept) < start + 2 or kept[start]["role"] != "user":
        raise LarkError(
            f"{where}: `{name}` must be an optional system turn, one user turn, one assistant turn, and"
            f" optionally more turns; it has {', '.join(message['role'] for message in messages) or 'none'}."
        )
    _check_results(kept, where, first=0 if added else 1)
    answer, offered = kept[-1], _tools(tools, where)
    single = len(opening) <= 1 and len(kept) == start + 2 and "tool_calls" not in answer and not offered
    return Turns(
        question=kept[start]["content"],
        response=answer["content"],
        system="\n\n".join(opening) if opening else None,
        thinking=answer.get("reasoning_content"),
        messages=None if single else kept,
        tools=offered,
        cut=len(kept) < len(messages),
    )


def _first(messages: list[Message]) -> int:
    """Number of system turns at the start."""
    return next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))


def _message(raw: Mapping[str, Any], where: str) -> Message:
    stored = raw.get("role") or raw.get("from")
    role = ROLES.get(stored.lower()) if isinstance(stored, str) else None
    if role is None:
        raise LarkError(f"{where}: the role {quoted(stored)} is not known. Use one of {', '.join(ROLES)}.")
    if isinstance(raw.get("from"), str) and ROLES.get(raw["from"].lower()) not in (role, None):
        raise LarkError(f"{where}: different roles in `role` and `from`. Keep one of them.")
    content = raw["content"] if raw.get("content") not in (None, "") else raw.get("value", raw.get("content"))
    if content and raw.get("value") and raw["value"] != content:
        raise LarkError(f"{where}: different text in `content` and `value`. Keep one of them.")
    calls = _calls(raw, where)
    if str(stored).lower() in CALLS:
        calls, content = _calls({"tool_calls": content}, where), ""
    if role == "tool" and not _is_text(content):
        content = _json(content, where, "a tool's result")  # stored as an object
    text, parts = _text("" if content is None and role == "assistant" else content, where)
    reasoning = _reasoning(raw, parts, where) if role == "assistant" else None
    if parts.strip() and role != "assistant":
        raise LarkError(
            f"{where}: a content part with reasoning in a {role} turn. Remove it, or write it as text."
        )
    return {
        "role": role,
        "content": text,
        **({"reasoning_content": reasoning} if reasoning else {}),
        **({"tool_calls": calls} if calls else {}),
        **({key: str(raw[key]) for key in ("tool_call_id", "name") if role == "tool" and raw.get(key)}),
    }


def _is_text(content: Any) -> bool:
    """Whether the content is text or text parts."""
    parts = content if isinstance(content, list) else []
    return isinstance(content, str) or (
        bool(parts) and all(isinstance(part, dict) and "type" in part for part in parts)
    )


def _text(content: Any, where: str) -> tuple[str, str]:
    """The text of a message and the reasoning among its content parts."""
    if isinstance(content, str):
        return content, ""
    if not isinstance(content, list):
        raise LarkError(
            f"{where}: `content` must be a string or a list of text parts, not {described(content)}."
        )
    text: list[str] = []
    reasoning: list[str] = []
    for part in content:
        kind = part.get("type", "text") if isinstance(part, dict) else "text"
        value = part if isinstance(part, str) else part.get("text") if isinstance(part, dict) else None
        if kind in REASONING and isinstance(part, dict):
            value = part.get(kind) if isinstance(part.get(kind), str) else value
        if kind not in (*TEXT_PARTS, *REASONING):
            raise LarkError(
                f"{where}: a content part of type {quoted(kind)}. Only text can be used: remove the part or"
                " the trajectory."
            )
        if not isinstance(value, str):
            raise LarkError(f'{where}: a content part without a `text`. Write {{"type": "text", "text": …}}.')
        (reasoning if kind in REASONING else text).append(value)
    return "".join(text), "".join(reasoning)


def _reasoning(raw: Mapping[str, Any], parts: str, where: str) -> str | None:
    """The reasoning of an assistant turn. Blank reasoning counts as missing."""
    found = {"a content part": parts, **{key: raw[key] for key in REASONING if raw.get(key) is not None}}
    for key, value in found.items():
        if not isinstance(value, str):
            raise LarkError(f"{where}: `{key}` must be a string, not {described(value)}.")
    texts = {key: value for key, value in found.items() if value.strip()}
    if len(set(texts.values())) > 1:
        raise LarkError(f"{where}: different reasoning in {' and '.join(texts)}. Keep one of them.")
    return next(iter(texts.values()), None)


def _calls(raw: Mapping[str, Any], where: str) -> list[Message]:
    """The tool calls of a message, each with a name and arguments as an object."""
    stored = raw.get("tool_calls") or raw.get("function_call") or []
    if raw.get("tool_calls") and raw.get("function_call"):
        raise LarkError(f"{where}: calls in `tool_calls` and in `function_call`. Keep one of them.")
    if isinstance(stored, str):
        stored = parse(stored, f"{where}: the tool call is a string")
    calls = []
    for number, call in enumerate(stored if isinstance(stored, list) else [stored], start=1):
        function = call.get("function", call) if isinstance(call, dict) else {}
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not name:
            raise LarkError(
                f'{where}: tool call {number} has no name. Write {{"name": …, "arguments": {{…}}}}.'
            )
        arguments = function.get("arguments") or {}
        if isinstance(arguments, str):
            arguments = parse(arguments, f"{where}: the arguments of tool call {number}")
        if not isinstance(arguments, dict):
            raise LarkError(
                f"{where}: the arguments of tool call {number} must be an object, not {described(arguments)}."
            )
        identity = str(call.get("id") or f"call_{number}")
        calls.append({"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}})
    return calls


def _check_results(messages: list[Message], where: str, first: int) -> None:
    """Raise if a tool's result does not follow a call. `first`: number of the first message in the row."""
    pending, calls = 0.0, set[str]()
    for number, message in enumerate(messages, start=first):
        if message["role"] == "tool":
            if pending == 0:
                raise LarkError(
                    f"{where}, message {number}: a tool result without a call. Add the call (`tool_calls`) to"
                    " the assistant turn before it, or remove the result."
                )
            pending -= 1
            answered = message.get("tool_call_id")
            if answered is not None and calls and answered not in calls:
                raise LarkError(
                    f"{where}, message {number}: the result of the call {quoted(answered)}, but the calls"
                    f" before it are {', '.join(sorted(calls))[:80]}. Correct `tool_call_id`, or remove it."
                )
        else:
            written = WRITTEN_CALL.search(message["content"])
            made = message.get("tool_calls", [])
            pending = math.inf if written else len(made)
            ours = [f"call_{k}" for k in range(1, len(made) + 1)]  # given to calls without an id
            calls = (
                set() if written or [call["id"] for call in made] == ours else {call["id"] for call in made}
            )


def _tools(value: Any, where: str) -> list[Any] | None:
    """Descriptions of tools, as `{"type": "function", "function": {…}}`."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    tools = listed(value, where, "tools")
    if not all(isinstance(tool, dict) for tool in tools):
        raise LarkError(f"{where}: `tools` must be a list of objects, one description per tool.")
    return [
        tool if "function" in tool or "name" not in tool else {"type": "function", "function": tool}
        for tool in tools
    ] or None
