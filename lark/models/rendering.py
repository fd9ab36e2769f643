"""Render conversations with a student's chat template, and find the assistant turns in the rendered text.

What a template writes is found by rendering, never by knowing the template:
- the prompt P of a turn is the rendering of the messages before it, with the generation prompt, as evaluation sends it;
- the rendering of the whole conversation must start with P, and what follows up to the token that ends the turn is the turn.

Templates treat thinking in different ways. Some write `reasoning_content` themselves (Qwen3, GLM, gpt-oss).
Some open `<think>` in the generation prompt and drop the thinking of an answered turn
(DeepSeek-R1-Distill): their response is the thinking, the closing tag and the answer. Others know nothing
of thinking: it is written as text.
"""

import contextlib
import datetime
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lark.errors import LarkError, first_line
from lark.models.dialogue import CLOSE, OPEN, Dialogue, Message, as_text, split_thinking
from lark.models.literal import MARK, Literal
from lark.models.sandbox import limited
from lark.models.tool_text import contains, forms, left_out, uses_tools, written_by

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

TODAY = datetime.datetime(2024, 7, 26, tzinfo=datetime.UTC)
"""The date for templates that ask for one, so that a prompt never depends on the day: Llama's own default."""
LONGEST = 1 << 26
"""Limit for the characters that a template may write."""
LONGEST_TEMPLATE = 1 << 20
"""Limit for the characters of a template."""
NO_THINKING = {"enable_thinking": False, "thinking": False}
"""What templates that can be asked not to think call it (Qwen3, GLM; DeepSeek-V3.1)."""
THINKING_KEYS = ("reasoning_content", "thinking", "reasoning")
"""What templates call the reasoning of a message."""
TEMPLATES = Path(__file__).parent / "templates"
"""Our own templates, for base models that have none. None of them injects a date."""
END_TOKENS = {"chatml": "<|im_end|>", "llama3": "<|eot_id|>", "plain": ""}
"""The token with which each of them ends a turn. `plain` uses the tokenizer's end-of-text token."""
ADDRESS = re.compile(r"\S+ at 0x[0-9a-f]+>")
"""An object that a template writes instead of its value."""
QUESTION, ANSWER, THOUGHT = "How many?", "Two.", "One and one."


class CannotWriteError(LarkError):
    """A chat template fails on a conversation, or leaves out a part of it."""


def render(tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message], **options: Any) -> str:
    """Render messages with the tokenizer's chat template. Errors of the template are reported as such."""
    if isinstance(tokenizer.chat_template, str) and len(tokenizer.chat_template) > LONGEST_TEMPLATE:
        raise LarkError(
            f"The chat template of {tokenizer.name_or_path} is longer than {LONGEST_TEMPLATE:,} characters."
        )
    try:
        with limited(f"The chat template of {tokenizer.name_or_path}"):
            conversation: Any = list(messages)
            text = tokenizer.apply_chat_template(
                conversation, tokenize=False, strftime_now=TODAY.strftime, **options
            )
        assert isinstance(text, str)
        if len(text) > LONGEST:
            raise LarkError(
                f"The chat template of {tokenizer.name_or_path} writes {len(text):,} characters; at most"
                f" {LONGEST:,} are allowed."
            )
        text.encode()
    except LarkError:
        raise
    except Exception as error:  # a template computes, so it can raise anything, or write half of a character
        raise CannotWriteError(
            f"The chat template of {tokenizer.name_or_path} fails ({first_line(error)}). {remedy(tokenizer)}"
        ) from error
    return text


@dataclass(frozen=True)
class Segment:
    """A part of a rendered conversation. Field texts are shielded (lark/models/literal.py)."""

    text: str
    loss: bool


