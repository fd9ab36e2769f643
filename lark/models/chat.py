"""The student's chat format: turns conversations into token ids, for scoring, training and evaluation
alike.

The prompt that is scored is token for token the prompt that is trained on and the prompt that evaluation
sends (paper, App. C.3, "Prompt consistency"). Context and assistant turns are tokenised separately and
joined; the end-of-turn token belongs to the turn. How a conversation is rendered is in rendering.py; text
that looks like a control token stays text (literal.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lark.errors import LarkError, first_line
from lark.models.dialogue import INSTRUCTION, Dialogue, dialogue_of, opening
from lark.models.literal import unshield
from lark.models.rendering import TEMPLATES, Renderer, Segment, remedy
from lark.models.tokenise import joined

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from lark.config import Student


@dataclass(frozen=True)
class Encoded:
    """One trajectory as the student sees it: `ids[:prompt_length]` is the prompt, the rest is the response.

    A trajectory of several turns has more context after the prompt (`context`), which is not part of the
    response.
    """

    ids: Sequence[int]
    """Four bytes per token, because a training set of 100,000 long trajectories is held in memory as a
    whole.
    """
    prompt_length: int
    truncated: bool
    context: tuple[tuple[int, int], ...] = ()
    """Start and end of user and tool turns that follow the first assistant turn."""
    offsets: list[tuple[int, int]] | None = None
    """Start and end of each response token in `text`, if requested; (0, 0) for the end of the turn."""
    text: str | None = None
    """The response's text, if offsets are requested."""

    @property
    def n_response(self) -> int:
        return len(self.ids) - self.prompt_length - sum(stop - start for start, stop in self.context)

    @property
    def turns(self) -> list[tuple[int, int]]:
        """Start and end of the assistant turns: the tokens that are scored and trained on."""
        edges = [self.prompt_length, *(edge for span in self.context for edge in span), len(self.ids)]
        return [(start, stop) for start, stop in list(pairwise(edges))[::2] if start < stop]

    @property
    def response(self) -> list[int]:
        """Ids of the response tokens."""
        return [token for start, stop in self.turns for token in self.ids[start:stop]]


@dataclass(frozen=True)
class ChatOptions:
    """How a student is prompted (settings of the student; see lark/config/student.py)."""

    instruction: str | None = INSTRUCTION
    thinking: str = "template"
    template_options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, student: "Student") -> "ChatOptions":
        return cls(student.instruction, student.thinking, student.template_options)


