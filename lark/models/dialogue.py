"""A trajectory as a conversation: messages that end with an assistant turn, and which assistant turns carry
loss.

Most trajectories are a question and a response. Others have several turns, tool calls and tool results. An
assistant message with `weight: 0` is context: it is neither scored nor trained on. (The key is the one that
hosted trainers use.)
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lark.config.student import INSTRUCTION
from lark.errors import LarkError
from lark.reading.untrusted import quoted

Message = Mapping[str, Any]

ROLES = ("system", "user", "assistant", "tool")
OPEN, CLOSE = "<think>", "</think>"


@dataclass(frozen=True)
class Dialogue:
    """The messages of a trajectory, in the form that chat templates take."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None = None

    @property
    def turns(self) -> list[int]:
        """Indices of the assistant messages that carry loss."""
        return [
            i for i, m in enumerate(self.messages) if m["role"] == "assistant" and m.get("weight", 1) != 0
        ]

    @property
    def is_single(self) -> bool:
        """Whether only the last message carries loss, so that everything before it is its prompt."""
        return self.turns == [len(self.messages) - 1]


def check_messages(messages: Any, where: str) -> None:
    """Refuse what are not the messages of a training set. `where`: their line."""
    readable = isinstance(messages, list) and all(
        isinstance(message, dict)
        and message.get("role") in ROLES
        and (
            isinstance(message.get("content"), str)
            or (message.get("content") is None and message.get("tool_calls"))
        )
        for message in messages
    )
    if not readable:
        raise LarkError(
            f"{where}: `messages` must be a list of messages, each with text as content and a role:"
            f" {', '.join(ROLES)}."
        )
    for message in messages:
        _check_message(message, where)


def _check_message(message: Mapping[str, Any], where: str) -> None:
    """Refuse values that a template would leave out or write as Python does."""
    if not isinstance(message.get("reasoning_content"), str | None):
        raise LarkError(
            f"{where}: `reasoning_content` must be a string, not {quoted(message['reasoning_content'])}."
        )
    if message["role"] == "assistant" and message.get("weight") not in (0, 1, None):
        raise LarkError(
            f"{where}: the `weight` of a message must be 0 (context) or 1, not {quoted(message['weight'])}."
            " The weight of the trajectory is beside `messages`."
        )
    calls = message.get("tool_calls") or []
    functions = (
        [call.get("function") if isinstance(call, dict) else None for call in calls]
        if isinstance(calls, list)
        else [None]
    )
    if not all(
        isinstance(function, dict) and isinstance(function.get("name"), str) for function in functions
    ):
        raise LarkError(
            f'{where}: `tool_calls` must be a list of calls like {{"type": "function", "function": {{"name":'
            ' …, "arguments": …}}.'
        )


def is_instruction(text: str, instruction: str | None = INSTRUCTION) -> bool:
    """Whether a text is nothing but the instruction, compared without case, spacing and final period."""
    return instruction is not None and _compared(text) == _compared(instruction)


def _compared(text: str) -> str:
    return "".join(text.split()).casefold().rstrip(".")


def user_turn(question: str, instruction: str | None = INSTRUCTION) -> str:
    """The user's message: the question followed by the instruction (never twice)."""
    question = question.strip()
    if not instruction or _compared(question).endswith(_compared(instruction)):
        return question
    return f"{question}\n{instruction}"


def opening(question: str, system: str | None, instruction: str | None = INSTRUCTION) -> list[dict[str, Any]]:
    """The messages before a response. A system message that is the instruction is left out, because the
    instruction ends the user turn (decision 11).
    """
    user = {"role": "user", "content": user_turn(question, instruction)}
    if not system or is_instruction(system, instruction):
        return [user]
    return [{"role": "system", "content": system}, user]


def dialogue_of(
    row: Mapping[str, Any], instruction: str | None = INSTRUCTION, last_only: bool = False
) -> Dialogue:
    """The conversation of a row of the pool. `last_only`: earlier assistant turns are context
    (`pool.turns=last`).

    The instruction is appended to the question of single-turn trajectories only: a conversation is used as
    it is.
    """
    stored = row.get("conversation")
    if stored:
        values = json.loads(stored)
        messages = values["messages"]
        if last_only:
            messages = [
                {**m, "weight": 0} if m["role"] == "assistant" else m for m in messages[:-1]
            ] + messages[-1:]
        return Dialogue(messages, values.get("tools"))
    response = {"role": "assistant", "content": row["response"]}
    if row.get("thinking"):
        response["reasoning_content"] = row["thinking"]
    return Dialogue([*opening(row["question"], row["system"], instruction), response])


def split_thinking(message: Message) -> tuple[str | None, str]:
    """Reasoning and answer of an assistant message: from `reasoning_content`, or from a `<think>` block
    that opens its text.
    """
    content = message.get("content") or ""
    if message.get("reasoning_content"):
        return message["reasoning_content"], content
    head, found, rest = content.partition(CLOSE)
    if not found or OPEN in head.strip().removeprefix(OPEN):
        return None, content
    thinking = head.lstrip().removeprefix(OPEN)
    return (thinking.strip("\n") or None), rest.lstrip("\n")


def as_text(message: Message) -> str:
    """An assistant message as one text, with its reasoning as a `<think>` block."""
    content = message.get("content") or ""
    thinking = message.get("reasoning_content")
    return f"{OPEN}\n{thinking}\n{CLOSE}\n\n{content}" if thinking else content


def response_text(row: Mapping[str, Any]) -> str:
    """Everything that the teacher wrote in a row of the pool, for methods and judges that read text."""
    dialogue = dialogue_of(row)
    texts = [as_text(m) for m in dialogue.messages if m["role"] == "assistant"]
    return "\n\n".join(text for text in texts if text)
