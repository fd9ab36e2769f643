"""Items of OpenAI's Responses API as messages. NeMo Gym's rollouts and Codex's sessions consist of them."""

from collections.abc import Iterable, Mapping
from typing import Any

from lark.pool.checks import Message
from lark.reading.untrusted import parsed

CALLS = ("function_call", "custom_tool_call", "local_shell_call")
RESULTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")


def response_messages(items: Iterable[Any]) -> list[Message]:
    """The messages that the items make up. The items of one assistant turn (reasoning, text and calls) are
    one message; items of other types are left out.
    """
    messages: list[Message] = []
    reasoning = ""
    for item in items:
        if not isinstance(item, dict):
            continue
        kind = item.get("type", "message")
        if kind == "reasoning":
            reasoning = "\n\n".join(filter(None, (reasoning, reasoning_text(item))))
            continue
        if kind in RESULTS:
            messages.append(
                {
                    "role": "tool",
                    "tool_call_id": item.get("call_id"),
                    "content": result_text(item.get("output")),
                }
            )
            continue
        if kind in CALLS:
            turn = _open_turn(messages)
            turn.setdefault("tool_calls", []).append(_call(item))
        elif kind == "message" and item.get("role") == "assistant":
            turn = _open_turn(messages, item.get("content"))
        elif kind == "message":
            messages.append({"role": item.get("role"), "content": item.get("content")})
            continue
        else:
            continue
        if reasoning:
            turn["reasoning_content"] = "\n\n".join(filter(None, (turn.get("reasoning_content"), reasoning)))
            reasoning = ""
    return messages


def _open_turn(messages: list[Message], content: Any = "") -> Message:
    """The assistant turn that the next item belongs to: a new one, unless a call follows its text."""
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant" or content:
        messages.append({"role": "assistant", "content": _without_refusals(content)})
    return messages[-1]


def _without_refusals(content: Any) -> Any:
    """The parts of a message, with refusals as text: they are what the teacher answered."""
    if not isinstance(content, list):
        return content
    parts = []
    for part in content:
        is_refusal = isinstance(part, dict) and part.get("type") == "refusal"
        parts.append({"type": "text", "text": part.get("refusal") or ""} if is_refusal else part)
    return parts


def _call(item: Mapping[str, Any]) -> Message:
    arguments = item.get("arguments", item.get("input", item.get("action")))
    if isinstance(arguments, str):
        arguments = parsed(arguments) if arguments.lstrip().startswith("{") else {"input": arguments}
    if not isinstance(arguments, dict):
        arguments = {"input": arguments}
    name = item.get("name") or item.get("type")
    return {"id": item.get("call_id") or item.get("id"), "name": name, "arguments": arguments}


def reasoning_text(item: Mapping[str, Any]) -> str:
    """The reasoning of an item, or its summary. Encrypted reasoning has neither."""
    for key in ("content", "summary"):
        parts = item.get(key) or []
        parts = parts if isinstance(parts, list) else [parts]
        texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
        text = "\n\n".join(text for text in texts if isinstance(text, str) and text.strip())
        if text:
            return text
    return ""


def result_text(output: Any) -> Any:
    """A tool's result as text, where it is text or text parts."""
    if not isinstance(output, list):
        return "" if output is None else output
    texts = [part.get("text") if isinstance(part, dict) else part for part in output]
    written = [text for text in texts if isinstance(text, str)]
    return "\n".join(written) if len(written) == len(texts) else output
