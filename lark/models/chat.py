"""The only place that turns a question and a response into token ids.

Scoring, training and evaluation all go through `ChatFormat`, so the prompt that is scored is token for token the prompt
that is trained on and the prompt that evaluation sends (paper, App. C.3, "Prompt consistency"). Prompt and response are
tokenised separately and joined; the end-of-turn token belongs to the response.
"""

import datetime
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lark.errors import LarkError
from lark.models.tokenise import tokenise

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}"
"""The end of the user turn in scoring, training and evaluation (paper, App. C.3)."""

TEMPLATES = Path(__file__).parent / "templates"
"""Our own templates, for base models that have none: `llama3` and `chatml`. None of them injects a date."""

TODAY = datetime.datetime(2024, 7, 26, tzinfo=datetime.UTC)
"""The date for templates that ask for one, so that a prompt never depends on the day: Llama's own default."""


def render(tokenizer: "PreTrainedTokenizerBase", messages: list[dict[str, str]], **options: Any) -> str:
    """Render messages with the tokenizer's chat template."""
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, strftime_now=TODAY.strftime, **options)
    assert isinstance(rendered, str)
    return rendered


@dataclass(frozen=True)
class Encoded:
    """One trajectory as the student sees it: `ids[:prompt_length]` is the prompt, the rest is the response."""

    ids: Sequence[int]
    """Four bytes per token, because a training set of 100,000 long trajectories is held in memory as a whole."""
    prompt_length: int
    truncated: bool
    offsets: list[tuple[int, int]] | None = None
    """Start and end of each response token in the response's text, if requested; (0, 0) for the end of the turn."""

    @property
    def n_response(self) -> int:
        return len(self.ids) - self.prompt_length


def user_turn(question: str) -> str:
    """The user's message: the question followed by the instruction (never twice)."""
    question = question.strip()
    return question if question.rstrip(" .").endswith(INSTRUCTION) else f"{question}\n{INSTRUCTION}"


def conversation(question: str, system: str | None = None, complete: bool = False) -> list[dict[str, str]]:
    """The messages before the response. `complete`: the question is a whole user turn, as in a training set."""
    opening = [{"role": "system", "content": system}] if system else []
    return [*opening, {"role": "user", "content": question if complete else user_turn(question)}]


class ChatFormat:
    """A tokenizer with its chat template, checked once: responses can be joined to prompts without changing either."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", template: str | None = None, stop_ids: Iterable[int] = ()) -> None:
        """`template` is None (the tokenizer's own), the name of one of ours, or a path to a Jinja file.

        `stop_ids`: tokens that end an answer, in addition to those of the template and the tokenizer.
        """
        self.tokenizer = tokenizer
        self.further_stops = frozenset(stop_ids)
        if template is not None:
            tokenizer.chat_template = template_file(template).read_text(encoding="utf-8")
        if not tokenizer.chat_template:
            raise LarkError(
                f"The tokenizer of {tokenizer.name_or_path} has no chat template. "
                "Set student.chat_template to `chatml`, `llama3` or a path to a Jinja file."
            )
        self.end_of_turn: int = self._find_end_of_turn()

    def prompt_text(self, question: str, system: str | None = None, complete: bool = False) -> str:
        """The text that is sent to the model before it answers (`complete` as in `conversation`)."""
        return self._render(conversation(question, system, complete), add_generation_prompt=True)

    def prompt(self, question: str, system: str | None = None, complete: bool = False) -> list[int]:
        """`prompt_text` as token ids. The template writes the beginning-of-text token itself, if there is one."""
        return list(self._tokenise(self.prompt_text(question, system, complete)))

    def encode(self, question: str, response: str, max_length: int, system: str | None = None) -> Encoded:
        """Prompt and response as one sequence of at most `max_length` tokens, cut from the right."""
        prompt = self._tokenise(self.prompt_text(question, system))
        return self._join(prompt, self._tokenise(self._without_end(response)), max_length)

    def encode_many(
        self, rows: Sequence[Mapping[str, Any]], max_length: int, offsets: bool = False, complete: bool = False
    ) -> list[Encoded]:
        """`encode` for rows with `question`, `response` and `system`, tokenised together on all threads."""
        if offsets and not self.tokenizer.is_fast:
            raise LarkError(
                f"The tokenizer of {self.tokenizer.name_or_path} cannot map tokens to characters, which "
                "method=local_naturalness needs: use a student with a fast tokenizer (tokenizer.json)."
            )
        asked = list(dict.fromkeys((row["question"], row["system"]) for row in rows))
        texts = [self.prompt_text(*key, complete) for key in asked]
        prompts = {key: tokens.ids for key, tokens in zip(asked, tokenise(self.tokenizer, texts), strict=True)}
        responses = tokenise(self.tokenizer, (self._without_end(row["response"]) for row in rows), offsets)
        encoded = []
        for row, response in zip(rows, responses, strict=True):
            joined = self._join(prompts[row["question"], row["system"]], response.ids, max_length)
            if response.offsets is not None:
                joined = replace(joined, offsets=[*response.offsets, (0, 0)][: joined.n_response])
            encoded.append(joined)
        return encoded

    @property
    def stop_ids(self) -> list[int]:
        """All tokens that end an answer: the end of the turn and the end of text (base models use another one, or several)."""
        end_of_text = self.tokenizer.eos_token_id
        return sorted({self.end_of_turn} | self.further_stops | ({end_of_text} if isinstance(end_of_text, int) else set()))

    def _without_end(self, response: str) -> str:
        """The response without an end of turn that was stored with it: `_join` adds one, and there must not be two."""
        end, text = str(self.tokenizer.convert_ids_to_tokens(self.end_of_turn)), response.rstrip()
        while text.endswith(end):
            response = text = text.removesuffix(end)
        return response

    def _join(self, prompt: "array[int]", response: "array[int]", max_length: int) -> Encoded:
        ids = prompt + response
        ids.append(self.end_of_turn)
        return Encoded(ids[:max_length], min(len(prompt), max_length), len(ids) > max_length)

    def _tokenise(self, text: str) -> "array[int]":
        (tokens,) = tokenise(self.tokenizer, [text])
        return tokens.ids

    def _render(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        return render(self.tokenizer, messages, add_generation_prompt=add_generation_prompt)

    def _find_end_of_turn(self) -> int:
        """The special token that closes an assistant's turn, found by rendering one."""
        question, answer = "How many?", "Two."
        prompt = self.prompt_text(question)
        whole = self._render([*conversation(question), {"role": "assistant", "content": answer}], add_generation_prompt=False)
        if not whole.startswith(prompt + answer):
            raise LarkError(
                f"The chat template of {self.tokenizer.name_or_path} changes the prompt once it is answered, so the "
                "scored prompt would differ from the one at evaluation. Set student.chat_template to a template that does not."
            )
        special = set(self.tokenizer.all_special_ids) | set(self.tokenizer.added_tokens_decoder)
        for token in self._tokenise(whole[len(prompt + answer) :]):
            if token in special:
                return token
        raise LarkError(
            f"The chat template of {self.tokenizer.name_or_path} ends an answer with no special token, so generation would "
            "never stop. Set student.chat_template to `chatml`, `llama3` or a path to a Jinja file."
        )


def template_file(template: str) -> Path:
    """The file that `student.chat_template` names: one of our templates, or the user's."""
    path = TEMPLATES / f"{template}.jinja"
    path = path if path.is_file() else Path(template).expanduser()
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in TEMPLATES.glob("*.jinja")))
        raise LarkError(f"student.chat_template={template}: no such file, and not a built-in template ({known}).")
    return path