@dataclass
class Renderer:
    """A chat template, tested once with short conversations."""

    tokenizer: "PreTrainedTokenizerBase"
    thinking: str = "template"
    """How thinking is written: as the template does (`template`), as a `<think>` block (`text`), or not at
    all (`drop`).
    """
    options: Mapping[str, Any] = field(default_factory=dict)
    """Variables for the template, such as enable_thinking."""

    def __post_init__(self) -> None:
        self._last: tuple[Any, str] | None = None
        self._lacks_system = False
        self.variables = {**(NO_THINKING if self.thinking == "drop" else {}), **self.options}
        user, answer = {"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}
        thought = {**answer, **dict.fromkeys(THINKING_KEYS, THOUGHT)}
        prompt = self.prompt([user])
        plain = self._render([user, answer])
        if found := ADDRESS.search(prompt + plain):
            self._refuse(f"writes an address in memory, which differs between processes ({found[0]})")
        self.is_verbatim = plain.startswith(prompt + ANSWER)
        """Whether the template writes an answer as it is, directly after the prompt."""
        self.opens_thinking = prompt.rstrip().endswith(OPEN)
        """Whether the prompt already opens a block of thinking."""
        self.closes_thinking = prompt.rstrip().endswith(CLOSE)
        """Whether the prompt opens and closes it, so that the student does not think."""
        reasoned = self._render([user, thought])
        self.knows_thinking = THOUGHT in reasoned
        self.writes_thinking = reasoned.startswith(prompt) and THOUGHT in reasoned[len(prompt) :]
        """Whether the template has a place for thinking after its prompt."""
        if ANSWER not in plain:
            self._refuse("does not write the text of an assistant message")
        if not (self.is_verbatim or self.opens_thinking or plain.startswith(prompt)):
            self._refuse(
                "changes the prompt once it is answered, so the scored prompt would differ from the one at"
                " evaluation"
            )
        self.end_ids = self._find_ends(user, answer)
        """Tokens that end an assistant's turn; the first ends the last turn of a conversation."""
        self.ends = tuple(str(self.tokenizer.convert_ids_to_tokens(id)) for id in self.end_ids)
        self.written_ids = control_tokens(self.tokenizer, self.variables) | set(self.end_ids)
        """Added tokens that the template writes around the turns."""
        self.literal = Literal(self.tokenizer, self.written_ids)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
        """The text that is sent to the model before it answers. The last one is kept: candidates share
        their prompt.
        """
        key = (list(messages), tools)
        if self._last is None or self._last[0] != key:
            text = self._render(messages, tools, add_generation_prompt=True)
            self._check_context(messages, text)
            self._last = (key, text)
        return self._last[1]

    def _check_context(self, messages: Sequence[Message], prompt: str) -> None:
        """Refuse a prompt without the text of a user turn: the student would answer something else. A
        system prompt that the template leaves out, as some do, is reported once.
        """
        for message in messages:
            content = message.get("content")
            if (
                message["role"] not in ("system", "user")
                or not isinstance(content, str)
                or contains(prompt, content)
            ):
                continue
            if message["role"] == "user":
                self._refuse(f"does not write the text of a user message as it is ({content.strip()[:40]!r})")
            if not self._lacks_system:
                log.warning(
                    "The chat template of %s leaves out the system prompt.", self.tokenizer.name_or_path
                )
            self._lacks_system = True

    @cached_property
    def generation_prompt(self) -> str:
        """What the template appends to a conversation to ask for an answer; empty if that is nothing, or
        cannot be told.
        """
        user = [{"role": "user", "content": QUESTION}]
        before, prompt = self._render(user), self.prompt(user)
        return prompt[len(before) :] if prompt.startswith(before) else ""

    def segments(self, dialogue: Dialogue) -> list[Segment]:
        """The rendered conversation, cut into context and assistant turns. The last turn has no end-of-turn
        token.
        """
        shielded = Dialogue(
            self.literal.shield(list(map(self._without_end, dialogue.messages))),
            self.literal.shield(dialogue.tools),
        )
        if shielded.is_single and not uses_tools(shielded):
            return self._cut(shielded)
        errors = []
        for form in forms(shielded):
            try:
                found = self._cut(form)
            except CannotWriteError as error:
                errors.append(error)
                continue
            turns = [segment.text for segment in found if segment.loss]
            whole = "".join(segment.text for segment in found)
            lacks = left_out(form, turns, whole, self.thinking != "drop", self._written_tools)
            if lacks is None:
                return found
            errors.append(self._leaves_out(lacks))
        raise errors[0]

    @cached_property
    def _written_tools(self) -> frozenset[str]:
        return written_by(self._render)

    def _leaves_out(self, what: str) -> "CannotWriteError":
        return CannotWriteError(
            f"The chat template of {self.tokenizer.name_or_path} leaves out {what}. Use pool.turns=last,"
            " which keeps earlier turns as context, or a template that writes it"
            " (student.chat_template=<file>)."
        )

    def _cut(self, shielded: Dialogue) -> list[Segment]:
        """`segments` of a conversation that is shielded."""
        *before, last = shielded.messages
        if shielded.is_single:
            prompt = self.prompt([self._written(m) for m in before], shielded.tools)
            return [
                Segment(prompt, loss=False),
                Segment(self._last_turn(prompt, before, last, shielded.tools), loss=True),
            ]
        return self._turns(shielded)

    def _last_turn(self, prompt: str, before: Sequence[Message], last: Message, tools: Any) -> str:
        """The text of the last assistant turn, which follows `prompt`."""
        thinking, content = last.get("reasoning_content"), last.get("content") or ""
        calls = bool(last.get("tool_calls"))
        if self.thinking == "drop":
            thinking, content = None, split_thinking(last)[1]
        elif thinking and (self.thinking == "text" or not (self.knows_thinking or self.opens_thinking)):
            thinking, content = None, as_text(last)
        if self.opens_thinking or (self.closes_thinking and self.thinking == "template"):
            thinking, content = split_thinking({"content": content, "reasoning_content": thinking})
        if self.is_verbatim and not thinking and not calls:
            return content
        message = self._message({**last, "content": content, "reasoning_content": thinking})
        whole = self._render([*(self._written(m) for m in before), message], tools)
        if whole.startswith(prompt) and (not thinking or thinking.strip() in whole[len(prompt) :]):
            return self._without_last_end(whole[len(prompt) :])
        alone = self._alone(prompt, message, tools)
        if alone is not None and (not thinking or thinking.strip() in alone):
            return alone
        after = self._after_thinking(prompt, whole) if calls else f"\n\n{content}"
        if self.opens_thinking and after is not None:
            gap = "" if prompt.endswith("\n") else "\n"
            return f"{gap}{thinking or ''}\n{CLOSE}{after}"
        if thinking:
            raise LarkError(
                f"The chat template of {self.tokenizer.name_or_path} closes the thinking in its prompt, so a"
                " trajectory's thinking has no place. Ask the template to think"
                " (student.template_options={enable_thinking: true}), or leave the thinking out"
                " (student.thinking=drop)."
            )
        raise LarkError(
            f"The chat template of {self.tokenizer.name_or_path} changes the conversation before a turn once"
            " the turn is answered, so the scored prompt would differ from the one at evaluation."
            f" {remedy(self.tokenizer)}"
        )

    def _after_thinking(self, prompt: str, whole: str) -> str | None:
        """What an answered turn has after its thinking, in a template whose prompt opens it. None if the
        turn is not found.
        """
        before = prompt.rstrip().removesuffix(OPEN)
        if not whole.startswith(before):
            return None
        turn = self._without_last_end(whole[len(before) :])
        return turn.partition(CLOSE)[2] if turn.lstrip().startswith(OPEN) else f"\n\n{turn}"

    def _alone(self, prompt: str, message: Message, tools: Any) -> str | None:
        """The last turn after a question of its own, for templates that rewrite earlier turns once they are
        answered (gpt-oss): the prompt is then what the model saw. None if the prompts do not end in the
        same way.
        """
        user = {"role": "user", "content": QUESTION}
        opening = self._render([user], tools, add_generation_prompt=True)
        whole = self._render([user, message], tools)
        same_end = prompt.endswith(opening[opening.rindex(QUESTION) + len(QUESTION) :])
        return (
            self._without_last_end(whole[len(opening) :]) if same_end and whole.startswith(opening) else None
        )

    def _turns(self, dialogue: Dialogue) -> list[Segment]:
        """Every assistant turn of one rendering of the whole conversation."""
        messages = [self._written(m) for m in dialogue.messages]
        whole = self._render(messages, dialogue.tools)
        segments, done = [], 0
        for index in dialogue.turns:
            prompt = self.prompt(messages[:index], dialogue.tools)
            if not whole.startswith(prompt):
                raise LarkError(
                    f"The chat template of {self.tokenizer.name_or_path} rewrites earlier turns (turn"
                    f" {index + 1} of {len(messages)}), so they cannot be scored in one conversation. Use"
                    " pool.turns=last, or a template that keeps them (student.chat_template=<file>)."
                )
            end = self._end_of(whole, len(prompt), messages, index, dialogue.tools)
            segments += [
                Segment(whole[done : len(prompt)], loss=False),
                Segment(whole[len(prompt) : end], loss=True),
            ]
            done = end
        return segments

    def _end_of(self, whole: str, start: int, messages: list[dict[str, Any]], index: int, tools: Any) -> int:
        """Where the turn that starts at `start` ends, including its end token except in the last message."""
        if index == len(messages) - 1:
            return start + len(self._without_last_end(whole[start:]))
        following = {**messages[index + 1], "content": MARK}
        other = self._render([*messages[: index + 1], following, *messages[index + 2 :]], tools)
        if whole == other:
            raise CannotWriteError(
                f"The chat template of {self.tokenizer.name_or_path} leaves out turn {index + 2}"
                f" ({following['role']}). Set student.chat_template to a Jinja file that writes it."
            )
        limit = next((i for i, (a, b) in enumerate(zip(whole, other, strict=False)) if a != b), len(whole))
        found = [(at + len(end)) for end in self.ends if (at := whole.rfind(end, start, limit)) >= 0]
        if not found:
            raise LarkError(
                f"The chat template of {self.tokenizer.name_or_path} does not end turn {index + 1} with an"
                " end-of-turn token. Use pool.turns=last."
            )
        return max(found)

    def _written(self, message: Message) -> dict[str, Any]:
        """A message of the history, with its thinking as the setting says."""
        in_its_place = self.writes_thinking and (
            self.thinking == "template" or (self.thinking == "text" and self.opens_thinking)
        )
        if message["role"] != "assistant" or in_its_place:
            return self._message(message)
        if self.thinking == "drop":
            return self._message(
                {**message, "content": split_thinking(message)[1], "reasoning_content": None}
            )
        return self._message({**message, "content": as_text(message), "reasoning_content": None})

    def _message(self, message: Message) -> dict[str, Any]:
        """A message as templates expect it: thinking under every name that they use, no keys without value."""
        values = {key: value for key, value in message.items() if key != "weight" and value is not None}
        thinking = values.pop("reasoning_content", None)
        return {"content": "", **values, **(dict.fromkeys(THINKING_KEYS, thinking) if thinking else {})}

    def _without_end(self, message: Message) -> Message:
        """The message without an end of turn that was stored with an assistant's text: there must not be
        two.
        """
        content = message.get("content")
        if message["role"] != "assistant" or not isinstance(content, str):
            return message
        text, ends = content.rstrip(), self.ends[:1]
        while text.endswith(ends):
            content = text = text.removesuffix(ends[0])
        return {**message, "content": content}

    def _without_last_end(self, text: str) -> str:
        """The text of the last turn without its end token and the white space after that."""
        left, found = text.rstrip(), text
        while end := next(
            (end for end in (*self.ends, self.tokenizer.eos_token) if end and left.endswith(end)), None
        ):
            left = left.removesuffix(end)
            found = (
                left if end in self.ends else found
            )  # Phi writes the end of text after the end of the last turn
            left = left.rstrip()
        return found

    def _find_ends(self, user: Message, answer: Message) -> tuple[int, ...]:
        """Tokens that close an assistant's turn, found by rendering one at the end and one followed by a
        user turn.
        """
        found, special = [], added_tokens(self.tokenizer)
        for messages in ([user, answer], [user, answer, user]):
            with contextlib.suppress(LarkError):
                text = self._render(messages)
                tail = Literal(self.tokenizer).tokenise(text[text.rindex(ANSWER) + len(ANSWER) :])
                found += [token for token in tail if token in special][:1]
        if not found:
            raise LarkError(
                f"The chat template of {self.tokenizer.name_or_path} ends an answer with no special token, so"
                f" generation would never stop. {remedy(self.tokenizer)}"
            )
        return tuple(dict.fromkeys(found))

    def _render(self, messages: Sequence[Message], tools: Any = None, **options: Any) -> str:
        given = {**({"tools": tools} if tools else {}), **self.variables, **options}
        return render(self.tokenizer, messages, **given)

    def _refuse(self, why: str) -> None:
        raise LarkError(f"The chat template of {self.tokenizer.name_or_path} {why}. {remedy(self.tokenizer)}")


def added_tokens(tokenizer: "PreTrainedTokenizerBase") -> set[int]:
    """Tokens that are not made from text: special tokens and others that were added to the vocabulary."""
    return set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)


def control_tokens(
    tokenizer: "PreTrainedTokenizerBase", variables: Mapping[str, Any] | None = None
) -> set[int]:
    """The added tokens that the template writes around the turns of a conversation."""
    system, user, answer = ({"role": role, "content": "x"} for role in ("system", "user", "assistant"))
    found: set[int] = set()
    for messages in ([user, answer, user], [system, user], [user]):
        with contextlib.suppress(LarkError):  # some templates refuse a system turn
            text = render(
                tokenizer, messages, **{**(variables or {}), "add_generation_prompt": messages[-1] is user}
            )
            found |= set(Literal(tokenizer).tokenise(text))
    return found & added_tokens(tokenizer)


def remedy(tokenizer: "PreTrainedTokenizerBase") -> str:
    """What to do about a template that does not work: the names of ours that fit this tokenizer."""
    known = tokenizer.get_vocab()
    fitting = [name for name, end in END_TOKENS.items() if (end in known if end else tokenizer.eos_token)]
    names = ", ".join(f"`{name}`" for name in fitting)
    return f"Set student.chat_template to {names + ' or ' if names else ''}a path to a Jinja file."
