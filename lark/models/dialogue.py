"""A trajectory as a conversation: messages that end with an assistant turn, and which assistant turns carry
loss.

Most trajectories are a question and a response. Others have several turns, tool calls and tool results. An
assistant message with `weight: 0` is context: it is neither scored nor trained on. Another weight multiplies
the loss of the message's tokens in training, and changes no score. (The key is the one that hosted trainers
use.)
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lark.config.student import INSTRUCTION
from lark.errors import LarkError
from lark.reading.fields import Fields

Message = Mapping[str, Any]

ROLES = ("system", "user", "assistant", "tool")
OPEN = "<think>"
CLOSE = "</think>"
LARGEST_WEIGHT = 1e6
"""Largest weight of a message or a token. A larger one would only make the loss overflow."""


@dataclass(frozen=True)
class Dialogue:
    """The messages of a trajectory, in the form that chat templates take."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None = None

    @property
    def turns(self) -> list[int]:
        """Indices of the assistant messages that carry loss."""
        indices = []
        for index, message in enumerate(self.messages):
            if message["role"] == "assistant" and message.get("weight", 1) != 0:
                indices.append(index)
        return indices

    @property
    def is_single(self) -> bool:
        """Whether only the last message carries loss, so that everything before it is its prompt."""
        return self.turns == [len(self.messages) - 1]

    def without_tail(self) -> "Dialogue":
        """Without the messages after the last turn with loss: nothing that is trained on sees them."""
        turns = self.turns
        end = turns[-1] + 1 if turns else 0
        return self if end == len(self.messages) else replace(self, messages=self.messages[:end])


def check_messages(messages: Any, where: str) -> None:
    """Refuse a value that is not a conversation of a training set. `where`: its line."""
    if not isinstance(messages, list) or not all(_is_message(message) for message in messages):
        raise LarkError(
            f"{where}: `messages` must be a list of messages, each with text as content and a role:"
            f" {', '.join(ROLES)}."
        )
    for message in messages:
        Fields(message, where).optional_text("reasoning_content")
        _check_weight(message, where)
        _check_calls(message, where)


def _is_message(message: Any) -> bool:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        return False
    content = message.get("content")
    return isinstance(content, str) or (content is None and bool(message.get("tool_calls")))


def _check_weight(message: Message, where: str) -> None:
    weight = message.get("weight")
    if message["role"] != "assistant" or weight is None or isinstance(weight, bool):
        return
    remedy = "It is the weight of a message; the weight of the trajectory is beside `messages`."
    Fields(message, where).number("weight", LARGEST_WEIGHT, remedy)


def _check_calls(message: Message, where: str) -> None:
    """Refuse calls that a template would leave out, or write as Python does."""
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list) or not all(_is_call(call) for call in calls):
        raise LarkError(
            f'{where}: `tool_calls` must be a list of calls like {{"type": "function", "function": {{"name":'
            ' …, "arguments": …}}.'
        )


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


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
        dialogue = Dialogue(values["messages"], values.get("tools"))
        if _is_exchange(dialogue):
            prompt = opening(row["question"], row["system"], instruction)
            return Dialogue([*prompt, dialogue.messages[-1]])
        *context, last = dialogue.without_tail().messages
        if last_only:
            context = [_as_context(message) for message in context]
        return replace(dialogue, messages=[*context, last])
    response = {"role": "assistant", "content": row["response"]}
    if row.get("thinking"):
        response["reasoning_content"] = row["thinking"]
    return Dialogue([*opening(row["question"], row["system"], instruction), response])


def _is_exchange(dialogue: Dialogue) -> bool:
    """Whether this is a question and a response, which is stored as messages only if it has a weight."""
    *context, last = dialogue.messages
    roles = [message["role"] for message in context]
    has_tools = bool(dialogue.tools) or "tool_calls" in last
    return roles in (["user"], ["system", "user"]) and not has_tools


def _as_context(message: Message) -> Message:
    return {**message, "weight": 0} if message["role"] == "assistant" else message


def without_scale(message: Message) -> Message:
    """The message with its weight only if that is 0: no other changes a score."""
    if message.get("weight", 0) == 0:
        return message
    return {key: value for key, value in message.items() if key != "weight"}


def split_thinking(message: Message) -> tuple[str | None, str]:
    """Reasoning and answer of an assistant message: from `reasoning_content`, or from a `<think>` block
    that opens its text.
    """
    content = message.get("content") or ""
    if message.get("reasoning_content"):
        return message["reasoning_content"], content
    before, close, answer = content.partition(CLOSE)
    thinking = before.lstrip().removeprefix(OPEN)
    # A second opening tag is not a block: the text talks about the tags.
    if not close or OPEN in thinking:
        return None, content
    return thinking.strip("\n") or None, answer.lstrip("\n")


def end_of_thinking(turn: str, message: Message) -> int:
    """Where the thinking of an assistant message ends in its rendered turn, with the tag that closes it. 0
    without thinking.
    """
    thinking = (split_thinking(message)[0] or "").strip()
    if not thinking:
        return 0
    start = turn.find(thinking)
    # A template that changes white space in the thinking still closes it.
    end = start + len(thinking) if start >= 0 else 0
    before, close, _ = turn[end:].partition(CLOSE)
    is_its_tag = bool(close) and (start < 0 or not before.strip())
    return end + len(before) + len(close) if is_its_tag else end


def as_text(message: Message) -> str:
    """An assistant message as one text, with its reasoning as a `<think>` block."""
    content = message.get("content") or ""
    thinking = message.get("reasoning_content")
    return f"{OPEN}\n{thinking}\n{CLOSE}\n\n{content}" if thinking else content


def response_text(row: Mapping[str, Any]) -> str:
    """Everything that the teacher wrote in a row of the pool, for methods and judges that read text."""
    turns = [message for message in dialogue_of(row).messages if message["role"] == "assistant"]
    return "\n\n".join(filter(None, map(as_text, turns)))
