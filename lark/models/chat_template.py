"""A student's chat template: how it renders messages, and its habits, found by rendering short conversations.

Templates treat thinking in different ways. Some write `reasoning_content` themselves (Qwen3, GLM, gpt-oss).
Some open `<think>` in the generation prompt and drop the thinking of an answered turn
(DeepSeek-R1-Distill): their response is the thinking, the closing tag and the answer. Others know nothing
of thinking: it is written as text.
"""

import contextlib
import datetime
import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lark.errors import LarkError, first_line
from lark.models import template_checks as checks
from lark.models.dialogue import CLOSE, OPEN, Message
from lark.models.literal import Literal
from lark.models.sandbox import limited
from lark.models.tool_text import contains, written_by

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

TODAY = datetime.datetime(2024, 7, 26, tzinfo=datetime.UTC)
"""The date for templates that ask for one, so that a prompt never depends on the day: Llama's own default."""
THINKING_KEYS = ("reasoning_content", "thinking", "reasoning")
"""Names of a message's reasoning in templates."""
QUESTION = "How many?"
ANSWER = "Two."
THOUGHT = "One and one."


def render(tokenizer: "PreTrainedTokenizerBase", messages: Sequence[Message], **options: Any) -> str:
    """Render messages with the tokenizer's chat template. Errors of the template are reported as such."""
    conversation: Any = list(messages)
    try:
        with limited(checks.named(tokenizer)):
            text: Any = tokenizer.apply_chat_template(
                conversation, tokenize=False, strftime_now=TODAY.strftime, **options
            )
        text.encode()  # fails on half of a character, which no tokenizer accepts
    except LarkError:
        raise
    except Exception as error:  # a template computes, so it can raise anything
        raise checks.CannotWriteError(
            f"{checks.named(tokenizer)} fails ({first_line(error)}). {checks.remedy(tokenizer)}"
        ) from error
    return str(text)


def added_tokens(tokenizer: "PreTrainedTokenizerBase") -> set[int]:
    """Tokens that are not made from text: special tokens and others that were added to the vocabulary."""
    return set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)


def control_tokens(
    tokenizer: "PreTrainedTokenizerBase", variables: Mapping[str, Any] | None = None
) -> set[int]:
    """The added tokens that the template writes around the turns of a conversation."""
    system, user, answer = ({"role": role, "content": "x"} for role in ("system", "user", "assistant"))
    ids: set[int] = set()
    # Some tokens are written only after an answer, or only before a system turn.
    for messages in ([user, answer, user], [system, user], [user]):
        with contextlib.suppress(LarkError):  # some templates refuse a system turn
            text = render(tokenizer, messages, **{**(variables or {}), "add_generation_prompt": True})
            ids |= set(Literal(tokenizer).tokenise(text))
    return ids & added_tokens(tokenizer)


