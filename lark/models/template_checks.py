"""What a chat template must satisfy: one function and one sentence per refusal.

`CannotWriteError` is for conversations that the template may be able to write in another form (tool_text.py).
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from lark.errors import LarkError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ADDRESS = re.compile(r"\S+ at 0x[0-9a-f]+>")
"""An object that a template writes instead of its value."""
END_TOKENS = {"chatml": "<|im_end|>", "llama3": "<|eot_id|>", "plain": ""}
"""The token with which each of our templates ends a turn. `plain` uses the tokenizer's end-of-text token."""


class CannotWriteError(LarkError):
    """A chat template fails on a conversation, or leaves out a part of it."""


def named(tokenizer: "PreTrainedTokenizerBase") -> str:
    """The subject of every sentence here."""
    return f"The chat template of {tokenizer.name_or_path}"


def remedy(tokenizer: "PreTrainedTokenizerBase") -> str:
    """Advice for a template that does not work: those of ours that fit this tokenizer, or another file."""
    vocabulary = tokenizer.get_vocab()
    names = [f"`{name}`" for name, end in END_TOKENS.items() if (end or tokenizer.eos_token) in vocabulary]
    ours = f"{', '.join(names)} or " if names else ""
    return f"Set student.chat_template to {ours}a path to a Jinja file."


def refuse(tokenizer: "PreTrainedTokenizerBase", problem: str) -> NoReturn:
    """Refuse a template that can be used for no conversation."""
    raise LarkError(f"{named(tokenizer)} {problem}. {remedy(tokenizer)}")


# The template itself.


def require_template(tokenizer: "PreTrainedTokenizerBase") -> None:
    """Refuse a tokenizer without a chat template, such as that of a base model."""
    if not tokenizer.chat_template:
        raise LarkError(
            f"The tokenizer of {tokenizer.name_or_path} has no chat template. {remedy(tokenizer)}"
        )


def require_template_file(path: Path, template: str, templates: Path) -> None:
    """Refuse a setting that names neither a file nor one of our `templates`."""
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in templates.glob("*.jinja")))
        raise LarkError(
            f"student.chat_template={template}: no such file, and not a built-in template ({names})."
        )


def refuse_address(tokenizer: "PreTrainedTokenizerBase", text: str) -> None:
    """Refuse a template that writes the address of an object."""
    address = ADDRESS.search(text)
    if address is not None:
        refuse(tokenizer, f"writes an address in memory, which differs between processes ({address[0]})")


# A conversation.


def unwritable_turn(tokenizer: "PreTrainedTokenizerBase", thinking: str) -> LarkError:
    """The reason why a last turn, with its thinking, cannot follow its prompt."""
    if thinking:
        return LarkError(
            f"{named(tokenizer)} closes the thinking in its prompt, so a trajectory's thinking has no place."
            " Ask the template to think (student.template_options={enable_thinking: true}), or leave the"
            " thinking out (student.thinking=drop)."
        )
    return LarkError(
        f"{named(tokenizer)} changes the conversation before a turn once the turn is answered, so the scored"
        f" prompt would differ from the one at evaluation. {remedy(tokenizer)}"
    )


def refuse_left_out(tokenizer: "PreTrainedTokenizerBase", part: str) -> NoReturn:
    """Refuse a rendering that lacks a part, such as "the thinking of turn 2"."""
    raise CannotWriteError(
        f"{named(tokenizer)} leaves out {part}. Use pool.turns=last, which keeps earlier turns as context, or"
        " a template that writes it (student.chat_template=<file>)."
    )


def refuse_left_out_turn(
    tokenizer: "PreTrainedTokenizerBase", turn: int, message: Mapping[str, Any]
) -> NoReturn:
    raise CannotWriteError(
        f"{named(tokenizer)} leaves out turn {turn} ({message['role']}). Set student.chat_template to a Jinja"
        " file that writes it."
    )


def require_stable_turns(
    tokenizer: "PreTrainedTokenizerBase", conversation: str, prompt: str, turn: int, turns: int
) -> None:
    """Refuse a conversation that does not start with the prompt of one of its turns."""
    if not conversation.startswith(prompt):
        raise LarkError(
            f"{named(tokenizer)} rewrites earlier turns (turn {turn} of {turns}), so they cannot be scored in"
            " one conversation. Use pool.turns=last, or a template that keeps them"
            " (student.chat_template=<file>)."
        )


def refuse_open_turn(tokenizer: "PreTrainedTokenizerBase", turn: int) -> NoReturn:
    raise LarkError(
        f"{named(tokenizer)} does not end turn {turn} with an end-of-turn token. Use pool.turns=last."
    )


# Offsets of tokens in the text of a response.


def require_offsets(tokenizer: "PreTrainedTokenizerBase", setting: str) -> None:
    """Refuse a tokenizer without offsets. `setting`: what needs them."""
    if not tokenizer.is_fast:
        raise LarkError(
            f"The tokenizer of {tokenizer.name_or_path} cannot map tokens to characters, which"
            f" {setting} needs: use a student with a fast tokenizer (tokenizer.json)."
        )


def require_one_response(segments: int) -> None:
    """Refuse several turns: a prompt and a response are two segments."""
    if segments > 2:
        raise LarkError(
            "method=local_naturalness scores one response per trajectory. For several turns use"
            " pool.turns=last."
        )
