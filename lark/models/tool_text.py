"""Tools as text, for chat templates that have no place for them, and what a template leaves out of a
conversation.

Many templates do not write tool calls, tool results or the descriptions of tools: they drop them without an
error. Such parts are then written as text, in the form that most models with tools use:
`<tool_call>{"name": …, "arguments": …}</tool_call>`.
"""

import contextlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lark.errors import LarkError
from lark.models.dialogue import Dialogue, Message, split_thinking

OFFER = (
    'You can call these tools with <tool_call>{{"name": ..., "arguments":'
    " ...}}</tool_call>:\n<tools>\n{}\n</tools>"
)


def uses_tools(dialogue: Dialogue) -> bool:
    return bool(dialogue.tools) or any(m["role"] == "tool" or m.get("tool_calls") for m in dialogue.messages)


def forms(dialogue: Dialogue) -> Iterator[Dialogue]:
    """The conversation as it is, then in forms that more templates can write, if it has tools."""
    yield dialogue
    if uses_tools(dialogue):
        yield replace(
            dialogue, messages=[_with_arguments_as_text(m) for m in dialogue.messages]
        )  # DeepSeek's templates
        text = [_with_calls_as_text(m) for m in dialogue.messages]
        if dialogue.tools:
            text = _with_offer(text, OFFER.format("\n".join(_json(tool) for tool in dialogue.tools)))
        yield Dialogue(text)
        yield Dialogue(list(_results_as_user_turns(text)))


def written_by(render: Callable[[Sequence[Message], Any], str]) -> frozenset[str]:
    """Which of tools (their descriptions) and results a chat template writes, found by rendering a short
    conversation.
    """
    nothing = {"type": "object", "properties": {}}
    tool = {
        "type": "function",
        "function": {"name": "offered_tool", "description": "", "parameters": nothing},
    }
    call = {"id": "call_1", "type": "function", "function": {"name": "called_tool", "arguments": {"x": "1"}}}
    messages: list[Message] = [
        {"role": "user", "content": "How many?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "name": "called_tool", "content": "tool_result"},
        {"role": "assistant", "content": "Two."},
    ]
    texts = []
    for form in (messages, [_with_arguments_as_text(m) for m in messages]):
        with contextlib.suppress(LarkError):
            texts.append(render(form, [tool]))
    marks = {"tools": "offered_tool", "results": "tool_result"}
    return frozenset(name for name, mark in marks.items() if any(mark in text for text in texts))


def left_out(
    dialogue: Dialogue, turns: Sequence[str], whole: str, thinking: bool, written: Collection[str]
) -> str | None:
    """What a rendered conversation lacks, or None.

    turns: the text of the assistant turns that carry loss. thinking: whether their thinking is to be
    written. written: what the template writes (`written_by`).
    """
    for index, text in zip(dialogue.turns, turns, strict=True):
        message = dialogue.messages[index]
        thought, content = split_thinking(message)
        parts = {"thinking": thought if thinking else None, "text": content}
        for name, part in parts.items():
            if part and not contains(text, part):
                return f"the {name} of turn {index + 1}"
        said = "".join(part or "" for part in parts.values())
        if any(text.count(name) <= said.count(name) for name in _called(message)):
            return f"the tool call of turn {index + 1}"
    return _left_out_of_context(dialogue, whole, written)


def _left_out_of_context(dialogue: Dialogue, whole: str, written: Collection[str]) -> str | None:
    said = "".join(str(message.get("content") or "") for message in dialogue.messages)
    for index, message in enumerate(dialogue.messages):
        if any(whole.count(name) <= said.count(name) for name in _called(message)):
            return f"the tool call of turn {index + 1}"
        if message["role"] == "tool" and "results" not in written:
            return f"the tool result of turn {index + 1}"
    names = [str(tool.get("function", tool).get("name", "")) for tool in dialogue.tools or ()]
    described = "tools" in written or all(re.search(rf"[\"']{re.escape(name)}[\"']", whole) for name in names)
    return None if described else "the descriptions of the tools"


def contains(text: str, part: str) -> bool:
    """Whether a text has a part, whatever a template does to white space."""
    return part.strip() in text or "".join(part.split()) in "".join(text.split())


def _called(message: Message) -> list[str]:
    return [str(call["function"]["name"]) for call in message.get("tool_calls") or ()]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _with_arguments_as_text(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    texts = [_json(call["function"]["arguments"]) for call in calls]
    return {
        **message,
        "tool_calls": [
            {**call, "function": {**call["function"], "arguments": text}}
            for call, text in zip(calls, texts, strict=True)
        ],
    }


def _with_calls_as_text(message: Message) -> Message:
    calls = [
        f"<tool_call>\n{_json(call['function'])}\n</tool_call>" for call in message.get("tool_calls") or ()
    ]
    if not calls:
        return message
    content = "\n".join([*([message["content"]] if message.get("content") else []), *calls])
    return {**{key: value for key, value in message.items() if key != "tool_calls"}, "content": content}


def _with_offer(messages: Sequence[Message], offer: str) -> list[Message]:
    """The offer at the end of the system turn, or before the first question: not every template has a
    system turn.
    """
    first, *rest = messages
    parts = (first["content"], offer) if first["role"] == "system" else (offer, first["content"])
    return [{**first, "content": "\n\n".join(part for part in parts if part)}, *rest]


def _results_as_user_turns(messages: Sequence[Message]) -> Iterator[Mapping[str, Any]]:
    """Results that follow one another become one turn, because many templates want users and assistants to
    alternate.
    """
    results: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            results.append(f"<tool_response>\n{message['content']}\n</tool_response>")
            continue
        if results and message["role"] == "user":
            message = {**message, "content": "\n".join([*results, message["content"]])}  # noqa: PLW2901
            results = []
        if results:
            yield {"role": "user", "content": "\n".join(results)}
            results = []
        yield message
