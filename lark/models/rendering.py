"""Render conversations with a student's chat template, and find the assistant turns in the rendered text.

What a template writes is found by rendering, never by knowing the template:
- the prompt P of a turn is the rendering of the messages before it, with the generation prompt, as evaluation
  sends it;
- the rendering of the whole conversation must start with P, and what follows up to the token that ends the
  turn is the turn.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lark.models import template_checks as checks
from lark.models.chat_template import QUESTION, THINKING_KEYS, ChatTemplate
from lark.models.dialogue import CLOSE, OPEN, Dialogue, Message, as_text, end_of_thinking, split_thinking
from lark.models.literal import MARK, Literal, unshield
from lark.models.tool_text import forms, left_out, uses_tools

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NO_THINKING = {"enable_thinking": False, "thinking": False}
"""Names of the template variable that turns thinking off (Qwen3, GLM; DeepSeek-V3.1)."""


@dataclass(frozen=True)
class Segment:
    """A part of a rendered conversation. Field texts are shielded (lark/models/literal.py)."""

    text: str
    weight: float = 0.0
    """Of the message of an assistant turn; 0 for context."""
    thinking: int = 0
    """Characters of the turn, without marks, up to the end of its thinking and of the tag that closes it."""

    @property
    def loss(self) -> bool:
        return self.weight != 0


@dataclass(frozen=True)
class LastTurn:
    """The last turn of a conversation, whose text is to be found after its prompt."""

    prompt: str
    history: list[dict[str, Any]]
    """The messages before it, as the template gets them."""
    message: dict[str, Any]
    tools: Any

    @property
    def content(self) -> str:
        return str(self.message["content"])

    @property
    def thinking(self) -> str:
        return str(self.message.get("reasoning_content", ""))

    @property
    def has_calls(self) -> bool:
        return bool(self.message.get("tool_calls"))


class Renderer:
    """A chat template, with the way in which a student's thinking is written."""

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        thinking: str = "template",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`thinking`: written as the template does (`template`), as a `<think>` block (`text`), or not at
        all (`drop`). `options`: variables for the template, such as enable_thinking.
        """
        self.thinking = thinking
        variables = NO_THINKING if thinking == "drop" else {}
        self.template = ChatTemplate(tokenizer, {**variables, **(options or {})})
        self.tokenizer = tokenizer
        self.literal = Literal(tokenizer, self.template.written_ids)

    def segments(self, dialogue: Dialogue) -> list[Segment]:
        """The rendered conversation, cut into context and assistant turns. The last turn has no end-of-turn
        token.
        """
        messages = [self._without_stored_end(message) for message in dialogue.messages]
        shielded = Dialogue(self.literal.shield(messages), self.literal.shield(dialogue.tools))
        if shielded.is_single and not uses_tools(shielded):
            return self._cut(shielded)
        errors = []
        for form in forms(shielded):
            try:
                return self._complete(form)
            except checks.CannotWriteError as error:
                errors.append(error)
        raise errors[0]  # the form that the conversation has by itself

    def _complete(self, dialogue: Dialogue) -> list[Segment]:
        """`_cut`, if the template leaves nothing out."""
        segments = self._cut(dialogue)
        turns = [segment.text for segment in segments if segment.loss]
        conversation = "".join(segment.text for segment in segments)
        keeps_thinking = self.thinking != "drop"
        part = left_out(dialogue, turns, conversation, keeps_thinking, self.template.written_tools)
        if part is not None:
            checks.refuse_left_out(self.tokenizer, part)
        return segments

    def _cut(self, dialogue: Dialogue) -> list[Segment]:
        if not dialogue.is_single:
            return self._turns(dialogue)
        *before, last = dialogue.messages
        history = [self._written(message) for message in before]
        prompt = self.template.prompt(history, dialogue.tools)
        turn = LastTurn(prompt, history, _as_templates_expect(self._last_message(last)), dialogue.tools)
        return [Segment(prompt), self._turn(self._last_turn(turn), last)]

    def _turn(self, text: str, message: Message) -> Segment:
        """An assistant turn with the weight of its message, and where its thinking ends."""
        weight = message.get("weight")
        end = 0 if self.thinking == "drop" else end_of_thinking(text, message)
        return Segment(text, 1.0 if weight is None else float(weight), len(unshield(text[:end])))

    # The last turn: everything before it is its prompt.

    def _last_message(self, message: Message) -> Message:
        """The last message, with its thinking where the setting and the template want it."""
        template = self.template
        has_place = template.knows_thinking or template.opens_thinking
        if self.thinking == "drop":
            message = _without_thinking(message)
        elif self.thinking == "text" or not has_place:
            message = _with_thinking_as_text(message)
        # After such a prompt, a `<think>` block in the text would be a second one.
        if template.opens_thinking or (template.closes_thinking and self.thinking == "template"):
            thinking, content = split_thinking(message)
            message = {**message, "content": content, "reasoning_content": thinking}
        return message

    def _last_turn(self, turn: LastTurn) -> str:
        """The text of the last turn, by the first way that keeps its thinking."""
        for way in (self._verbatim, self._rendered, self._alone, self._after_open_thinking):
            text = way(turn)
            if text is not None and turn.thinking.strip() in text:
                return text
        raise checks.unwritable_turn(self.tokenizer, turn.thinking)

    def _verbatim(self, turn: LastTurn) -> str | None:
        """The text itself. No rendering is needed, so this is also the fastest way."""
        is_text = not turn.thinking and not turn.has_calls
        return turn.content if self.template.is_verbatim and is_text else None

    def _rendered(self, turn: LastTurn) -> str | None:
        """The text after the prompt in the answered conversation. None if the answer changes the prompt."""
        conversation = self.template.render([*turn.history, turn.message], turn.tools)
        if not conversation.startswith(turn.prompt):
            return None
        return self.template.without_end(conversation[len(turn.prompt) :])

    def _alone(self, turn: LastTurn) -> str | None:
        """The turn after a question of its own, for templates that rewrite earlier turns once they are
        answered (gpt-oss): the prompt is then what the model saw. None if the prompts do not end in the
        same way.
        """
        user = {"role": "user", "content": QUESTION}
        opening = self.template.render([user], turn.tools, add_generation_prompt=True)
        conversation = self.template.render([user, turn.message], turn.tools)
        generation_prompt = opening[opening.rindex(QUESTION) + len(QUESTION) :]
        if not turn.prompt.endswith(generation_prompt) or not conversation.startswith(opening):
            return None
        return self.template.without_end(conversation[len(opening) :])

    def _after_open_thinking(self, turn: LastTurn) -> str | None:
        """Thinking, closing tag and answer, for templates whose prompt opens the thinking and which drop it
        from an answered turn (DeepSeek-R1-Distill).
        """
        if not self.template.opens_thinking:
            return None
        answer = self._answer_with_calls(turn) if turn.has_calls else f"\n\n{turn.content}"
        gap = "" if turn.prompt.endswith("\n") else "\n"
        return None if answer is None else f"{gap}{turn.thinking}\n{CLOSE}{answer}"

    def _answer_with_calls(self, turn: LastTurn) -> str | None:
        """The answered turn after its thinking, with its calls as the template writes them. None if the turn
        is not found.
        """
        conversation = self.template.render([*turn.history, turn.message], turn.tools)
        before = turn.prompt.rstrip().removesuffix(OPEN)
        if not conversation.startswith(before):
            return None
        text = self.template.without_end(conversation[len(before) :])
        return text.partition(CLOSE)[2] if text.lstrip().startswith(OPEN) else f"\n\n{text}"

    # Several turns with loss.

    def _turns(self, dialogue: Dialogue) -> list[Segment]:
        """Every assistant turn of one rendering of the whole conversation."""
        messages = [self._written(message) for message in dialogue.messages]
        conversation = self.template.render(messages, dialogue.tools)
        segments = []
        done = 0
        for index in dialogue.turns:
            prompt = self.template.prompt(messages[:index], dialogue.tools)
            checks.require_stable_turns(self.tokenizer, conversation, prompt, index + 1, len(messages))
            start = len(prompt)
            end = self._end_of_turn(conversation, start, messages, index, dialogue.tools)
            segments.append(Segment(conversation[done:start]))
            segments.append(self._turn(conversation[start:end], dialogue.messages[index]))
            done = end
        return segments

    def _end_of_turn(
        self, conversation: str, start: int, messages: list[dict[str, Any]], index: int, tools: Any
    ) -> int:
        """The end of the turn that starts at `start`, including its end token except in the last message."""
        if index == len(messages) - 1:
            return start + len(self.template.without_end(conversation[start:]))
        # The next message starts before the place where a change of its text changes the rendering.
        following = {**messages[index + 1], "content": MARK}
        changed = self.template.render([*messages[: index + 1], following, *messages[index + 2 :]], tools)
        if conversation == changed:
            checks.refuse_left_out_turn(self.tokenizer, index + 2, following)
        limit = _first_difference(conversation, changed)
        stop = -1
        for end in self.template.ends:
            position = conversation.rfind(end, start, limit)
            if position >= 0:
                stop = max(stop, position + len(end))
        if stop < 0:
            checks.refuse_open_turn(self.tokenizer, index + 1)
        return stop

    # Messages.

    def _written(self, message: Message) -> dict[str, Any]:
        """A message of the history, with its thinking as the setting says."""
        template = self.template
        in_its_place = template.writes_thinking and (
            self.thinking == "template" or (self.thinking == "text" and template.opens_thinking)
        )
        if message["role"] != "assistant" or in_its_place:
            return _as_templates_expect(message)
        if self.thinking == "drop":
            return _as_templates_expect(_without_thinking(message))
        return _as_templates_expect(_with_thinking_as_text(message))

    def _without_stored_end(self, message: Message) -> Message:
        """The message without an end of turn that was stored with an assistant's text: there must not be
        two.
        """
        content = message.get("content")
        if message["role"] != "assistant" or not isinstance(content, str):
            return message
        end = self.template.ends[0]
        text = content.rstrip()
        if not text.endswith(end):
            return message
        # Some data sets end a text more than once.
        while text.endswith(end):
            text = text.removesuffix(end)
        return {**message, "content": text}


def _without_thinking(message: Message) -> Message:
    return {**message, "content": split_thinking(message)[1], "reasoning_content": None}


def _with_thinking_as_text(message: Message) -> Message:
    return {**message, "content": as_text(message), "reasoning_content": None}


def _as_templates_expect(message: Message) -> dict[str, Any]:
    """The message with its thinking under every name that templates use, without keys that have no value."""
    values: dict[str, Any] = {"content": ""}
    for key, value in message.items():
        if key != "weight" and value is not None:
            values[key] = value
    thinking = values.pop("reasoning_content", None)
    if thinking:
        values |= dict.fromkeys(THINKING_KEYS, thinking)
    return values


def _first_difference(text: str, other: str) -> int:
    """The first index at which two texts differ; the length of `text` if they agree."""
    for index, (character, another) in enumerate(zip(text, other, strict=False)):
        if character != another:
            return index
    return len(text)