class ChatTemplate:
    """A tokenizer's chat template, tested once with short conversations."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", variables: Mapping[str, Any]) -> None:
        """`variables`: variables for the template, such as enable_thinking."""
        self.tokenizer = tokenizer
        self.variables = variables
        self._latest: tuple[Any, str] | None = None
        self._lacks_system = False

        user = {"role": "user", "content": QUESTION}
        answer = {"role": "assistant", "content": ANSWER}
        prompt = self.prompt([user])
        answered = self.render([user, answer])
        checks.refuse_address(tokenizer, prompt + answered)
        if ANSWER not in answered:
            checks.refuse(tokenizer, "does not write the text of an assistant message")
        self.is_verbatim = answered.startswith(prompt + ANSWER)
        """Whether the template writes an answer as it is, directly after the prompt."""
        self.opens_thinking = prompt.rstrip().endswith(OPEN)
        """Whether the prompt already opens a block of thinking."""
        self.closes_thinking = prompt.rstrip().endswith(CLOSE)
        """Whether the prompt opens and closes it, so that the student does not think."""
        if not self.opens_thinking and not answered.startswith(prompt):
            checks.refuse(
                tokenizer,
                "changes the prompt once it is answered, so the scored prompt would differ from the one at"
                " evaluation",
            )

        reasoned = self.render([user, {**answer, **dict.fromkeys(THINKING_KEYS, THOUGHT)}])
        self.knows_thinking = THOUGHT in reasoned
        self.writes_thinking = reasoned.startswith(prompt) and THOUGHT in reasoned[len(prompt) :]
        """Whether the template has a place for thinking after its prompt."""

        self.end_ids = self._end_ids(user, answer)
        """Tokens that end an assistant's turn; the first ends the last turn of a conversation."""
        self.ends = tuple(str(tokenizer.convert_ids_to_tokens(id)) for id in self.end_ids)
        self.written_ids = control_tokens(tokenizer, variables) | set(self.end_ids)
        """Added tokens that the template writes around the turns."""

    def render(self, messages: Sequence[Message], tools: Any = None, **options: Any) -> str:
        if tools:
            options["tools"] = tools
        return render(self.tokenizer, messages, **{**self.variables, **options})

    def prompt(self, messages: Sequence[Message], tools: Any = None) -> str:
        """The text that is sent to the model before it answers."""
        key = (list(messages), tools)
        # The latest prompt is kept, because candidates of one question share it.
        if self._latest is None or self._latest[0] != key:
            text = self.render(messages, tools, add_generation_prompt=True)
            self._check_context(messages, text)
            self._latest = (key, text)
        return self._latest[1]

    def _check_context(self, messages: Sequence[Message], prompt: str) -> None:
        """Refuse a prompt without the text of a user turn: the student would answer something else. A
        system prompt that the template leaves out, as some do, is reported once.
        """
        for message in messages:
            content = message.get("content")
            is_context = message["role"] in ("system", "user") and isinstance(content, str)
            if not is_context or contains(prompt, str(content)):
                continue
            if message["role"] == "user":
                start = repr(str(content).strip()[:40])
                checks.refuse(self.tokenizer, f"does not write the text of a user message as it is ({start})")
            if not self._lacks_system:
                log.warning("%s leaves out the system prompt.", checks.named(self.tokenizer))
            self._lacks_system = True

    @cached_property
    def generation_prompt(self) -> str:
        """The generation prompt. Empty if the template has none or it cannot be isolated."""
        user = [{"role": "user", "content": QUESTION}]
        question = self.render(user)
        prompt = self.prompt(user)
        return prompt[len(question) :] if prompt.startswith(question) else ""

    @cached_property
    def written_tools(self) -> frozenset[str]:
        """Which of tools and results the template writes (tool_text.py)."""
        return written_by(self.render)

    def without_end(self, text: str) -> str:
        """The text of the last turn without its end token and the white space after that."""
        ends = tuple(end for end in (*self.ends, self.tokenizer.eos_token) if end)
        turn = text
        rest = text.rstrip()
        while rest.endswith(ends):
            end = next(end for end in ends if rest.endswith(end))
            rest = rest.removesuffix(end)
            # Phi writes the end of text after the end of the last turn. Alone, it is not the end of a turn.
            if end in self.ends:
                turn = rest
            rest = rest.rstrip()
        return turn

    def _end_ids(self, user: Message, answer: Message) -> tuple[int, ...]:
        """The tokens that end an assistant's turn: at the end of a conversation, and before a user's turn.
        They differ in some templates.
        """
        special = added_tokens(self.tokenizer)
        ids: list[int] = []
        for messages in ([user, answer], [user, answer, user]):
            with contextlib.suppress(LarkError):
                text = self.render(messages)
                tail = text[text.rindex(ANSWER) + len(ANSWER) :]
                ids += [id for id in Literal(self.tokenizer).tokenise(tail) if id in special][:1]
        if not ids:
            problem = "ends an answer with no special token, so generation would never stop"
            checks.refuse(self.tokenizer, problem)
        return tuple(dict.fromkeys(ids))
