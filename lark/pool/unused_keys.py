"""Keys of messages that are not read, which a pool's summary names."""

from collections.abc import Iterator, Mapping
from typing import Any

from lark.pool.messages import REASONING, ROLES, role_name
from lark.pool.turn_weights import WEIGHT_KEYS, masks_nothing

KEYS = {"role", "from", "content", "value", "tool_call_id", "name"}
ASSISTANT_KEYS = {"tool_calls", "function_call", *REASONING, *WEIGHT_KEYS}
"""Keys that are read in assistant turns only."""


def unused_keys(value: Any, name: str) -> frozenset[str]:
    """Keys of stored messages that have a value but are not read, as `messages.refusal`."""
    messages = value if isinstance(value, list) else []
    unused: set[str] = set()
    for message in messages:
        if isinstance(message, dict):
            unused.update(f"{name}.{key}" for key in _unread(message))
    return frozenset(unused)


def _unread(message: Mapping[str, Any]) -> Iterator[str]:
    is_assistant = ROLES.get(role_name(message)) == "assistant"
    read = KEYS | ASSISTANT_KEYS if is_assistant else KEYS
    for key in message.keys() - read:
        is_empty = message[key] in (None, "", [], {})
        if not is_empty and not masks_nothing(key, message[key]):
            yield key
