"""Tool calls, their results and the descriptions of tools, in one form."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lark.errors import LarkError
from lark.pool.checks import Message, check_answered, check_arguments, check_call_name, check_pending
from lark.reading.fields import Fields
from lark.reading.untrusted import parse

WRITTEN_CALL = re.compile(
    r"<tool_calls?>|<function_?calls?>|<function=|<\|python_tag\|>|\[TOOL_CALLS\]"
    r"|\A\s*\[[^\[\]()\n]*\w\(.*\)\s*\]\s*\Z",
    re.DOTALL,
)
"""Tool calls written in its text, where they stay. The last form is a list: `[add(a=1, b=2)]`."""


def stored_calls(raw: Mapping[str, Any], where: str) -> Any:
    """The value of `tool_calls`, or of `function_call`, OpenAI's earlier name."""
    if raw.get("tool_calls") and raw.get("function_call"):
        raise LarkError(f"{where}: calls in `tool_calls` and in `function_call`. Keep one of them.")
    return raw.get("tool_calls") or raw.get("function_call")


def tool_calls(stored: Any, where: str) -> list[Message]:
    """Tool calls, each with a name and arguments as an object."""
    if not stored:
        return []
    if isinstance(stored, str):
        stored = parse(stored, f"{where}: the tool call is a string")
    calls = stored if isinstance(stored, list) else [stored]
    return [_call(call, number, where) for number, call in enumerate(calls, start=1)]


def _call(call: Any, number: int, where: str) -> Message:
    call = call if isinstance(call, dict) else {}
    function = call.get("function", call)
    function = function if isinstance(function, dict) else {}
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        arguments = parse(arguments, f"{where}: the arguments of tool call {number}")
    name = function.get("name")
    check_call_name(name, number, where)
    check_arguments(arguments, number, where)
    identity = str(call.get("id") or f"call_{number}")
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def check_results(messages: Sequence[Message], where: str, first: int) -> None:
    """Refuse a tool's result that does not follow a call. `first`: number of the first message in the row."""
    pending = 0.0
    calls: set[str] = set()
    for number, message in enumerate(messages, start=first):
        if message["role"] == "tool":
            check_pending(pending, f"{where}, message {number}")
            check_answered(message.get("tool_call_id"), calls, f"{where}, message {number}")
            pending -= 1
        else:
            pending, calls = _expected_results(message)


def _expected_results(message: Message) -> tuple[float, set[str]]:
    """How many results may follow a turn, and the ids of its calls. Without ids, a result may name any."""
    # A call in the text has no end that could be read with certainty, so any number of results may follow.
    if WRITTEN_CALL.search(message["content"]):
        return math.inf, set()
    ids = [call["id"] for call in message.get("tool_calls", [])]
    are_ours = ids == [f"call_{number}" for number in range(1, len(ids) + 1)]  # the calls had no ids
    return len(ids), set() if are_ours else set(ids)


def tool_descriptions(value: Any, where: str) -> list[Any] | None:
    """Descriptions of tools, as `{"type": "function", "function": {…}}`."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    stored = Fields({"tools": value}, where).json_list("tools")
    tools = Fields({"tools": stored}, where).objects("tools", "Write one description per tool.")
    return [_described_tool(tool) for tool in tools] or None


def _described_tool(tool: Message) -> Message:
    is_bare = "name" in tool and "function" not in tool
    return {"type": "function", "function": tool} if is_bare else tool
