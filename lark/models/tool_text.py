"""Tools as text, for chat templates that have no place for them, and the parts that a template leaves out of
a conversation.

Many templates do not write tool calls, tool results or the descriptions of tools: they drop them without an
error. Such parts are then written as text, in the form that most models with tools use:
`<tool_call>{"name": …, "arguments": …}</tool_call>`.
"""

import contextlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from lark.errors import LarkError
from lark.models.dialogue import Dialogue, Message, split_thinking

OFFER = (
    'You can call these tools with <tool_call>{{"name": ..., "arguments":'
    " ...}}</tool_call>:\n<tools>\n{}\n</tools>"
)
PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "offered_tool",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    },
}
PROBE_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "called_tool", "arguments": {"x": "1"}},
}
PROBE: tuple[Message, ...] = (
    {"role": "user", "content": "How many?"},
    {"role": "assistant", "content": "", "tool_calls": [PROBE_CALL]},
    {"role": "tool", "tool_call_id": "call_1", "name": "called_tool", "content": "tool_result"},
    {"role": "assistant", "content": "Two."},
)
"""A conversation with a tool, to see which parts of it a template writes."""


def uses_tools(dialogue: Dialogue) -> bool:
    return bool(dialogue.tools) or any(m["role"] == "tool" or m.get("tool_calls") for m in dialogue.messages)


def forms(dialogue: Dialogue) -> Iterator[Dialogue]:
    """The conversation as it is, then in forms that more templates can write, if it has tools."""
    yield dialogue
    if not uses_tools(dialogue):
        return
    # DeepSeek's templates join a call's arguments to text.
    yield replace(dialogue, messages=[_with_arguments_as_text(m) for m in dialogue.messages])
    messages = [_with_calls_as_text(m) for m in dialogue.messages]
    if dialogue.tools:
        messages = _with_offer(messages, OFFER.format("\n".join(map(_json, dialogue.tools))))
    yield Dialogue(messages)
    yield Dialogue(list(_results_as_user_turns(messages)))


def written_by(render: Callable[[Sequence[Message], Any], str]) -> frozenset[str]:
    """Which of `tools` (their descriptions) and `results` a chat template writes, found by rendering a short
    conversation.
    """
    written = set()
    for messages in (PROBE, [_with_arguments_as_text(message) for message in PROBE]):
        with contextlib.suppress(LarkError):
            text = render(messages, [PROBE_TOOL])
            if "offered_tool" in text:
                written.add("tools")
            if "tool_result" in text:
                written.add("results")
    return frozenset(written)


def left_out(
    dialogue: Dialogue, turns: Sequence[str], conversation: str, thinking: bool, written: Collection[str]
) -> str | None:
    """The first part that a rendered conversation lacks, or None.

    turns: the text of the assistant turns that carry loss. thinking: whether their thinking is to be
    written. written: what the template writes (`written_by`).
    """
    for index, text in zip(dialogue.turns, turns, strict=True):
        part = _left_out_of_turn(dialogue.messages[index], text, thinking)
        if part is not None:
            return f"the {part} of turn {index + 1}"
    texts = "".join(str(message.get("content") or "") for message in dialogue.messages)
    for index, message in enumerate(dialogue.messages):
        if _lacks_call(message, conversation, texts):
            return f"the tool call of turn {index + 1}"
        if message["role"] == "tool" and "results" not in written:
            return f"the tool result of turn {index + 1}"
    has_tools = "tools" in written or all(_is_described(tool, conversation) for tool in dialogue.tools or ())
    return None if has_tools else "the descriptions of the tools"


def _left_out_of_turn(message: Message, text: str, thinking: bool) -> str | None:
    thought, content = split_thinking(message)
    if not thinking or thought is None:
        thought = ""
    if not contains(text, thought):
        return "thinking"
    if not contains(text, content):
        return "text"
    return "tool call" if _lacks_call(message, text, thought + content) else None


def _lacks_call(message: Message, rendered: str, texts: str) -> bool:
    """True if the name of a called function is in the rendering only because the `texts` in it have it."""
    # Not the arguments, which templates write in many ways.
    names = [str(call["function"]["name"]) for call in message.get("tool_calls") or ()]
    return any(rendered.count(name) <= texts.count(name) for name in names)


def _is_described(tool: Any, conversation: str) -> bool:
    """True if a tool's name is in the conversation in quotes, as in a description."""
    name = str(tool.get("function", tool).get("name", ""))
    return re.search(rf"[\"']{re.escape(name)}[\"']", conversation) is not None


def contains(text: str, part: str) -> bool:
    """Whether a text has a part, whatever a template does to white space."""
    return part.strip() in text or "".join(part.split()) in "".join(text.split())


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _with_arguments_as_text(message: Message) -> Message:
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        function = call["function"]
        calls.append({**call, "function": {**function, "arguments": _json(function["arguments"])}})
    return {**message, "tool_calls": calls}


def _with_calls_as_text(message: Message) -> Message:
    if not message.get("tool_calls"):
        return message
    parts = [message["content"]] if message.get("content") else []
    for call in message["tool_calls"]:
        parts.append(f"<tool_call>\n{_json(call['function'])}\n</tool_call>")
    other = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**other, "content": "\n".join(parts)}


def _with_offer(messages: Sequence[Message], offer: str) -> list[Message]:
    """The offer at the end of the system turn, or before the first question: not every template has a
    system turn.
    """
    first, *rest = messages
    parts = [first["content"], offer] if first["role"] == "system" else [offer, first["content"]]
    return [{**first, "content": "\n\n".join(filter(None, parts))}, *rest]


def _results_as_user_turns(messages: Sequence[Message]) -> Iterator[Message]:
    """Results that follow one another become one turn, with the user turn after them: many templates want
    users and assistants to alternate.
    """
    results: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            results.append(f"<tool_response>\n{message['content']}\n</tool_response>")
            continue
        if not results:
            yield message
        elif message["role"] == "user":
            yield {**message, "content": "\n".join([*results, message["content"]])}
        else:
            yield {"role": "user", "content": "\n".join(results)}
            yield message
        results = []
