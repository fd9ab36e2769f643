"""Chat messages in one form, however they are stored: roles, text, reasoning, tool calls and tool results."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from lark.errors import LarkError
from lark.models.dialogue import Dialogue
from lark.pool.checks import (
    Message,
    check_no_reasoning,
    check_part_text,
    check_part_type,
    check_same,
    check_turns,
    not_json,
    unknown_role,
)
from lark.pool.cleaning import has_no_text
from lark.pool.tool_calls import check_results, stored_calls, tool_calls, tool_descriptions
from lark.pool.turn_weights import turn_weight
from lark.reading.fields import Fields
from lark.reading.untrusted import described

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
TEXT_PARTS = ("text", "input_text", "output_text")


@dataclass(frozen=True)
class Turns:
    """The text of a trajectory."""

    question: str
    response: str
    system: str | None = None
    thinking: str | None = None
    messages: list[Message] | None = None
    """All turns, if there is more than an optional system turn, a user turn and an assistant's text. A weight
    of the assistant's turn is more.
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
        answers = [message for message in self.messages if message["role"] == "assistant"]
        return any("tool_calls" not in message and has_no_text(message["content"]) for message in answers)

    @property
    def is_weighted(self) -> bool:
        """Whether a turn is masked or has another weight than 1."""
        return any("weight" in message for message in self.messages or ())

    @property
    def is_masked(self) -> bool:
        """Whether every assistant turn is masked, so that nothing can be trained on."""
        return self.messages is not None and not Dialogue(self.messages).turns

    def conversation(self, where: str) -> str | None:
        """The messages and tools as JSON text, or None for a single exchange."""
        if self.messages is None:
            return None
        values = {"messages": self.messages, "tools": self.tools}
        return _json(values, where, "a tool call or a tool's description")


