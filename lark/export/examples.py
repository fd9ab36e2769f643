"""The examples of a training set as trainers see them: a conversation, optional tools, and a weight."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lark.errors import LarkError
from lark.models.dialogue import check_messages
from lark.reading.rows import Row, jsonl_rows
from lark.reading.untrusted import require_characters

Message = dict[str, Any]


@dataclass(frozen=True)
class Example:
    """One line of `train.jsonl`."""

    messages: list[Message]
    tools: Any
    """Tool definitions, passed on as they are; None without tools."""
    weight: float
    ids: dict[str, str]
    """question_id and candidate_id."""
    where: str

    @property
    def responses(self) -> list[Message]:
        return [message for message in self.messages if message["role"] == "assistant"]

    @property
    def has_tools(self) -> bool:
        calls = any(message["role"] == "tool" or message.get("tool_calls") for message in self.messages)
        return calls or self.tools is not None


def is_context(message: Message) -> bool:
    """Whether an assistant message carries no loss (`"weight": 0`)."""
    return message.get("weight") == 0


@dataclass(frozen=True)
class Overview:
    """What a training set contains, found in a first pass over it."""

    examples: int
    uniform: bool
    """Whether all weights are 1, so that nothing is lost without them."""
    tools: int
    """Examples with tools."""
    thinking: int
    """Examples with `reasoning_content`."""
    last_only: int
    """Examples of which only the last assistant message carries a loss; includes those with a single one."""
    every_turn: int
    """Examples of which every assistant message carries a loss; includes those with a single one."""


def overview(examples: Iterable[Example]) -> Overview:
    total = tools = thinking = last_only = every_turn = 0
    uniform = True
    for example in examples:
        context = [is_context(message) for message in example.responses]
        total += 1
        uniform = uniform and abs(example.weight - 1) < 1e-9
        tools += example.has_tools
        thinking += any(message.get("reasoning_content") for message in example.responses)
        last_only += all(context[:-1]) and not context[-1]
        every_turn += not any(context)
    return Overview(total, uniform, tools, thinking, last_only, every_turn)


def read_examples(path: Path) -> Iterator[Example]:
    """The examples of a `train.jsonl`, in the file's order. Errors name the line."""
    found = False
    for row in jsonl_rows(path):
        found = True
        yield _example(row)
    if not found:
        raise LarkError(f"{path} is empty: there is nothing to export.")


def _example(row: Row) -> Example:
    messages, weight = row.values.get("messages"), row.values.get("weight", 1.0)
    check_messages(messages, row.where)
    assert isinstance(messages, list)
    if not messages or messages[-1]["role"] != "assistant":
        raise LarkError(f"{row.where}: the last message must be the assistant's, because it is trained on.")
    if all(is_context(message) for message in messages if message["role"] == "assistant"):
        raise LarkError(
            f"{row.where}: nothing in this conversation is trained on, because every assistant message has"
            ' "weight": 0. Remove the line, or the weight of the messages to train on.'
        )
    if (
        isinstance(weight, bool)
        or not isinstance(weight, int | float)
        or not 0 <= weight <= sys.float_info.max
    ):
        raise LarkError(f"{row.where}: the weight must be a number that is not negative, not {weight!r:.40}.")
    require_characters(row.values, row.where)
    ids = {name: str(row.values[name]) for name in ("question_id", "candidate_id") if name in row.values}
    return Example(
        [dict(message) for message in messages], row.values.get("tools"), float(weight), ids, row.where
    )
