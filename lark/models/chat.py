"""The student's chat format: turns conversations into token ids, for scoring, training and evaluation
alike.

The prompt that is scored is token for token the prompt that is trained on and the prompt that evaluation
sends (paper, App. C.3, "Prompt consistency"). Context and assistant turns are tokenised separately and
joined; the end-of-turn token belongs to the turn. How a conversation is rendered is in rendering.py; text
that looks like a control token stays text (literal.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lark.errors import LarkError, first_line
from lark.models import template_checks as checks
from lark.models.dialogue import INSTRUCTION, Dialogue, dialogue_of, opening
from lark.models.literal import unshield
from lark.models.rendering import Renderer, Segment
from lark.models.tokenise import joined

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from lark.config import Student

TEMPLATES = Path(__file__).parent / "templates"
"""Our own templates, for base models that have none. None of them injects a date."""


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
    token_weights: tuple[float, ...] | None = None
    """One per response token, from the weights of messages and `Factors`. None: all are 1."""

    @property
    def n_response(self) -> int:
        return len(self.ids) - self.prompt_length - sum(stop - start for start, stop in self.context)

    @property
    def turns(self) -> list[tuple[int, int]]:
        """Start and end of the assistant turns: the tokens that are scored and trained on."""
        starts = [self.prompt_length, *(stop for _, stop in self.context)]
        stops = [*(start for start, _ in self.context), len(self.ids)]
        return [(start, stop) for start, stop in zip(starts, stops, strict=True) if start < stop]

    @property
    def response(self) -> list[int]:
        """Ids of the response tokens."""
        return [token for start, stop in self.turns for token in self.ids[start:stop]]


@dataclass(frozen=True)
class Factors:
    """Weights of the tokens of thinking, and of all others of an assistant turn. 0 makes them context."""

    thinking: float = 1.0
    answer: float = 1.0


EQUAL = Factors()


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
        self.tokenizer = tokenizer
        self.last_only = last_only
        self.options = ChatOptions() if options is None else options
        self.further_stops = frozenset(stop_ids)
        if template is not None:
            tokenizer.chat_template = _read_template(template)
        checks.require_template(tokenizer)
        self.renderer = Renderer(tokenizer, self.options.thinking, self.options.template_options)
        self.literal = self.renderer.literal
        self.end_of_turn = self.renderer.template.end_ids[0]

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
        ids = self.literal.tokenise(self.renderer.template.generation_prompt) or prompt[-1:]
        beginning = self.tokenizer.bos_token_id
        if prompt[0] == beginning and ids[0] != beginning:
            return [beginning, *ids]
        return ids

    def encode(self, question: str, response: str, max_length: int, system: str | None = None) -> Encoded:
        """Prompt and response as one sequence of at most `max_length` tokens, cut from the right."""
        row = {"question": question, "response": response, "system": system}
        return self.encode_many([row], max_length)[0]

    def encode_many(
        self, rows: Sequence[Mapping[str, Any]], max_length: int, offsets: bool = False
    ) -> list[Encoded]:
        """`encode` for rows of a pool, tokenised together on all threads."""
        dialogues = [dialogue_of(row, self.options.instruction, self.last_only) for row in rows]
        return self.encode_dialogues(dialogues, max_length, offsets)

    def encode_dialogues(
        self, dialogues: Sequence[Dialogue], max_length: int, offsets: bool = False, factors: Factors = EQUAL
    ) -> list[Encoded]:
        """Conversations as token ids. `offsets`: also where each response token is in the response's text.
        `factors`: weights of the tokens of thinking and answers in training.
        """
        if offsets:
            return [self._with_offsets(dialogue, max_length) for dialogue in dialogues]
        conversations = [self.renderer.segments(dialogue) for dialogue in dialogues]
        # Every text once, because candidates share their prompt.
        segments_of_all = chain.from_iterable(conversations)
        texts = list(dict.fromkeys(segment.text for segment in segments_of_all))
        ids_of = dict(zip(texts, self.literal.tokenise_many(texts), strict=True))
        encoded = []
        for segments in conversations:
            parts = [ids_of[segment.text] for segment in segments]
            encoded.append(self._join(segments, parts, max_length, factors))
        return encoded

    @property
    def stop_ids(self) -> list[int]:
        """All tokens that end an answer: the end of the turn and the end of text (base models use another
        one, or several).
        """
        ids = {self.end_of_turn, *self.further_stops}
        end_of_text = self.tokenizer.eos_token_id
        if isinstance(end_of_text, int):
            ids.add(end_of_text)
        return sorted(ids)

    def _prompt(self, question: str, system: str | None) -> str:
        messages = opening(question, system, self.options.instruction)
        return self.renderer.template.prompt(self.literal.shield(messages))

    def _join(
        self,
        segments: Sequence[Segment],
        parts: Sequence[Sequence[int]],
        max_length: int,
        factors: Factors = EQUAL,
    ) -> Encoded:
        """One sequence of all segments, with the end of the last turn."""
        ids = joined(parts)
        ids.append(self.end_of_turn)
        sizes, weights = self._weighted_spans(segments, [len(part) for part in parts], factors)
        # Turns after the limit become empty, and are left out below.
        edges = [min(edge, max_length) for edge in accumulate(sizes, initial=0)]
        spans = list(zip(pairwise(edges), weights, strict=True))
        prompt, *context = [span for span, weight in spans if not weight]
        within = tuple((start, stop) for start, stop in context if start < stop)
        encoded = Encoded(ids[:max_length], prompt[1], len(ids) > max_length, within)
        if all(weight in (0, 1) for weight in weights):
            return encoded
        token_weights = chain.from_iterable(
            [weight] * (stop - start) for (start, stop), weight in spans if weight
        )
        return replace(encoded, token_weights=tuple(token_weights))

    def _weighted_spans(
        self, segments: Sequence[Segment], tokens: Sequence[int], factors: Factors
    ) -> tuple[list[int], list[float]]:
        """Sizes of the parts of a sequence that have one weight each, and these weights; 0 is context."""
        sizes: list[int] = []
        weights: list[float] = []
        for segment, length in zip(segments, tokens, strict=True):
            thinking = 0
            if segment.thinking and factors.thinking != factors.answer:
                thinking = self._thinking_tokens(segment)
                sizes.append(thinking)
                weights.append(segment.weight * factors.thinking)
            sizes.append(length - thinking)
            weights.append(segment.weight * factors.answer)
        sizes[-1] += 1  # the end of the last turn
        return sizes, weights

    def _thinking_tokens(self, turn: Segment) -> int:
        """Tokens of the turn's thinking: a token belongs to the part that contains its first character."""
        checks.require_offsets(self.tokenizer, "training.thinking_weight")
        _, places = self.literal.offsets(turn.text)
        return sum(start < turn.thinking for start, _ in places)

    def _with_offsets(self, dialogue: Dialogue, max_length: int) -> Encoded:
        checks.require_offsets(self.tokenizer, "method=local_naturalness")
        segments = self.renderer.segments(dialogue)
        checks.require_one_response(len(segments))
        prompt, response = segments
        ids, spans = self.literal.offsets(response.text)
        encoded = self._join(segments, [self.literal.tokenise(prompt.text), ids], max_length)
        offsets = [*spans, (0, 0)][: encoded.n_response]
        return replace(encoded, offsets=offsets, text=unshield(response.text))


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
    ours = TEMPLATES / f"{template}.jinja"
    path = ours if ours.is_file() else Path(template).expanduser()
    checks.require_template_file(path, template, TEMPLATES)
    return path