class ChatFormat:
    """A tokenizer with its chat template, checked once: responses can be joined to prompts without changing
    either.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        template: str | None = None,
        stop_ids: Iterable[int] = (),
        options: ChatOptions | None = None,
        last_only: bool = False,
    ) -> None:
        """`template` is None (the tokenizer's own), the name of one of ours, or a path to a Jinja file.

        `stop_ids`: tokens that end an answer, in addition to those of the template and the tokenizer.
        `last_only`: only the last assistant turn of a trajectory is scored (`pool.turns=last`).
        """
        self.tokenizer, self.last_only = tokenizer, last_only
        self.options = ChatOptions() if options is None else options
        self.further_stops = frozenset(stop_ids)
        if template is not None:
            tokenizer.chat_template = _read_template(template)
        if not tokenizer.chat_template:
            raise LarkError(
                f"The tokenizer of {tokenizer.name_or_path} has no chat template. {remedy(tokenizer)}"
            )
        self.renderer = Renderer(tokenizer, self.options.thinking, self.options.template_options)
        self.literal = self.renderer.literal
        self.end_of_turn = self.renderer.end_ids[0]

    def prompt_text(self, question: str, system: str | None = None) -> str:
        """The text that is sent to the model before it answers."""
        return unshield(self._prompt(question, system))

    def prompt(self, question: str, system: str | None = None) -> list[int]:
        """`prompt_text` as token ids. The template writes the beginning-of-text token itself, if there is
        one.
        """
        return self.literal.tokenise(self._prompt(question, system))

    def opening(self) -> list[int]:
        """The tokens before a response that answers nothing: the beginning of text, if the template writes
        it, and the generation prompt. Without a generation prompt, the last token of a prompt.
        """
        prompt = self.prompt("How many?")
        own = self.literal.tokenise(self.renderer.generation_prompt) or prompt[-1:]
        begins = prompt[0] == self.tokenizer.bos_token_id and own[0] != prompt[0]
        return [*prompt[: int(begins)], *own]

    def encode(self, question: str, response: str, max_length: int, system: str | None = None) -> Encoded:
        """Prompt and response as one sequence of at most `max_length` tokens, cut from the right."""
        return self.encode_many([{"question": question, "response": response, "system": system}], max_length)[
            0
        ]

    def encode_many(
        self, rows: Sequence[Mapping[str, Any]], max_length: int, offsets: bool = False
    ) -> list[Encoded]:
        """`encode` for rows of a pool, tokenised together on all threads."""
        dialogues = [dialogue_of(row, self.options.instruction, self.last_only) for row in rows]
        return self.encode_dialogues(dialogues, max_length, offsets)

    def encode_dialogues(
        self, dialogues: Sequence[Dialogue], max_length: int, offsets: bool = False
    ) -> list[Encoded]:
        """Conversations as token ids. `offsets`: also where each response token is in the response's text."""
        if offsets:
            return [self._with_offsets(dialogue, max_length) for dialogue in dialogues]
        segments = [self.renderer.segments(dialogue) for dialogue in dialogues]
        texts = list(
            dict.fromkeys(segment.text for each in segments for segment in each)
        )  # candidates share their prompt
        ids = dict(zip(texts, self.literal.tokenise_many(texts), strict=True))
        return [self._join(each, [ids[segment.text] for segment in each], max_length) for each in segments]

    @property
    def stop_ids(self) -> list[int]:
        """All tokens that end an answer: the end of the turn and the end of text (base models use another
        one, or several).
        """
        end_of_text = self.tokenizer.eos_token_id
        return sorted(
            {self.end_of_turn}
            | self.further_stops
            | ({end_of_text} if isinstance(end_of_text, int) else set())
        )

    def _prompt(self, question: str, system: str | None) -> str:
        return self.renderer.prompt(self.literal.shield(opening(question, system, self.options.instruction)))

    def _join(self, segments: Sequence[Segment], parts: Sequence[Sequence[int]], max_length: int) -> Encoded:
        """One sequence of all segments, with the end of the last turn."""
        ids = joined(parts)
        ids.append(self.end_of_turn)
        edges = [min(edge, max_length) for edge in accumulate(map(len, parts), initial=0)]
        spans = [span for span, segment in zip(pairwise(edges), segments, strict=True) if not segment.loss]
        context = tuple((start, stop) for start, stop in spans[1:] if start < stop)
        return Encoded(ids[:max_length], spans[0][1], len(ids) > max_length, context)

    def _with_offsets(self, dialogue: Dialogue, max_length: int) -> Encoded:
        if not self.tokenizer.is_fast:
            raise LarkError(
                f"The tokenizer of {self.tokenizer.name_or_path} cannot map tokens to characters, which "
                "method=local_naturalness needs: use a student with a fast tokenizer (tokenizer.json)."
            )
        segments = self.renderer.segments(dialogue)
        if len(segments) > 2:
            raise LarkError(
                "method=local_naturalness scores one response per trajectory. For several turns use"
                " pool.turns=last."
            )
        prompt, response = segments
        ids, spans = self.literal.offsets(response.text)
        whole = self._join(segments, [self.literal.tokenise(prompt.text), ids], max_length)
        return Encoded(
            whole.ids, whole.prompt_length, whole.truncated,
            offsets=[*spans, (0, 0)][: whole.n_response], text=unshield(response.text),
        )  # fmt: skip


def _read_template(template: str) -> str:
    try:
        return template_file(template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LarkError(
            f"student.chat_template={template}: cannot be read ({first_line(error)}). It must be text in"
            " UTF-8."
        ) from error


def template_file(template: str) -> Path:
    """The file that `student.chat_template` names: one of our templates, or the user's."""
    path = TEMPLATES / f"{template}.jinja"
    path = path if path.is_file() else Path(template).expanduser()
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in TEMPLATES.glob("*.jinja")))
        raise LarkError(
            f"student.chat_template={template}: no such file, and not a built-in template ({known})."
        )
    return path
