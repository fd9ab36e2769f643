"""The examples of a training set as trainers see them: a conversation, optional tools, and a weight."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lark.errors import LarkError
from lark.export.checks import check_last, check_trained_on
from lark.models.dialogue import check_messages
from lark.reading.fields import Fields
from lark.reading.rows import Row, jsonl_rows
from lark.reading.untrusted import require_characters

if TYPE_CHECKING:
    from lark.models.chat import Encoded

Message = dict[str, Any]


@dataclass(frozen=True)
class ExportExample:
    """One line of `train.jsonl`."""

    messages: list[Message]
    tools: Any
    """Tool definitions, passed on as they are; None without tools."""
    weight: float
    ids: dict[str, str]
    """question_id and candidate_id."""
    where: str
    encoded: "Encoded | None" = None
    """Its tokens, if the trainer needs the student's."""

    @property
    def responses(self) -> list[Message]:
        return [message for message in self.messages if message["role"] == "assistant"]

    @property
    def has_tools(self) -> bool:
        calls = any(message["role"] == "tool" or message.get("tool_calls") for message in self.messages)
        return calls or self.tools is not None


def is_context(message: Message) -> bool:
    """True for an assistant message without a loss (`"weight": 0`)."""
    return message.get("weight") == 0


def turn_weight(message: Message) -> float:
    """The weight of an assistant message's tokens: 0 for context, 1 without one."""
    weight = message.get("weight")
    return 1.0 if weight is None else float(weight)


@dataclass(frozen=True)
class Contents:
    """Counts of a training set, from a first pass over it."""

    examples: int
    weighted: int
    """Examples whose weight is not 1. Without any, nothing is lost without weights."""
    tools: int
    """Examples with tools."""
    thinking: int
    """Examples with `reasoning_content`."""
    last_only: int
    """Examples of which only the last assistant message carries a loss; includes those with a single one."""
    scaled: int
    """Examples with a message whose weight is neither 0 nor 1."""
    tokens: int
    """Response tokens of all examples, if they have the student's tokens."""
    every_turn: int
    """Examples of which every assistant message carries a loss; includes those with a single one."""


def contents_of(examples: Iterable[ExportExample]) -> Contents:
    counts: Counter[str] = Counter()
    for example in examples:
        counts["examples"] += 1
        counts["weighted"] += abs(example.weight - 1) >= 1e-9
        counts["tools"] += example.has_tools
        counts["thinking"] += any(message.get("reasoning_content") for message in example.responses)
        counts["scaled"] += any(turn_weight(message) not in (0, 1) for message in example.responses)
        counts["tokens"] += 0 if example.encoded is None else example.encoded.n_response
        context = list(map(is_context, example.responses))
        counts["last_only"] += all(context[:-1]) and not context[-1]
        counts["every_turn"] += not any(context)
    return Contents(**counts)


def read_examples(path: Path) -> Iterator[ExportExample]:
    """The examples of a `train.jsonl`, in the file's order. Errors name the line."""
    is_empty = True
    for row in jsonl_rows(path):
        is_empty = False
        yield _example(row)
    if is_empty:
        raise LarkError(f"{path} is empty: there is nothing to export.")


def _example(row: Row) -> ExportExample:
    messages = row.values.get("messages")
    check_messages(messages, row.where)
    assert isinstance(messages, list)
    check_last(messages, row.where)
    check_trained_on(messages, row.where)
    require_characters(row.values, row.where)
    ids: dict[str, str] = {}
    for name in ("question_id", "candidate_id"):
        if name in row.values:
            ids[name] = str(row.values[name])
    # A training set from elsewhere may have no weights.
    weight = Fields({"weight": 1.0, **row.values}, row.where).number("weight")
    return ExportExample(messages, row.values.get("tools"), weight, ids, row.where)
