"""Refusals of an export, one function per sentence."""

import shutil
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any, NoReturn

from lark.errors import LarkError

GB = 10**9
MOST_COPIES = 10**12
"""Copies of a line. More would fill any disk."""


def check_copies(copies: int) -> None:
    if not 1 <= copies <= MOST_COPIES:
        raise LarkError(f"--copies: write 1 to {MOST_COPIES:,} lines per unit of weight.")


def check_file(to: Path) -> None:
    """Refuse to write over something, and to write where no file can be."""
    problem = None
    if to.is_dir():
        problem = f"this is a folder. Give the name of a file in it, such as {to / 'data.jsonl'}."
    elif to.exists():
        problem = "this file exists. Choose another name, or remove it."
    elif to.is_symlink():
        problem = f"this is a link to {to.readlink()}, which does not exist. Give the name of a new file."
    elif not to.parent.is_dir():
        problem = f"there is no folder {to.parent}."
    if problem:
        raise LarkError(f"--to {to}: {problem}")


def check_new_folder(to: Path) -> None:
    """Refuse a folder that has something in it, and a place where no folder can be."""
    problem = None
    if to.exists() and not to.is_dir():
        problem = "this is a file. Give the name of a new folder."
    elif to.is_dir() and any(to.iterdir()):
        problem = "this folder is not empty. Give the name of a new one."
    elif not to.parent.is_dir():
        problem = f"there is no folder {to.parent}."
    if problem:
        raise LarkError(f"--to {to}: {problem}")


def check_size(size: int, to: Path, limit: float) -> None:
    """Refuse a file that does not fit on the disk, or that is larger than the user expects."""
    free = shutil.disk_usage(to.parent).free
    problem = None
    if size > free:
        problem = f"and {to.parent} has {free / GB:,.1f} GB free. Use a smaller --copies, or another disk."
    elif size > limit * GB:
        problem = (
            f"more than the limit of {limit:g} GB. Use a smaller --copies, or raise the limit: --max-gb"
            f" {ceil(size / GB)}."
        )
    if problem:
        raise LarkError(f"--to {to}: the file would have {size / GB:,.1f} GB, {problem}")


def require_lines(source: Path, written: int) -> None:
    if not written:
        raise LarkError(f"{source}: every weight rounds to 0 lines. Use a larger --copies.")


def require_training_set(folder: Path, file: str) -> None:
    if not (folder / file).is_file():
        raise LarkError(
            f"{folder}: there is no {file} here. Give the folder of a selection, outputs/selection/<name>."
        )


def require_finished(folder: Path, is_finished: bool) -> None:
    if not is_finished:
        raise LarkError(f"{folder}: this selection is not finished. Run its command again, then export it.")


def check_last(messages: list[dict[str, Any]], where: str) -> None:
    if not messages or messages[-1]["role"] != "assistant":
        raise LarkError(f"{where}: the last message must be the assistant's, because it is trained on.")


def check_trained_on(messages: list[dict[str, Any]], where: str) -> None:
    """Refuse a conversation in which nothing is trained on."""
    weights = [message.get("weight") for message in messages if message["role"] == "assistant"]
    if all(weight == 0 for weight in weights):
        raise LarkError(
            f"{where}: nothing in this conversation is trained on, because every assistant message has"
            ' "weight": 0. Remove the line, or the weight of the messages to train on.'
        )


def require_copies(where: str, weight: float, copies: int) -> None:
    """Refuse a weight that means more copies of a line than any disk can hold."""
    if copies * weight > MOST_COPIES:  # also if the product overflows to infinity
        raise LarkError(
            f"{where}: the weight {weight:g} with --copies {copies} means more than {MOST_COPIES:g}"
            " copies of this line. Use smaller weights (their mean is 1 in a selection), or a smaller"
            " --copies."
        )


def require_response(tokens: int, where: str, max_length: int) -> None:
    if tokens < 1:
        raise LarkError(
            f"{where}: no token of this response is trained on. It is cut off at max_length={max_length}, or"
            " masked by --thinking-weight or --answer-weight. Raise it, or remove the line."
        )


def require_student(
    trainer: str, student: Sequence[str] | None, factors: Sequence[float], needed: bool
) -> None:
    """Refuse a missing student where a line depends on its tokens, and settings of tokens where none does."""
    if needed and not student:
        raise LarkError(
            f"The weights for {trainer} depend on the student's tokens. Add --student with its folder or hub"
            " id."
        )
    if not needed and (student or any(factor != 1 for factor in factors)):
        raise LarkError(
            f"{trainer} gets no tokens: --student, --thinking-weight and --answer-weight are for swift and"
            " tinker."
        )


def check_factors(trainer: str, factors: Sequence[float], takes_tokens: bool) -> None:
    """Refuse negative factors, and factors for a trainer whose weights cover whole messages."""
    if min(factors) < 0 or max(factors) <= 0:
        raise LarkError("--thinking-weight and --answer-weight: write numbers from 0, and not 0 for both.")
    if not takes_tokens and any(factor != 1 for factor in factors):
        raise LarkError(
            f"{trainer} weights whole messages: --thinking-weight and --answer-weight are for tinker."
        )


def refuse_scaled_turns(trainer: str, scaled: int, examples: int) -> NoReturn:
    raise LarkError(
        f"{trainer} cannot scale single messages, and {scaled} of {examples} examples have messages with"
        " other weights than 0 and 1. Export for swift or tinker, or add --weights drop, which keeps only the"
        " masks."
    )


def require_one_kind(is_one_kind: bool, trainer: str) -> None:
    """Refuse a mixture of conversations for a trainer that cannot leave out single messages."""
    if not is_one_kind:
        raise LarkError(
            f"{trainer} cannot leave out single assistant messages: in this training set, some conversations"
            " are trained on in their last message only and others in all of them. Export for axolotl, swift,"
            " Fireworks, Together or tinker, which can."
        )


def refuse_tools(examples_with_tools: int, examples: int) -> None:
    if examples_with_tools:
        raise LarkError(
            f"{examples_with_tools} of {examples} examples use tools, and LLaMA-Factory's format cannot store"
            " a tool call next to text or thinking. Export for TRL, axolotl, Fireworks or Together."
        )