def _json(value: Any, where: str, noun: str) -> str:
    """A value as JSON text. A table can have values that JSON cannot: dates, decimals and bytes."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (RecursionError, TypeError) as error:
        raise not_json(error, noun, where) from error


def normalised(value: Any, where: str, name: str) -> list[Message]:
    """Messages of any of the known forms as `role`, `content` and, where given, `reasoning_content`,
    `tool_calls`, `tool_call_id` and `name`.
    """
    messages = Fields({name: value}, where).json_list(name)
    if not all(isinstance(message, dict) for message in messages):
        raise LarkError(
            f"{where}: `{name}` must be a list of objects with `role` and `content` (or `from` and `value`)."
        )
    numbered = enumerate(messages, start=1)
    return [_message(message, f"{where}, message {number}") for number, message in numbered]


def turns(
    messages: list[Message], where: str, name: str, system: str | None = None, tools: Any = None
) -> Turns:
    """The parts of a conversation. It starts with a user turn after optional system turns; every assistant
    turn is part of the trajectory; turns after the last assistant turn are cut.

    system: a system prompt that is stored outside the messages. tools: the tools that the assistant may call.
    """
    start = len(list(takewhile(_is_system, messages)))
    first = 1  # the number of the first message in the row
    if system and start == 0:
        messages = [{"role": "system", "content": system}, *messages]
        start = 1
        first = 0
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    end = answers[-1] + 1 if answers else 0
    check_turns(messages, start, end, name, where)
    dialogue = messages[:end]
    check_results(dialogue, where, first)
    opening = [message["content"] for message in dialogue[:start]]
    answer = dialogue[-1]
    descriptions = tool_descriptions(tools, where)
    is_plain = "tool_calls" not in answer and "weight" not in answer
    is_single = start <= 1 and end == start + 2 and is_plain and not descriptions
    return Turns(
        question=dialogue[start]["content"],
        response=answer["content"],
        system="\n\n".join(opening) if opening else None,
        thinking=answer.get("reasoning_content"),
        messages=None if is_single else dialogue,
        tools=descriptions,
        cut=end < len(messages),
    )


def _is_system(message: Message) -> bool:
    return bool(message["role"] == "system")


def _message(raw: Mapping[str, Any], where: str) -> Message:
    role = _role(raw, where)
    content = _content(raw, where)
    return READERS[role](raw, content, where)


def _role(raw: Mapping[str, Any], where: str) -> str:
    """One of our roles. If both `role` and `from` have one, they agree."""
    role = ROLES.get(role_name(raw))
    if role is None:
        raise unknown_role(_stored_role(raw), ROLES, where)
    other = ROLES.get(str(raw.get("from")).lower(), role)
    check_same([role, other], "roles", "`role` and `from`", where)
    return role


def _stored_role(raw: Mapping[str, Any]) -> Any:
    return raw.get("role") or raw.get("from")


def role_name(raw: Mapping[str, Any]) -> str:
    """The stored name of the role in lower case."""
    return str(_stored_role(raw)).lower()


def _content(raw: Mapping[str, Any], where: str) -> Any:
    """The content under either name, or under both if it is the same."""
    content = raw.get("content")
    if content in (None, "", []):
        return raw.get("value", content)
    check_same([content, raw.get("value") or content], "text", "`content` and `value`", where)
    return content


def _plain_turn(role: str) -> Callable[[Mapping[str, Any], Any, str], Message]:
    """The reader of turns that are usually nothing but text."""

    def read(raw: Mapping[str, Any], content: Any, where: str) -> Message:
        text, reasoning = _text(content, where)
        check_no_reasoning(reasoning, role, where)
        calls = tool_calls(stored_calls(raw, where), where)
        message = {"role": role, "content": text}
        return {**message, "tool_calls": calls} if calls else message

    return read


def _assistant_turn(raw: Mapping[str, Any], content: Any, where: str) -> Message:
    if role_name(raw) in CALLS:
        calls = tool_calls(content, where)
        content = ""
    else:
        calls = tool_calls(stored_calls(raw, where), where)
    text, parts = _text("" if content is None else content, where)
    reasoning = _reasoning(raw, parts, where)
    message: Message = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = reasoning
    weight = turn_weight(raw, where)
    if weight != 1:
        message["weight"] = weight
    return {**message, "tool_calls": calls} if calls else message


def _tool_turn(raw: Mapping[str, Any], content: Any, where: str) -> Message:
    if not _is_text(content):
        content = _json(content, where, "a tool's result")  # stored as an object
    message = _plain_turn("tool")(raw, content, where)
    for key in ("tool_call_id", "name"):
        if raw.get(key):
            message[key] = str(raw[key])
    return message


READERS = {
    "system": _plain_turn("system"),
    "user": _plain_turn("user"),
    "assistant": _assistant_turn,
    "tool": _tool_turn,
}


def _is_text(content: Any) -> bool:
    """Whether the content is text or text parts."""
    if not isinstance(content, list):
        return isinstance(content, str)
    return bool(content) and all(isinstance(part, dict) and "type" in part for part in content)


def _text(content: Any, where: str) -> tuple[str, str]:
    """The text of a message and the reasoning among its content parts."""
    if isinstance(content, str):
        return content, ""
    if not isinstance(content, list):
        raise LarkError(
            f"{where}: `content` must be a string or a list of text parts, not {described(content)}."
        )
    # Parts are joined as they are: APIs split a text at any character, so a separator would change it.
    text = ""
    reasoning = ""
    for part in content:
        is_reasoning, part_text = _part(part, where)
        if is_reasoning:
            reasoning += part_text
        else:
            text += part_text
    return text, reasoning


def _part(part: Any, where: str) -> tuple[bool, str]:
    """Whether a content part is reasoning, and its text."""
    if isinstance(part, str):
        return False, part
    part = part if isinstance(part, dict) else {}
    kind = part.get("type", "text")
    text = part.get("text")
    if kind in REASONING and isinstance(part.get(kind), str):
        text = part[kind]  # Anthropic's parts: {"type": "thinking", "thinking": …}
    check_part_type(kind, (*TEXT_PARTS, *REASONING), where)
    check_part_text(text, where)
    return kind in REASONING, text


def _reasoning(raw: Mapping[str, Any], parts: str, where: str) -> str | None:
    """The reasoning of an assistant turn. Blank reasoning counts as missing."""
    fields = Fields(raw, where)
    stored = {"a content part": parts, **{key: fields.optional_text(key) or "" for key in REASONING}}
    texts = {key: text for key, text in stored.items() if text.strip()}
    # Some datasets repeat the reasoning under a second name. If the two differ, either could be meant.
    check_same([*texts.values()], "reasoning", " and ".join(texts), where)
    return next(iter(texts.values()), None)
